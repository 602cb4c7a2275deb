"""Parameters that are stored in bfloat16: products equal those of float64, and answers those of the rounded values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.test_decoder import KINDS, random_params
from unroll_jax.models import Decoder, generate, speculate
from unroll_jax.models.language.decoder import head_products
from unroll_jax.models.language.decoder_parts import dense

PROMPTS = [[5, 6, 7, 5, 6], [8]]


def normal(*shape, seed, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_products_with_kernels_and_heads_equal_float64(dtype, count):
    y, kernel, head = normal(count, 8, seed=0), normal(8, 5, seed=1, dtype=dtype), normal(5, 8, seed=2, dtype=dtype)
    of_kernel, of_head = dense(y, {"kernel": kernel}), head_products(y, head, jnp.float32)
    assert of_kernel.dtype == of_head.dtype == jnp.float32
    np.testing.assert_allclose(of_kernel, np.float64(y) @ np.float64(kernel), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_head, np.float64(y) @ np.float64(head).T, rtol=1e-5, atol=1e-5)


def test_narrow_factors_of_a_head_stay_narrow_on_request():
    y, head = normal(2, 8, seed=0), normal(9, 8, seed=1)
    got = head_products(y, head, jnp.bfloat16)
    assert got.dtype == jnp.float32
    rounded = (np.float64(each.astype(jnp.bfloat16)) for each in (y, head))
    np.testing.assert_allclose(got, np.matmul(next(rounded), next(rounded).T), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("call", [generate, speculate])
def test_answers_are_those_of_the_rounded_parameters(call):
    config = KINDS["biases, as in Qwen2" if call is generate else "one head of keys, wider heads, untied"]
    stored = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), random_params(Decoder(config))["params"])
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), stored)
    expected = generate(config, wide, PROMPTS, max_tokens=8)
    options = {} if call is generate else {"exit_layer": 1, "draft_length": 2}
    got = call(config, stored, PROMPTS, max_tokens=8, dtype=jnp.float32, **options)
    np.testing.assert_array_equal(got.tokens, expected.tokens)
