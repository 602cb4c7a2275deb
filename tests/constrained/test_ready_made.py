"""Ready-made constraints against their definitions in NumPy, over parts of a batch, and their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, log_softmax

from unroll_jax import constrained

RNG = np.random.default_rng(0)
LOGITS, GROUPS, LABELS = RNG.normal(size=50), RNG.integers(3, size=50), RNG.integers(2, size=50)
BATCH = {"group": GROUPS, "label": LABELS}


def groups(batch):
    return batch["group"]


def negatives(batch):
    return batch["label"] == 0


def of(constraint, outputs, batch=None, *, strict=False, parts=None):
    """The violation of one constraint, from the sums of parts of a batch."""
    constraints, ends = {"one": constraint}, [None] if parts is None else [*parts, None]
    total, start = None, None
    for end in ends:
        whole = outputs, batch
        piece = whole if parts is None else jax.tree.map(lambda x, cut=slice(start, end): x[cut], whole)
        sums = constrained.column_sums(constraints, *piece, strict=strict)
        total, start = sums if total is None else jax.tree.map(jnp.add, total, sums), end
    return constrained.violations(constraints, constrained.column_means(total))["one"]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("parts", [None, [7, 30]], ids=["whole", "parts"])
@pytest.mark.parametrize(("strict", "predictions"), [(True, LOGITS > 0.0), (False, expit(LOGITS))])
def test_rates_and_gaps_equal_their_definitions_strict_and_soft(strict, predictions, parts):
    among = LABELS == 0
    rates = np.array([predictions[(group == GROUPS) & among].mean() for group in range(3)])
    above = rates - predictions[among].mean()
    gap = constrained.gap(3, at_most=0.1, groups=groups, where=negatives)
    actual = of(gap, LOGITS, BATCH, strict=strict, parts=parts)
    np.testing.assert_allclose(actual, np.stack([above, -above]) - 0.1, atol=1e-12)
    false_positives = constrained.rate(at_most=0.3, where=negatives)
    actual = of(false_positives, LOGITS, BATCH, strict=strict, parts=parts)
    np.testing.assert_allclose(actual, predictions[among].mean() - 0.3, atol=1e-12)
    several = constrained.rate(
        at_most=0.3, where=lambda batch: negatives(batch)[:, None] & (groups(batch)[:, None] == np.arange(3))
    )
    np.testing.assert_allclose(of(several, LOGITS, BATCH, strict=strict, parts=parts), rates - 0.3, atol=1e-12)


def test_only_the_smooth_columns_have_gradients():
    constraints = {"gap": constrained.gap(3, at_most=0.1, groups=groups)}

    def total(logits, place):
        return jnp.sum(constrained.batch_violations(constraints, logits, BATCH)[place]["gap"][0])

    smooth, strict = (jax.grad(total)(jnp.asarray(LOGITS, jnp.float32), place) for place in (0, 1))
    assert np.any(smooth)
    assert not np.any(strict)


def test_the_losses_of_classes_equal_their_definition_over_parts():
    losses = np.abs(LOGITS)
    constraint = constrained.class_losses(2, at_most=0.5, labels=lambda batch: batch["label"])
    expected = [losses[label == LABELS].mean() - 0.5 for label in (0, 1)]
    np.testing.assert_allclose(of(constraint, losses, BATCH, parts=[20]), expected, rtol=1e-5)


def test_a_norm_has_a_gradient_of_zero_at_zero_and_a_part_of_the_outputs():
    params = {"a": np.ones((2, 2), np.float32), "b": np.full(3, 2.0, np.float32)}
    assert float(of(constrained.norm(at_most=2.0), params)) == pytest.approx(2.0)
    assert float(of(constrained.norm(at_most=2.0, of=lambda params: params["a"]), params)) == 0.0
    slope = jax.grad(lambda params: of(constrained.norm(at_most=2.0), params))({"a": jnp.zeros(3)})
    assert not np.any(slope["a"])  # and not NaN


def test_a_norm_of_the_users_bounds_a_lipschitz_constant():
    """The product of two layers' spectral norms, against NumPy; its gradient is finite."""

    def product(params):
        return jnp.prod(jnp.stack([jnp.linalg.norm(w, 2) for w in params]))

    weights = [RNG.normal(size=(3, 4)).astype(np.float32), RNG.normal(size=(2, 3)).astype(np.float32)]
    bound = constrained.norm(at_most=2.0, measure=product)
    expected = np.prod([np.linalg.svd(w, compute_uv=False)[0] for w in weights]) - 2.0
    np.testing.assert_allclose(of(bound, weights), expected, rtol=1e-5)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.grad(lambda weights: of(bound, weights))(weights))


@pytest.mark.usefixtures("x64")
def test_the_divergence_from_a_reference_equals_its_definition():
    logits, reference, counted = RNG.normal(size=(2, 4, 5)), RNG.normal(size=(2, 4, 5)), RNG.random((2, 4)) < 0.5
    logs, others = log_softmax(logits, -1), log_softmax(reference, -1)
    expected = np.sum(np.exp(logs) * (logs - others), -1)[counted].mean() - 0.1
    budget = constrained.kl(at_most=0.1, where=lambda counted: counted)
    np.testing.assert_allclose(of(budget, (logits, reference), counted), expected, rtol=1e-12)
    slope = jax.grad(lambda reference: of(constrained.kl(at_most=0.1), (jnp.asarray(logits), reference)))
    assert not np.any(slope(jnp.asarray(reference)))


def test_classes_that_are_masked_do_not_count_in_the_divergence():
    logits, reference = jnp.array([[0.0, 1.0, -jnp.inf]]), jnp.array([[0.5, 0.0, -jnp.inf]])
    value = jax.value_and_grad(lambda logits, reference: of(constrained.kl(at_most=0.1), (logits, reference)))
    (masked, slope), (short, expected) = value(logits, reference), value(logits[:, :2], reference[:, :2])
    np.testing.assert_allclose(masked, short, rtol=1e-6)
    np.testing.assert_allclose(slope[0], [*expected[0], 0.0], rtol=1e-6)


def test_a_loop_over_any_constraints_ends_within_its_bounds():
    """Two constraints of different outputs, with multipliers by name; the price of the norm is its slope."""
    constraints = {
        "norm": constrained.norm(at_most=1.0, of=lambda outputs: outputs["x"]),
        "first": constrained.Constraint(
            lambda outputs, batch: {"x": (outputs["x"][0], 1.0)}, lambda means: means["x"], 0.6, equality=True
        ),
    }
    import optax

    from unroll_jax import dual_ascent, lagrangian

    kinds = {"norm": "at_most", "first": "equal"}
    init, update = dual_ascent(optax.sgd(0.1), kinds=kinds)

    def step(carry, _):
        x, state = carry

        def loss(x):
            smooth, strict = constrained.batch_violations(constraints, {"x": x}, None)
            return lagrangian(jnp.sum((x - 2.0) ** 2), smooth, state.multipliers, kinds=kinds), strict

        gradient, violations = jax.grad(loss, has_aux=True)(x)
        return (x - 0.05 * gradient, update(state, violations)), None

    start = jnp.ones(2), init({"norm": jnp.zeros(()), "first": jnp.zeros(())})
    (x, state), _ = jax.jit(lambda start: jax.lax.scan(step, start, length=1000))(start)
    np.testing.assert_allclose(x, [0.6, 0.8], atol=1e-3)
    np.testing.assert_allclose(state.multipliers["norm"], 2 * (2.0 - 0.8) / 0.8, rtol=1e-2)
    sums = constrained.column_sums(constraints, {"x": x}, None)
    gradient = jax.grad(
        lambda x: lagrangian(
            jnp.sum((x - 2.0) ** 2), constrained.batch_violations(constraints, {"x": x}, None)[0], state.multipliers
        )
    )(x)
    report = constrained.held_out_report(constraints, sums, state.multipliers, gradient)
    assert report.status == "met"
    assert [(group.name, group.kind, group.status) for group in report.groups] == [
        ("first", "equal", "binding"),
        ("norm", "at_most", "binding"),
    ]
    assert report.groups[0].value == pytest.approx(0.6, abs=1e-3)
