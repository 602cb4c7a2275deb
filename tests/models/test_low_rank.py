"""Low-rank changes of a decoder's kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.test_decoder import SMALL, random_params, random_tokens
from unroll_jax.models import Decoder, decode, empty_cache, low_rank_changes, merged_changes, with_changes


@pytest.mark.slow
def test_changes_beside_kernels_are_changes_of_the_kernels_in_a_pass_and_in_decoding():
    model, tokens, rng = Decoder(SMALL, unroll=1), random_tokens(1, 5), np.random.default_rng(0)
    params = random_params(model)["params"]
    changes = jax.jit(lambda key: low_rank_changes(key, SMALL, rank=2))(jax.random.key(0))
    assert sorted(changes) == ["down", "gate", "key", "output", "query", "up", "value"], "every kernel"
    assert (changes["down"]["compress"].shape, changes["key"]["expand"].shape) == ((3, 12, 2), (3, 2, 4))
    moved, merged = {}, dict(params["layers"])
    for part, weights in changes.items():
        expand = rng.normal(size=weights["expand"].shape).astype(np.float32)
        moved[part] = weights | {"expand": expand}
        merged[part] = params["layers"][part] | {
            "kernel": params["layers"][part]["kernel"] + np.asarray(weights["compress"]) @ expand
        }

    @jax.jit
    def run(params, moved):
        outputs = [model.apply({"params": params}, tokens, changes=given) for given in (None, changes, moved)]
        whole = model.apply({"params": params | {"layers": merged}}, tokens)
        decoder_params = params | {"layers": with_changes(params["layers"], moved)}
        decoded = decode(SMALL, decoder_params, tokens, empty_cache(SMALL, 1, 8), jnp.arange(5)[None])[0]
        return outputs, whole, decoded, merged_changes(params["layers"], moved)

    (plain, start, beside), whole, decoded, ours = run(params, moved)
    np.testing.assert_array_equal(start, plain)
    np.testing.assert_allclose(beside, whole, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(decoded, whole[-1], rtol=1e-4, atol=1e-4)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), ours, merged)
