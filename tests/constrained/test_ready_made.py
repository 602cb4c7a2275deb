"""Ready-made constraints against their definitions in NumPy, over parts of a batch,
and their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, log_softmax

from tests.constrained.calls import report_of, violation
from tests.marks import in_float64
from tests.reference import compiled
from unroll_jax import constrained as c

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=50)
GROUPS = RNG.integers(3, size=50)
LABELS = RNG.integers(2, size=50)
BATCH = {"group": GROUPS, "label": LABELS}


def groups(batch):
    return batch["group"]


def negatives(batch):
    return batch["label"] == 0


READY_MADE = {
    "gap": c.gap(3, at_most=0.1, groups=groups, where=negatives),
    "gap between": c.gap(3, at_most=0.1, groups=groups, where=negatives, between=True),
    "rate": c.rate(at_most=0.3, where=negatives),
    "rates": c.rate(
        at_most=0.3,
        where=lambda b: negatives(b)[:, None] & (groups(b)[:, None] == np.arange(3)),
    ),
    "losses": c.class_losses(
        2, at_most=0.5, labels=lambda batch: batch["label"], of=jnp.abs
    ),
}


@in_float64
def test_rates_gaps_and_losses_equal_their_definitions_strict_and_soft():
    """Strict ones of the whole batch, soft ones of sums over three parts of it."""
    among = LABELS == 0

    @compiled
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
        # the distance to the rate of all may be half of that between two groups
        pairs = rates[[0, 0, 1]] - rates[[1, 2, 2]]
        expected = {
            "gap": np.stack([above, -above]) - 0.1,
            "gap between": np.stack([pairs, -pairs]) - 0.1,
            "rate": predictions[among].mean() - 0.3,
            "rates": rates - 0.3,
            "losses": [
                np.abs(LOGITS)[label == LABELS].mean() - 0.5 for label in (0, 1)
            ],
        }
        for name in READY_MADE:
            assert_allclose(actual[name], expected[name], atol=1e-12, err_msg=name)


def test_only_the_smooth_columns_have_gradients():
    def totals(logits, batch):
        both = c.batch_violations(
            {"gap": READY_MADE["gap"], "rate": READY_MADE["rate"]}, logits, batch
        )
        return jnp.stack([jnp.sum(each["gap"][0]) + each["rate"] for each in both])

    # BATCH is an argument: JAX keeps the buffer of a closed-over array in int32, and
    # hands it to the next program that takes the array, though that one has 64 bits
    smooth, strict = compiled(jax.jacrev(totals))(
        jnp.asarray(LOGITS, jnp.float32), BATCH
    )
    slope = expit(LOGITS) * (1.0 - expit(LOGITS)) * (LABELS == 0)
    counts = np.bincount(GROUPS[LABELS == 0])[GROUPS]
    total = np.sum(LABELS == 0)
    assert_allclose(
        smooth, slope * (1.0 / counts - 3.0 / total + 1.0 / total), rtol=1e-4, atol=1e-7
    )
    assert not np.any(strict)


@in_float64
def test_the_divergence_from_a_reference_equals_its_definition():
    """No gradient flows to the reference. Classes that are masked do not count."""
    logits = RNG.normal(size=(2, 4, 5))
    reference = RNG.normal(size=(2, 4, 5))
    counted = RNG.random((2, 4)) < 0.5
    logs = log_softmax(logits, -1)
    others = log_softmax(reference, -1)
    expected = np.sum(np.exp(logs) * (logs - others), -1)[counted].mean() - 0.1
    one_more = ((0, 0), (0, 0), (0, 1))
    masked = [
        np.pad(each, one_more, constant_values=-np.inf) for each in (logits, reference)
    ]
    budget = c.kl(at_most=0.1, where=lambda counted: counted)
    run = compiled(
        jax.value_and_grad(lambda *pair: violation(budget, pair, counted), (0, 1))
    )
    (value, slopes), (other, others) = run(logits, reference), run(*masked)
    assert_allclose([value, other], expected, rtol=1e-12)
    assert not np.any(slopes[1])
    assert_allclose(others[0], np.pad(slopes[0], one_more), rtol=1e-10, atol=1e-14)
    assert np.any(slopes[0])


def test_a_held_out_report_judges_equalities():
    mean = c.Constraint(
        lambda x, batch: {"x": (x, 1.0)}, lambda m: m["x"], 0.6, equality=True
    )
    for value, status in ((0.6, "binding"), (0.5, "violated"), (0.7, "violated")):
        (group,) = report_of({"x": mean}, jnp.asarray(value), 1.0).groups
        assert (group.kind, group.status) == ("equal", status)
        assert group.value == pytest.approx(value)


INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32"]


def test_labels_and_groups_of_every_width_count():
    """300 classes, of which an int8 holds 128: known and traced labels alike."""
    labels = np.array([0, 1, 127, 1])
    values = np.float32([1.0, 2.0, 4.0, 4.0])
    every = [labels.astype(kind) for kind in INTEGERS]
    negative = [-labels.astype(kind) for kind in ("int8", "int16", "int32")]
    whole = c.class_losses(300, at_most=1.0, labels=lambda labels: labels)
    pairs = c.gap(256, at_most=0.0, groups=lambda labels: labels)

    def run(values, labels):
        (losses, counts), rates = (
            whole.columns(values, labels)["classes"],
            pairs.strict(values, labels)["groups"],
        )
        return losses, counts, rates[1]

    @compiled
    def run_all(traced, negative):
        counted = [run(values, labels) for labels in (*every, *traced)]
        return counted, [run(values, labels)[0] for labels in negative]

    counted, unknown = run_all(every, negative)
    for losses, counts, members in counted:
        assert_array_equal(
            losses, np.bincount(labels, values, minlength=300).astype(np.float32)
        )
        assert_array_equal(counts, np.bincount(labels, minlength=300))
        assert_array_equal(members, np.bincount(labels, minlength=256))
    assert all(np.isnan(losses).all() for losses in unknown)


def test_norms_and_gradients_of_any_size_equal_float64():
    """A real and a complex leaf. Squares of 1e25 are infinite in float32. At 0 the
    gradient is 0."""
    part = c.norm(at_most=2.0, of=lambda params: params["a"])

    @compiled
    def run(params):
        norm_of = lambda params: c.norm(at_most=1.0).columns(params, None)["norm"][0]
        return *jax.value_and_grad(norm_of)(params), violation(part, params)

    for size in (0.0, 1e-38, 1e-25, 1e-3, 1.0, 1e12, 1e25, 6e37):
        b = np.complex64([[4j * size], [0.0]])
        params = {"a": np.float32([3.0 * size]), "b": b}
        value, slope, of_part = run(params)
        expected = [0.6, -0.8j, 0.0] if size else np.zeros(3)
        assert_allclose(np.float64(value), 5.0 * size, rtol=1e-5)
        assert slope["b"].shape == b.shape
        slopes = np.concatenate([np.ravel(leaf) for leaf in slope.values()])
        assert_allclose(slopes, expected, rtol=1e-5, err_msg=str(size))
        assert_allclose(np.float64(of_part), 3.0 * size - 2.0, rtol=1e-5)


SINGULAR = {  # values at means of a and b, in JAX and in NumPy, and b of the first group
    "a pole": (lambda xp, a, b: a / (1.0 - b), 0.25),
    "a logarithm": (lambda xp, a, b: a + xp.log(1.0 - 2.0 * b), 0.25),
    "a root": (lambda xp, a, b: a + xp.sqrt(b - 1.0), 5.0),
    "a negative root": (lambda xp, a, b: a * xp.sqrt(-b), -2.0),
}


@in_float64
def test_a_column_without_a_sample_leaves_the_others_alone():
    """Of three groups one has no sample, or none has one: 0 there, without gradient,
    also where the value is singular at many means."""
    groups = {name: b * np.array([1.0, 1.5, 0.0]) for name, (_, b) in SINGULAR.items()}

    def constraint(value):
        return c.Constraint(
            lambda x, n: {"a": (x["a"], 1.0), "b": (x["b"] * n, n)},
            lambda means: value(jnp, means["a"], means["b"]),
            1.0,
        )

    def total(x, n, value):
        both = c.batch_violations({"one": constraint(value)}, x, n)
        return jnp.sum(both[0]["one"]), [each["one"] for each in both]

    @compiled
    def run(groups, n):
        slope = jax.value_and_grad(total, has_aux=True)
        return {
            name: slope({"a": 4.0, "b": b}, n, SINGULAR[name][0])
            for name, b in groups.items()
        }

    for n in (np.array([1.0, 2.0, 0.0]), np.zeros(3)):
        for name, ((_, both), slope) in run(groups, n).items():
            there = groups[name][n > 0.0]
            value = lambda a: SINGULAR[name][0](np, a, there)  # noqa: B023
            expected = np.append(value(4.0) - 1.0, np.zeros(3 - len(there)))
            for violations in both:
                assert_allclose(violations, expected, rtol=1e-12, err_msg=name)
            near = np.sum(value(4.0 + 1e-6) - value(4.0 - 1e-6)) / 2e-6
            assert_allclose(slope["a"], near, atol=1e-8, err_msg=name)
            assert np.all(np.isfinite(slope["b"])), name
            assert slope["b"][2] == 0.0, name
