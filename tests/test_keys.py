"""Draws with keys of every implementation of JAX, typed and raw, alone and in batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.reference import compiled
from unroll_jax.keys import threefry_keys
from unroll_jax.looped import sample_far_start, sample_loops, sample_segment
from unroll_jax.perturbations import layer_noise
from unroll_jax.spectral import random_like

# unsafe_rbg becomes threefry as rbg does
every_kind = pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])


def noise_of(key, *shape):
    return layer_noise(key, 1.0)(jnp.int32(1), None, jnp.zeros(shape))


def draws_of(key):
    return {
        "far_start": sample_far_start(key, 10_000, share=1.0),
        "loops": sample_loops(key, 10_000),
        "huginn": sample_loops(key, 10_000, distribution="log_normal_poisson"),
        "segment": jnp.stack(sample_segment(key, 10_000)),
        "normal": random_like(jnp.zeros(3), key),
        "noise": noise_of(key, 3),
    }


@every_kind
def test_draws_of_key_batches_are_those_of_each_key(kind):
    keys = jax.random.split(jax.random.key(0, impl=kind), 4)
    alone = compiled(draws_of)

    @compiled
    def together(keys):
        return jax.vmap(draws_of)(keys) | {"noise of rows": noise_of(keys, 4, 3)}

    draws = together(keys)
    for place, key in enumerate(keys):
        single = alone(key)
        single["noise of rows"] = single["noise"]
        for name, each in draws.items():
            assert_allclose(each[place], single[name], rtol=1e-6, err_msg=name)
    for name, each in draws.items():
        rows = each.reshape(4, -1)
        assert len(np.unique(rows, axis=0)) == 4, name
    assert np.unique(draws["noise of rows"]).size == 12


def test_raw_keys_draw_what_typed_ones_draw():
    @compiled
    def draw(raw, typed):
        rows = noise_of(jnp.stack([raw, raw + 1]), 2, 4)
        return noise_of(raw, 4), noise_of(typed, 4), rows

    first, second, rows = draw(jax.random.PRNGKey(5), jax.random.key(5))
    assert_array_equal(first, second)
    assert_array_equal(first, rows[0])


def test_keys_of_threefry_stay_as_they_are():
    key = jax.random.key(7)
    assert threefry_keys(key) is key
