"""Parameters that are stored in half the bits: products equal those of float64, and no converted copy is held."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.test_decoder import KINDS, random_params
from unroll_jax.models import Decoder, exit_adapter, generate, prompt_lookup, speculate
from unroll_jax.models.language.decoder import head_products
from unroll_jax.models.language.stored import BLOCK, MAX_SUMMED_TOKENS, MIN_CONVERTED_TOKENS, stored_linear

COUNTS = (0, 1, 2, MAX_SUMMED_TOKENS, MAX_SUMMED_TOKENS + 1, MIN_CONVERTED_TOKENS)
PROMPTS = [[5, 6, 7, 5, 6], [8]]


def normal(*shape, seed, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("width", [24, 7])
def test_products_with_kernels_equal_float64(dtype, count, width):
    y, kernel = normal(1, count, width, seed=0), normal(width, 5, seed=1, dtype=dtype)
    got = jax.jit(stored_linear)(y, kernel)
    assert (got.shape, got.dtype) == ((1, count, 5), jnp.float32)
    np.testing.assert_allclose(got, np.float64(y) @ np.float64(kernel), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 1), (1, 3), (MIN_CONVERTED_TOKENS,)])
@pytest.mark.parametrize("rows", [1, BLOCK, 2 * BLOCK + 3])
def test_products_with_rows_of_a_head_equal_float64(dtype, shape, rows):
    y, head = normal(*shape, 8, seed=0), normal(rows, 8, seed=1, dtype=dtype)
    got = jax.jit(head_products, static_argnums=2)(y, head, jnp.float32)
    assert (got.shape, got.dtype) == ((*shape, rows), jnp.float32)
    np.testing.assert_allclose(got, np.float64(y) @ np.float64(head).T, rtol=1e-5, atol=1e-5)


def test_narrow_factors_of_a_head_stay_narrow_on_request():
    y, head = normal(2, 8, seed=0), normal(9, 8, seed=1)
    got = head_products(y, head, jnp.bfloat16)
    assert got.dtype == jnp.float32
    rounded = (np.float64(each.astype(jnp.bfloat16)) for each in (y, head))
    np.testing.assert_allclose(got, np.matmul(next(rounded), next(rounded).T), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_products_are_differentiable_and_vmapped(dtype, count):
    y, kernel, head = normal(3, count, 8, seed=0), normal(8, 5, seed=1, dtype=dtype), normal(5, 8, seed=2, dtype=dtype)

    def squares(y):
        return jnp.sum(stored_linear(y, kernel) ** 2) + jnp.sum(head_products(y, head, y.dtype) ** 2)

    def plain(y):
        return jnp.sum((y @ kernel.astype(y.dtype)) ** 2) + jnp.sum((y @ head.astype(y.dtype).T) ** 2)

    got, expected = jax.jit(jax.vmap(jax.grad(squares)))(y), jax.vmap(jax.grad(plain))(y)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-5)


@pytest.mark.xfail(jax.__version_info__ < (0, 11), reason="XLA of JAX 0.10 converts the head as a whole", strict=True)
@pytest.mark.parametrize("rest", [0, 3])
def test_no_copy_of_a_head_is_held(rest):
    head = jax.ShapeDtypeStruct((64 * BLOCK + rest, 64), jnp.bfloat16)
    for count in (1, 2, 5):
        y = jax.ShapeDtypeStruct((count, 64), jnp.float32)
        largest = jax.jit(lambda y, head: jnp.argmax(head_products(y, head, y.dtype), -1)).lower(y, head).compile()
        assert largest.memory_analysis().temp_size_in_bytes < head.size


@pytest.mark.parametrize("how", ["plain", "draft", "adapter", "prompt look-up"])
def test_answers_are_those_of_the_rounded_parameters(how):
    config = KINDS["biases, as in Qwen2" if how == "plain" else "one head of keys, wider heads, untied"]
    stored = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), random_params(Decoder(config))["params"])
    adapter = exit_adapter(jax.random.key(1), config, words=range(20), dtype=jnp.bfloat16)
    call, options = {
        "plain": (generate, {}),
        "draft": (speculate, {"exit_layer": 1, "draft_length": 2}),
        "adapter": (speculate, {"exit_layer": 1, "draft_length": 1, "adapter": adapter}),
        "prompt look-up": (prompt_lookup, {"draft_length": 2}),
    }[how]
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), stored)
    expected = generate(config, wide, PROMPTS, max_tokens=8)
    for prompts, rows in ((PROMPTS, [0, 1]), (PROMPTS[:1], [0])):  # one text is decoded by other products
        got = call(config, stored, prompts, max_tokens=8, dtype=jnp.float32, **options)
        np.testing.assert_array_equal(got.tokens, np.asarray(expected.tokens)[rows])
