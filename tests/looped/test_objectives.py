"""Draws against their distributions, and measures of states against NumPy, over all
magnitudes."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.reference import compiled, gaussian
from unroll_jax.looped import (
    path_independence,
    sample_far_start,
    sample_loops,
    sample_segment,
    step_sizes,
)

COUNT = 4000


def test_draws_have_their_distributions():
    """Uniform ones; those of Huginn, whose quantiles are NumPy's; far starts, a
    share of all; and segments."""
    huginn = functools.partial(sample_loops, distribution="log_normal_poisson")

    def draw(key):
        loops = sample_loops(key, 6, least=2), huginn(key, 64, least=10, mean=32.0)
        return (
            *loops,
            sample_far_start(key, 10, share=0.25),
            jnp.stack(sample_segment(key, 5)),
        )

    def all_of():
        return jax.vmap(draw)(jax.random.split(jax.random.key(3), COUNT))

    uniform, cut, far, segments = compiled(all_of)()
    counts = np.bincount(uniform, minlength=7)
    assert counts[:2].sum() == 0
    assert np.abs(counts[2:] / COUNT - 0.2).max() < 0.03

    rng = np.random.default_rng(0)
    shares = [0.1, 0.5, 0.9]
    expected = rng.poisson(np.exp(rng.normal(np.log(32.0) - 0.125, 0.5, 100_000))) + 1
    assert abs(expected.mean() - 33.0) < 0.2
    assert abs(cut.mean() - np.clip(expected, 10, 64).mean()) < 1.0
    assert (
        np.abs(np.quantile(cut, shares) / np.quantile(expected, shares) - 1.0).max()
        < 0.08
    )
    assert (cut.min(), cut.max()) == (10, 64)
    by_default, stated = (
        jax.make_jaxpr(lambda key, m=m: huginn(key, 64, mean=m))(jax.random.key(0))
        for m in (None, 32.0)
    )
    assert str(by_default) == str(stated)

    assert abs((far > 0).mean() - 0.25) < 0.03
    assert (far.min(), far.max()) == (0, 10)
    assert np.bincount(far, minlength=11)[1:].min() > 0

    # Free loops and those with gradients end within the loops of training.
    assert set(map(tuple, segments.tolist())) == {
        (n, k) for n in range(5) for k in range(1, 6 - n)
    }


def test_path_independence_is_the_mean_cosine_with_the_first_end(x64):
    states = {"a": gaussian(3, 2, 4, 3), "b": gaussian(3, 2, 5, seed=1)}
    joined = np.concatenate([states["a"].reshape(3, 2, -1), states["b"]], axis=-1)
    units = joined / np.linalg.norm(joined, axis=-1, keepdims=True)
    expected = np.mean(np.sum(units[1:] * units[0], axis=-1), axis=0)
    agreement = compiled(path_independence)
    chex.assert_trees_all_close(agreement(states), expected, rtol=1e-12)
    for scale in (1e-200, 1e200):  # whose squares leave the range of float64
        chex.assert_trees_all_close(
            agreement(jax.tree.map(lambda leaf, c=scale: c * leaf, states)), expected
        )


@pytest.mark.parametrize(
    ("shape", "batch_ndim"),
    [((4, 3), 0), ((4, 2, 3), 1), ((4, 2, 5, 3), 2), ((4, 2, 5, 3), 1)],
)
def test_steps_are_root_mean_squares_of_differences(shape, batch_ndim, x64):
    states = gaussian(*shape)
    rows = states.reshape(*shape[: 1 + batch_ndim], -1)
    expected = np.linalg.norm(rows[1:] - rows[:-1], axis=-1) / np.sqrt(rows.shape[-1])
    measure = functools.partial(step_sizes, batch_ndim=batch_ndim)
    gradient = jax.grad(lambda states: measure(states).sum())
    sizes, at_rest = compiled(
        lambda states: (measure(states), gradient(jnp.ones_like(states)))
    )(states)
    chex.assert_trees_all_close(sizes, expected, rtol=1e-6)
    assert_array_equal(at_rest, np.zeros(shape))
