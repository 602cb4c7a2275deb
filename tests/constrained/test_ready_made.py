"""Ready-made constraints against their definitions in NumPy, over parts of a batch,
and their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, log_softmax

from tests.constrained.calls import violation
from unroll_jax import constrained as c
from unroll_jax import lagrangian

RNG = np.random.default_rng(0)
LOGITS, GROUPS, LABELS = (
    RNG.normal(size=50),
    RNG.integers(3, size=50),
    RNG.integers(2, size=50),
)
BATCH = {"group": GROUPS, "label": LABELS}


def groups(batch):
    return batch["group"]


def negatives(batch):
    return batch["label"] == 0


READY_MADE = {
    "gap": c.gap(3, at_most=0.1, groups=groups, where=negatives),
    "rate": c.rate(at_most=0.3, where=negatives),
    "rates": c.rate(
        at_most=0.3,
        where=lambda b: negatives(b)[:, None] & (groups(b)[:, None] == np.arange(3)),
    ),
    "losses": c.class_losses(
        2, at_most=0.5, labels=lambda batch: batch["label"], of=jnp.abs
    ),
}


@pytest.mark.usefixtures("x64")
def test_rates_gaps_and_losses_equal_their_definitions_strict_and_soft():
    """Strict ones of the whole batch, soft ones of sums over three parts of it."""
    among = LABELS == 0

    @jax.jit
    def run(*given):
        ways = [{"strict": True}, {"strict": False, "parts": (7, 30)}]
        return [
            {name: violation(one, *given, **way) for name, one in READY_MADE.items()}
            for way in ways
        ]

    for predictions, actual in zip(
        (LOGITS > 0.0, expit(LOGITS)), run(LOGITS, BATCH), strict=True
    ):
        rates = np.array(
            [predictions[(group == GROUPS) & among].mean() for group in range(3)]
        )
        above = rates - predictions[among].mean()
        expected = {
            "gap": np.stack([above, -above]) - 0.1,
            "rate": predictions[among].mean() - 0.3,
            "rates": rates - 0.3,
            "losses": [
                np.abs(LOGITS)[label == LABELS].mean() - 0.5 for label in (0, 1)
            ],
        }
        for name in READY_MADE:
            np.testing.assert_allclose(
                actual[name], expected[name], atol=1e-12, err_msg=name
            )


def test_only_the_smooth_columns_have_gradients():
    def totals(logits):
        both = c.batch_violations(
            {"gap": READY_MADE["gap"], "rate": READY_MADE["rate"]}, logits, BATCH
        )
        return jnp.stack([jnp.sum(each["gap"][0]) + each["rate"] for each in both])

    smooth, strict = jax.jit(jax.jacrev(totals))(jnp.asarray(LOGITS, jnp.float32))
    slope = expit(LOGITS) * (1.0 - expit(LOGITS)) * (LABELS == 0)
    counts = np.bincount(GROUPS[LABELS == 0])[GROUPS]
    total = np.sum(LABELS == 0)
    np.testing.assert_allclose(
        smooth, slope * (1.0 / counts - 3.0 / total + 1.0 / total), rtol=1e-4, atol=1e-7
    )
    assert not np.any(strict)


def test_a_norm_has_a_gradient_of_zero_at_zero_and_a_part_of_the_outputs():
    whole, part = (
        c.norm(at_most=2.0),
        c.norm(at_most=2.0, of=lambda params: params["a"]),
    )

    @jax.jit
    def run(params, zeros):
        return (
            violation(whole, params),
            violation(part, params),
            jax.grad(lambda params: violation(whole, params))(zeros),
        )

    value, value_of_part, slope = run(
        {"a": np.ones((2, 2)), "b": np.full(3, 2.0)}, {"a": np.zeros(3)}
    )
    assert float(value) == pytest.approx(2.0)
    assert float(value_of_part) == 0.0
    assert not np.any(slope["a"])  # and not NaN


@pytest.mark.usefixtures("x64")
def test_the_divergence_from_a_reference_equals_its_definition():
    """No gradient flows to the reference; classes that are masked do not count."""
    logits, reference, counted = (
        RNG.normal(size=(2, 4, 5)),
        RNG.normal(size=(2, 4, 5)),
        RNG.random((2, 4)) < 0.5,
    )
    logs, others = log_softmax(logits, -1), log_softmax(reference, -1)
    expected = np.sum(np.exp(logs) * (logs - others), -1)[counted].mean() - 0.1
    masked = [
        np.concatenate([each, np.full((2, 4, 1), -np.inf)], axis=-1)
        for each in (logits, reference)
    ]
    budget = c.kl(at_most=0.1, where=lambda counted: counted)
    run = jax.jit(
        jax.value_and_grad(lambda *pair: violation(budget, pair, counted), (0, 1))
    )
    (value, slopes), (other, others) = run(logits, reference), run(*masked)
    np.testing.assert_allclose([value, other], expected, rtol=1e-12)
    assert not np.any(slopes[1])
    np.testing.assert_allclose(
        others[0], np.pad(slopes[0], ((0, 0), (0, 0), (0, 1))), rtol=1e-10, atol=1e-14
    )
    assert np.any(slopes[0])


def test_a_report_on_held_out_samples_judges_bounds_and_equalities_at_their_prices():
    """At the minimiser of |x - 2|^2 subject to |x| <= 1 and x_0 = 0.6, with the
    prices of its stationarity."""
    constraints = {
        "norm": c.norm(at_most=1.0),
        "first": c.Constraint(
            lambda x, batch: {"x": (x[0], 1.0)},
            lambda means: means["x"],
            0.6,
            equality=True,
        ),
    }
    prices, kinds = {"norm": 3.0, "first": 1.0}, {"norm": "at_most", "first": "equal"}

    def value(x):
        violations, _ = c.batch_violations(constraints, x, None)
        return lagrangian(jnp.sum((x - 2.0) ** 2), violations, prices, kinds=kinds)

    run = jax.jit(lambda x: (c.column_sums(constraints, x, None), jax.grad(value)(x)))
    sums, slope = run(np.float32([0.6, 0.8]))
    report = c.held_out_report(constraints, sums, prices, slope)
    assert report.status == "met"
    assert [(group.name, group.kind, group.status) for group in report.groups] == [
        ("first", "equal", "binding"),
        ("norm", "at_most", "binding"),
    ]
    assert report.groups[0].value == pytest.approx(0.6)
