"""Draws against their distributions, and measures of states against NumPy, over all magnitudes."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.errors import assert_names
from unroll_jax.looped import path_independence, sample_far_start, sample_loops, sample_segment, step_sizes

KEYS = jax.random.split(jax.random.key(3), 4000)


@pytest.fixture(scope="module")
def draws():
    huginn = functools.partial(sample_loops, distribution="log_normal_poisson")

    def draw(key):
        free, loops = sample_segment(key, 5)
        of_loops = {"uniform": sample_loops(key, 6, least=2), "huginn": huginn(key, 500, mean=32.0)}
        return of_loops | {
            "clipped": huginn(key, 8, least=4),
            "far": sample_far_start(key, 10, share=0.25),
            "free": free,
            "loops": loops,
        }

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(draw))(KEYS))


def test_uniform_numbers_of_loops_come_alike(draws):
    counts = np.bincount(draws["uniform"], minlength=7)
    assert counts[:2].sum() == 0
    assert np.abs(counts[2:] / len(KEYS) - 0.2).max() < 0.03


def test_log_normal_poisson_draws_have_the_mean_and_median_of_huginn(draws):
    rng, huginn = np.random.default_rng(0), draws["huginn"]
    expected = rng.poisson(np.exp(rng.normal(np.log(32.0) - 0.125, 0.5, 100_000))) + 1
    assert abs(huginn.mean() - 33.0) < 1.0
    assert np.abs(np.quantile(huginn, [0.1, 0.5, 0.9]) / np.quantile(expected, [0.1, 0.5, 0.9]) - 1.0).max() < 0.08
    assert (draws["clipped"].min(), draws["clipped"].max()) == (4, 8)


def test_far_starts_are_a_share_of_all(draws):
    assert abs((draws["far"] > 0).mean() - 0.25) < 0.03
    assert (draws["far"].min(), draws["far"].max()) == (0, 10)
    assert np.bincount(draws["far"], minlength=11)[1:].min() > 0


def test_segments_end_within_the_loops_of_training(draws):
    segments = set(zip(draws["free"].tolist(), draws["loops"].tolist(), strict=True))
    assert segments == {(n, k) for n in range(5) for k in range(1, 6 - n)}


def test_path_independence_is_the_mean_cosine_with_the_first_end(x64):
    first, second, third = np.random.default_rng(0).normal(size=(3, 2, 4, 3))
    states = {"a": np.stack([first, second, third]), "b": np.stack([first[:, 0]] * 3)}
    joined = [np.concatenate([z.reshape(2, -1), first[:, 0]], 1) for z in (first, second, third)]
    cosine = lambda u, v: (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)  # noqa: E731
    expected = np.mean([cosine(joined[0], other) for other in joined[1:]], axis=0)
    agreement = jax.jit(path_independence)
    chex.assert_trees_all_close(agreement(states), expected, rtol=1e-12)
    for scale in (1e-200, 1e200):  # whose squares leave the range of float64
        chex.assert_trees_all_close(agreement(jax.tree.map(lambda leaf, c=scale: c * leaf, states)), expected)


@pytest.mark.parametrize(("shape", "batch_ndim"), [((4, 3), 0), ((4, 2, 3), 1), ((4, 2, 5, 3), 2), ((4, 2, 5, 3), 1)])
def test_steps_are_root_mean_squares_of_differences(shape, batch_ndim, x64):
    states = np.random.default_rng(0).normal(size=shape)
    rows = states.reshape(*shape[: 1 + batch_ndim], -1)
    expected = np.linalg.norm(rows[1:] - rows[:-1], axis=-1) / np.sqrt(rows.shape[-1])
    chex.assert_trees_all_close(step_sizes(jnp.asarray(states), batch_ndim=batch_ndim), expected, rtol=1e-6)


def test_gradients_of_steps_are_finite_at_rest():
    gradient = jax.grad(lambda states: step_sizes(states).sum())(jnp.ones((3, 2, 4)))
    np.testing.assert_array_equal(gradient, np.zeros((3, 2, 4)))


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (sample_loops, {"key": KEYS[0], "most": 3, "least": 4}),
        (sample_loops, {"key": KEYS[0], "most": 3, "distribution": "normal"}),
        (sample_far_start, {"key": KEYS[0], "horizon": 0}),
        (sample_segment, {"key": KEYS[0], "most": 0}),
        (path_independence, {"states": np.ones((1, 2, 3), np.float32)}),
        (step_sizes, {"states": np.ones((1, 2, 3), np.float32)}),
        (step_sizes, {"batch_ndim": 2, "states": np.ones((3, 2), np.float32)}),
    ],
)
def test_bad_arguments_are_named(function, options, unchecked):
    assert_names(ValueError, function, options)
