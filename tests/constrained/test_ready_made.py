"""Ready-made constraints against their definitions in NumPy, and their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, log_softmax

from unroll_jax import constrained

RNG = np.random.default_rng(0)
LOGITS, GROUPS, LABELS = RNG.normal(size=50), RNG.integers(3, size=50), RNG.integers(2, size=50)


def gaps(predictions, tolerance):
    """|rate of a group - rate of all| in both directions, less the tolerance, group by group."""
    gap = np.array([predictions[group == GROUPS].mean() for group in range(3)]) - predictions.mean()
    return np.stack([gap - tolerance, -gap - tolerance])


@pytest.mark.usefixtures("x64")
def test_gaps_of_rates_equal_their_definitions_strict_and_soft():
    constraint = constrained.demographic_parity(3, tolerance=0.1)
    for function, predictions in ((constraint.strict, LOGITS > 0.0), (constraint.surrogate, expit(LOGITS))):
        np.testing.assert_allclose(function(LOGITS, GROUPS), gaps(predictions, 0.1), atol=1e-12)


def test_only_surrogates_have_gradients():
    constraint = constrained.demographic_parity(3, tolerance=0.1)
    slope = {
        name: jax.grad(lambda z, f=function: jnp.sum(f(z, GROUPS)[0]))(jnp.asarray(LOGITS, jnp.float32))
        for name, function in constraint._asdict().items()
    }
    assert np.any(slope["surrogate"])
    assert not np.any(slope["strict"])


def test_a_group_without_samples_is_met():
    constraint = constrained.demographic_parity(4, tolerance=0.1)
    np.testing.assert_allclose(constraint.strict(jnp.asarray(LOGITS), GROUPS)[:, 3], -0.1, rtol=1e-6)
    losses = constrained.worst_class_loss(3, at_most=1.0)(jnp.array([2.0, 3.0]), jnp.array([0, 0]))
    assert losses.tolist() == [1.5, 0.0, 0.0]


def test_the_losses_of_classes_equal_their_definition():
    losses = np.abs(LOGITS)
    actual = constrained.worst_class_loss(2, at_most=0.5)(jnp.asarray(losses), LABELS)
    np.testing.assert_allclose(actual, [losses[label == LABELS].mean() - 0.5 for label in (0, 1)], rtol=1e-5)


def test_norms_are_shares_of_their_bounds():
    params = {"a": np.ones((2, 2), np.float32), "b": np.full(3, 2.0, np.float32)}
    assert float(constrained.norm_bound(at_most=2.0)(params)) == pytest.approx(1.0)
    slope = jax.grad(constrained.norm_bound(at_most=2.0))({"a": jnp.zeros(3)})
    assert not np.any(slope["a"])  # and not NaN


@pytest.mark.usefixtures("x64")
def test_the_divergence_from_a_reference_equals_its_definition():
    logits, reference, counted = RNG.normal(size=(2, 4, 5)), RNG.normal(size=(2, 4, 5)), RNG.random((2, 4)) < 0.5
    logs, others = log_softmax(logits, -1), log_softmax(reference, -1)
    expected = np.sum(np.exp(logs) * (logs - others), -1)[counted].mean() - 0.1
    budget = constrained.kl_budget(at_most=0.1)
    np.testing.assert_allclose(budget(logits, reference, counted), expected, rtol=1e-12)
    assert not np.any(jax.grad(budget, 1)(jnp.asarray(logits), jnp.asarray(reference)))
    assert float(budget(logits, logits)) == pytest.approx(-0.1)


def test_classes_that_are_masked_do_not_count_in_the_divergence():
    logits, reference = jnp.array([0.0, 1.0, -jnp.inf]), jnp.array([0.5, 0.0, -jnp.inf])
    budget = constrained.kl_budget(at_most=0.1)
    np.testing.assert_allclose(budget(logits, reference), budget(logits[:2], reference[:2]), rtol=1e-6)
    slope = jax.grad(budget)(logits, reference)
    np.testing.assert_allclose(slope, [*jax.grad(budget)(logits[:2], reference[:2]), 0.0], rtol=1e-6)


def test_float16_counts_samples_and_squares_in_float32():
    groups = np.arange(140_000) % 2
    logits = jnp.asarray(1.0 - 2.0 * groups, jnp.float16)
    gaps = constrained.demographic_parity(2, tolerance=0.25).strict(logits, groups)
    np.testing.assert_allclose(gaps, [[0.25, -0.75], [-0.75, 0.25]], atol=1e-6)
    losses = constrained.worst_class_loss(2, at_most=1.0)(jnp.ones(140_000, jnp.float16), groups)
    np.testing.assert_allclose(losses, 0.0, atol=1e-6)
    assert float(constrained.norm_bound(at_most=1.0)(jnp.full(4, 300.0, jnp.float16))) == 599.0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: constrained.demographic_parity(1, tolerance=0.1), "num_groups must be at least 2"),
        (lambda: constrained.demographic_parity(2, tolerance=2.0), r"tolerance must be in \[0, 1\]"),
        (lambda: constrained.kl_budget(at_most=0.0), "at_most must be positive and finite"),
        (lambda: constrained.norm_bound(at_most=float("inf")), "at_most must be positive and finite"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_norm_of_the_users_bounds_a_lipschitz_constant():
    """The product of two layers' spectral norms, against NumPy; its gradient is finite."""

    def product(params):
        return jnp.prod(jnp.stack([jnp.linalg.norm(w, 2) for w in params]))

    weights = [RNG.normal(size=(3, 4)).astype(np.float32), RNG.normal(size=(2, 3)).astype(np.float32)]
    bound = constrained.norm_bound(at_most=2.0, norm=product)
    expected = np.prod([np.linalg.svd(w, compute_uv=False)[0] for w in weights]) / 2.0 - 1.0
    np.testing.assert_allclose(bound(weights), expected, rtol=1e-5)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.grad(bound)(weights))
    with pytest.raises(TypeError, match="norm must be a function"):
        constrained.norm_bound(at_most=2.0, norm=3.0)
