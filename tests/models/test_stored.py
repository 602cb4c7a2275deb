"""Parameters stored in bfloat16: products equal float64's, and answers equal the answers of the rounded values."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from tests.models.test_decoder import KINDS, random_params
from unroll_jax.models import Decoder, generate, speculate
from unroll_jax.models.language.decoder import head_products
from unroll_jax.models.language.decoder_parts import dense


def test_products_with_kernels_and_heads_equal_float64_and_narrow_factors_stay_narrow_on_request():
    """Products of 0, 1, 2 and 5 tokens with a head are taken in different orders."""
    rng = np.random.default_rng(0)
    ys = [rng.normal(size=(count, 8)).astype(np.float32) for count in (0, 1, 2, 5)]
    drawn = rng.normal(size=(8, 5)).astype(np.float32), rng.normal(size=(5, 8)).astype(np.float32)
    stored = {dtype: [leaf.astype(dtype) for leaf in drawn] for dtype in (jnp.bfloat16, jnp.float32)}

    @jax.jit
    def run(ys, stored):
        products = [
            [(dense(y, {"kernel": kernel}), head_products(y, head, jnp.float32)) for y in ys] for kernel, head in stored
        ]
        return products, [head_products(y, stored[1][1], jnp.bfloat16) for y in ys]

    products, narrow = run(ys, list(stored.values()))
    assert {leaf.dtype for leaf in jax.tree.leaves((products, narrow))} == {jnp.dtype(jnp.float32)}
    for (kernel, head), of_ys in zip(stored.values(), products, strict=True):
        for y, (of_kernel, of_head) in zip(ys, of_ys, strict=True):
            np.testing.assert_allclose(of_kernel, np.float64(y) @ np.float64(kernel), rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(of_head, np.float64(y) @ np.float64(head).T, rtol=1e-5, atol=1e-5)
    for y, rounded in zip(ys, narrow, strict=True):
        expected = np.float64(y.astype(jnp.bfloat16)) @ np.float64(stored[jnp.bfloat16][1]).T
        np.testing.assert_allclose(rounded, expected, rtol=1e-5, atol=1e-5)


def test_answers_are_those_of_the_rounded_parameters():
    config = dataclasses.replace(KINDS["one head of keys, wider heads, untied"], qkv_bias=True)
    params = random_params(Decoder(config))["params"]
    stored = jax.tree.map(lambda leaf: np.asarray(leaf).astype(jnp.bfloat16), params)
    options = {"prompts": [[5, 6, 7, 5, 6], [8]], "max_tokens": 4}
    expected = generate(config, jax.tree.map(lambda leaf: leaf.astype(np.float32), stored), **options)
    plain = generate(config, stored, dtype=jnp.float32, **options)
    for answers in (plain, speculate(config, stored, exit_layer=1, draft_length=2, dtype=jnp.float32, **options)):
        np.testing.assert_array_equal(answers.tokens, expected.tokens)
