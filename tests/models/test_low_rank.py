"""Low-rank changes of a decoder's kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax.models import (
    Decoder,
    DecoderConfig,
    decode,
    empty_cache,
    low_rank_changes,
    merged_changes,
    with_changes,
)

CONFIG = DecoderConfig(11, dim=8, num_layers=2, num_heads=4, num_key_value_heads=2, hidden_dim=12, max_positions=8)


@pytest.mark.slow
def test_changes_beside_kernels_are_changes_of_the_kernels_in_a_pass_and_in_decoding():
    tokens, model = jnp.asarray([[3, 1, 4, 1, 5]]), Decoder(CONFIG)

    @jax.jit
    def three(key):
        of_model, of_changes, of_expand = jax.random.split(key, 3)
        params = model.init(of_model, tokens)["params"]
        changes = low_rank_changes(of_changes, CONFIG, rank=2)
        start = model.apply({"params": params}, tokens, changes=changes) - model.apply({"params": params}, tokens)
        moved = {
            part: {**weights, "expand": jax.random.normal(of_expand, weights["expand"].shape)}
            for part, weights in changes.items()
        }
        merged = {
            part: {**weights, "kernel": weights["kernel"] + jnp.matmul(moved[part]["compress"], moved[part]["expand"])}
            if part in moved
            else weights
            for part, weights in params["layers"].items()
        }
        whole = model.apply({"params": {**params, "layers": merged}}, tokens)
        ours = jax.tree.map(jnp.array_equal, merged_changes(params["layers"], moved), merged)
        decoder_params = {**params, "layers": with_changes(params["layers"], moved)}
        decoded = decode(CONFIG, decoder_params, tokens, empty_cache(CONFIG, 1, 8), jnp.arange(5)[None])[0]
        return start, whole, model.apply({"params": params}, tokens, changes=moved), decoded, ours, changes

    start, whole, beside, decoded, ours, changes = three(jax.random.key(0))
    assert sorted(changes) == ["down", "gate", "key", "output", "query", "up", "value"], "every kernel"
    assert (changes["down"]["compress"].shape, changes["key"]["expand"].shape) == ((2, 12, 2), (2, 2, 4))
    assert not np.any(start)
    np.testing.assert_allclose(beside, whole, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(decoded, whole[-1], rtol=1e-4, atol=1e-5)
    assert all(jax.tree.leaves(ours))
