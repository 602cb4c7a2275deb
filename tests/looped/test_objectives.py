"""Constraints and losses of loops against NumPy, draws against their distributions, and the measure of agreement."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax.constrained import sample_constraints, tail_mean
from unroll_jax.looped import (
    all_loops_loss,
    never_rise,
    path_independence,
    sample_far_start,
    sample_loops,
    sample_segment,
    step_sizes,
)

KEYS = jax.random.split(jax.random.key(3), 4000)


@pytest.mark.parametrize("batch", [(), (4,), (2, 4)])
def test_a_window_may_not_rise_above_its_start_or_the_floor(batch, x64):
    losses = np.random.default_rng(0).uniform(0.01, 2.0, (*batch, 6))
    expected = losses[..., 1:] / np.maximum(losses[..., :1], 0.5) - 1.0
    chex.assert_trees_all_close(never_rise(0.5)(jnp.asarray(losses)), expected, rtol=1e-12, atol=1e-14)


def test_no_start_is_rewarded_for_a_larger_loss():
    assert jax.grad(lambda f: never_rise(0.5)(f).sum())(jnp.array([1.0, 2.0, 3.0])).tolist() == [0.0, 1.0, 1.0]


def test_the_worst_samples_alone_count_on_tails():
    losses = jnp.array([[1.0, 3.0], [1.0, 0.5], [1.0, 0.5], [1.0, 0.5]])
    assert sample_constraints(never_rise(0.1), tail_mean(0.75))(losses).tolist() == [2.0]
    assert sample_constraints(never_rise(0.1), tail_mean(0.0))(losses).tolist() == [0.125]


def test_the_loss_before_the_first_loop_does_not_count():
    losses = jnp.array([9.0, 2.0, 4.0])
    assert float(all_loops_loss(losses)) == 3.0
    assert jax.grad(all_loops_loss)(losses).tolist() == [0.0, 0.5, 0.5]


def test_uniform_numbers_of_loops_come_alike():
    draws = np.asarray(jax.vmap(lambda key: sample_loops(key, 6, least=2))(KEYS))
    counts = np.bincount(draws, minlength=7)
    assert counts[:2].sum() == 0
    assert np.abs(counts[2:] / len(KEYS) - 0.2).max() < 0.03


def test_log_normal_poisson_draws_have_the_mean_and_median_of_huginn():
    draw = lambda key: sample_loops(key, 500, distribution="log_normal_poisson", mean=32.0)  # noqa: E731
    draws = np.asarray(jax.vmap(draw)(KEYS))
    rng = np.random.default_rng(0)
    expected = rng.poisson(np.exp(rng.normal(np.log(32.0) - 0.125, 0.5, 100_000))) + 1
    assert abs(draws.mean() - 33.0) < 1.0
    assert np.abs(np.quantile(draws, [0.1, 0.5, 0.9]) / np.quantile(expected, [0.1, 0.5, 0.9]) - 1.0).max() < 0.08
    clipped = np.asarray(jax.vmap(lambda key: sample_loops(key, 8, distribution="log_normal_poisson", least=4))(KEYS))
    assert (clipped.min(), clipped.max()) == (4, 8)


def test_far_starts_are_a_share_of_all():
    draws = np.asarray(jax.vmap(lambda key: sample_far_start(key, 10, share=0.25))(KEYS))
    assert abs((draws > 0).mean() - 0.25) < 0.03
    assert (draws.min(), draws.max()) == (0, 10)
    assert np.bincount(draws, minlength=11)[1:].min() > 0


def test_segments_end_within_the_loops_of_training():
    free, loops = (np.asarray(part) for part in jax.vmap(lambda key: sample_segment(key, 5))(KEYS))
    assert set(zip(free.tolist(), loops.tolist(), strict=True)) == {(n, k) for n in range(5) for k in range(1, 6 - n)}


def test_path_independence_is_the_mean_cosine_with_the_first_end(x64):
    first, second, third = np.random.default_rng(0).normal(size=(3, 2, 4, 3))
    states = {"a": jnp.stack([first, second, third]), "b": jnp.stack([first[:, 0]] * 3)}
    joined = [np.concatenate([z.reshape(2, -1), first[:, 0]], 1) for z in (first, second, third)]
    cosine = lambda u, v: (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)  # noqa: E731
    expected = np.mean([cosine(joined[0], other) for other in joined[1:]], axis=0)
    chex.assert_trees_all_close(path_independence(states), expected, rtol=1e-12)


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
    ("call", "message"),
    [
        (lambda: never_rise(0.0), "floor must be positive"),
        (lambda: never_rise(0.1)(jnp.ones(1)), "layer_losses must hold f_0..f_L"),
        (lambda: all_loops_loss(jnp.ones(1)), "losses must be f_0..f_L"),
        (lambda: all_loops_loss(jnp.ones((2, 3))), "losses must be f_0..f_L"),
        (lambda: sample_loops(KEYS[0], 3, least=4), "least must be at most most=3, got 4"),
        (lambda: sample_loops(KEYS[0], 3, distribution="normal"), "distribution must be one of"),
        (lambda: sample_far_start(KEYS[0], 0), "horizon must be at least 1"),
        (lambda: sample_segment(KEYS[0], 0), "most must be at least 1"),
        (lambda: path_independence(jnp.ones((1, 2, 3))), "states must be (starts"),
        (lambda: step_sizes(jnp.ones((1, 2, 3))), "states must be (loops + 1"),
        (lambda: step_sizes(jnp.ones((3, 2)), batch_ndim=2), "states must be (loops + 1"),
    ],
)
def test_bad_arguments_are_named(call, message, unchecked):
    with pytest.raises(ValueError, match="must") as caught:
        call()
    assert message in str(caught.value)
