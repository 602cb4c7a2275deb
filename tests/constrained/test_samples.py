"""Constraints on the worst samples and on every one."""

import cvxpy
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

import unroll_jax as uj
from tests import reference
from tests.constrained.of_losses import lagrangian
from unroll_jax.constrained import mean_of_samples

SAMPLES = np.random.default_rng(0).normal(size=(37, 3)) + np.array([0.5, -1.0, 0.0])
LEVELS = [0.0, 0.25, 0.5, 0.9, 0.99]


def tail_reference(violations, level):
    """min_t t + mean([c - t]_+) / (1 - q): piecewise linear in t, so least at one of the samples."""
    bounds = violations + np.maximum(violations[None] - violations[:, None], 0.0).mean(axis=1) / (1.0 - level)
    return bounds.min(axis=0)


@jax.jit
def tails(samples):
    """At every level, in one program."""
    return {level: uj.tail_mean(level)(samples) for level in (*LEVELS, 0.75, 0.95)}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("count", [1, 10, 37])
def test_the_tail_mean_is_the_least_of_its_bounds(count):
    for level, actual in tails(SAMPLES[:count]).items():
        expected = tail_reference(SAMPLES[:count], level)
        np.testing.assert_allclose(actual, expected, rtol=1e-12, err_msg=str(level))


@pytest.mark.usefixtures("x64")
def test_the_tail_of_a_normal_distribution_has_its_closed_form():
    """CVaR_q of N(0, 1) is density(quantile(q)) / (1 - q); here of 100,001 quantiles in the place of samples."""
    tail_means = tails(scipy.stats.norm.ppf((np.arange(100_001) + 0.5) / 100_001)[:, None])
    for level in (0.5, 0.9):
        expected = scipy.stats.norm.pdf(scipy.stats.norm.ppf(level)) / (1.0 - level)
        np.testing.assert_allclose(tail_means[level], [expected], rtol=1e-4, err_msg=str(level))


@pytest.mark.usefixtures("x64")
def test_every_constraint_may_have_its_own_level():
    levels = (0.0, 0.5, 0.9)
    expected = [tail_reference(SAMPLES[:, i : i + 1], level)[0] for i, level in enumerate(levels)]
    np.testing.assert_allclose(jax.jit(uj.tail_mean(levels))(SAMPLES), expected, rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_the_gradient_weighs_the_worst_samples_alone():
    """Against central differences, at a point without ties."""
    gradients = jax.jit(lambda c: {q: jax.grad(lambda c, q=q: jnp.sum(uj.tail_mean(q)(c)))(c) for q in LEVELS})
    for level, gradient in gradients(SAMPLES).items():
        width, expected = 1e-6, np.zeros_like(SAMPLES)
        for place in np.ndindex(*SAMPLES.shape):
            ends = []
            for sign in (1.0, -1.0):
                moved = SAMPLES.copy()
                moved[place] += sign * width
                ends.append(tail_reference(moved, level)[place[1]])
            expected[place] = (ends[0] - ends[1]) / (2.0 * width)
        np.testing.assert_allclose(gradient, expected, atol=1e-8, err_msg=str(level))
        weighed = np.count_nonzero(np.abs(np.asarray(gradient)) > 1e-12, axis=0)
        assert np.all(weighed == np.ceil(37 * (1.0 - level) - 1e-9)), level


@pytest.mark.usefixtures("x64")
def test_ties_share_weights_that_a_subgradient_may_have():
    """Non-negative, at most 1 / (N (1 - q)), summing to 1, and none on samples below the tie."""
    tied = np.array([[2.0], [1.0], [2.0], [2.0], [0.0], [3.0]])
    gradient = np.asarray(jax.jit(jax.grad(lambda c: uj.tail_mean(0.6)(c)[0]))(tied))[:, 0]
    np.testing.assert_allclose(np.sum(gradient), 1.0, rtol=1e-12)
    assert np.all((gradient >= 0.0) & (gradient <= 1.0 / (6 * 0.4) + 1e-12))
    assert gradient[1] == gradient[4] == 0.0


@pytest.mark.usefixtures("x64")
def test_a_tail_within_its_bound_leaves_the_stated_share_of_samples_without_a_violation():
    """What a mean within its bound does not."""
    skewed = np.random.default_rng(1).exponential(size=(200, 3)) * np.array([-1.0, 1.0, 5.0])
    for level, tail in tails(skewed).items():
        assert np.all((skewed - np.asarray(tail) <= 1e-9).mean(axis=0) >= level), level
    mean_met = skewed - skewed.mean(axis=0)
    assert np.any((mean_met <= 1e-9).mean(axis=0) < 0.5)


@pytest.mark.usefixtures("x64")
def test_the_mean_of_samples_is_the_constraint_on_mean_losses():
    losses = np.random.default_rng(2).uniform(1.0, 4.0, size=(20, 4))
    plain = uj.descent_constraints((0.1, 0.5, 0.9), reference=2.0)
    sampled = uj.sample_constraints(plain, mean_of_samples())

    @jax.jit
    def run(losses, means, multipliers):
        values = lagrangian(losses, multipliers, sampled), lagrangian(means, multipliers, plain)
        return sampled(losses), values

    violations, (actual, expected) = run(losses, losses.mean(axis=0), np.array([0.1, 0.0, 2.0, 0.5]))
    by_hand = reference.violations(losses.mean(axis=0), (0.1, 0.5, 0.9), 2.0)
    np.testing.assert_allclose(violations, by_hand, rtol=1e-12)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


TARGETS = np.random.default_rng(3).exponential(size=(30, 2))
BEFORE = np.random.default_rng(4).uniform(1.0, 2.0, size=30)  # f_0 of each sample
LEVEL, ALLOWANCE, STEPS = 0.8, 1.7, 30_000  # the least tail is 1.53, that of the least mean 2.07


def known_tail_solution():
    """min mean f_1 under CVaR_q(f_1 - (1 - alpha) f_0) <= allowance, f_1 = 1/2 |x - target|^2, by cvxpy."""
    x, threshold = cvxpy.Variable(2), cvxpy.Variable()
    losses = [0.5 * cvxpy.sum_squares(x - target) for target in TARGETS]
    excess = [cvxpy.pos(loss - 0.8 * before - threshold) for loss, before in zip(losses, BEFORE, strict=True)]
    tail = threshold + sum(excess) / (30 * (1.0 - LEVEL)) <= ALLOWANCE
    cvxpy.Problem(cvxpy.Minimize(sum(losses) / 30), [tail]).solve()
    return x.value, float(tail.dual_value)


@pytest.mark.usefixtures("x64")
def test_training_under_a_tail_constraint_ends_at_the_known_solution():
    plain, dual = uj.descent_constraints(0.2), uj.dual_ascent(optax.sgd(optax.cosine_decay_schedule(0.05, STEPS)))

    def sample_losses(x):
        after = 0.5 * jnp.sum((x - TARGETS) ** 2, axis=1)
        return jnp.stack([jnp.asarray(BEFORE), after], axis=1)

    constraints = uj.sample_constraints(plain, lambda c: uj.tail_mean(LEVEL)(c) - ALLOWANCE)

    def objective(x, multipliers):
        return lagrangian(sample_losses(x), multipliers, constraints)

    optimizer = optax.sgd(optax.cosine_decay_schedule(0.05, STEPS))

    def step(carry, _):
        x, opt_state, duals = carry
        updates, opt_state = optimizer.update(jax.grad(objective)(x, duals.multipliers), opt_state)
        x = optax.apply_updates(x, updates)
        return (x, opt_state, dual.update(duals, constraints(sample_losses(x)))), None

    start = (jnp.zeros(2), optimizer.init(jnp.zeros(2)), dual.init(1))
    (x, _, duals), _ = jax.jit(lambda carry: jax.lax.scan(step, carry, length=STEPS))(start)
    solution, multiplier = known_tail_solution()
    assert multiplier > 0.05
    np.testing.assert_allclose(x, solution, atol=1e-3)
    np.testing.assert_allclose(duals.multipliers, [multiplier], atol=1e-3)
