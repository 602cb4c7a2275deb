"""One table over every public function: known values out of range, traced ones, NaN, float16, shapes, complex numbers.

A known value out of range is an error that names the argument; a traced one gives NaN, never a number; NaN in gives NaN
out; sums are in at least float32; shapes must match and do not broadcast by accident.
"""

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import unroll_jax as uj
from unroll_jax import constrained as c
from unroll_jax.constrained.lagrangian import optimal_slacks

pytestmark = pytest.mark.usefixtures("unchecked")

NAN = float("nan")
ONES, SGD = np.ones(3, np.float32), optax.sgd(0.1)
LOSSES = np.array([4.0, 2.0, 1.0], np.float32)
STEPWISE, RATIO = uj.descent_constraints(0.2), uj.descent_constraints(0.2, form="ratio")
FEATURES = np.ones((3, 1), np.float32)
HIDDEN, HEAD = np.ones((2, 4), np.float32), np.ones((8, 4), np.float32)


def first(batch):
    return batch[0]


def second(batch):
    return batch[1]


def violation(constraint, outputs, batch=None, *, strict=True):
    """Of one constraint on one batch."""
    constraints = {"one": constraint}
    sums = c.column_sums(constraints, outputs, batch, strict=strict)
    return c.violations(constraints, c.column_means(sums))["one"]


def gap(logits, groups, **options):
    return violation(c.gap(2, at_most=0.25, groups=lambda groups: groups, **options), logits, groups)


def of_classes(losses, labels, count=3):
    return violation(c.class_losses(count, at_most=1.0, labels=lambda labels: labels), losses, labels)


def rate(logits, **options):
    return violation(c.rate(at_most=0.2, **options), logits)


def kl(logits, reference, **options):
    return violation(c.kl(at_most=0.1, **options), (logits, reference))


def norm(params, **options):
    return violation(c.norm(at_most=1.0, **options), params)


def duals(multipliers):
    ascent = uj.dual_ascent(SGD)
    return ascent.update(ascent.init(3)._replace(multipliers=jnp.asarray(multipliers, jnp.float32)), ONES)


def moved_rows(violations, rows, optimizer=SGD):
    ascent = uj.dual_ascent(optimizer)
    return ascent.update(ascent.init(violations), ONES[:2], np.array(rows))


def implicit(violations, apply=lambda params, x: x @ params, features=FEATURES):
    ascent = c.implicit_dual_ascent(apply, SGD)
    return ascent.update(ascent.init(jnp.ones(1)), violations, features).params


def sized(value, bound=1.0, count=1.0):
    return violation(c.Constraint(lambda x, batch: {"x": (x, count)}, lambda means: means["x"], bound), value)


# Name of the argument in the message, and calls with known values.
BAD = {
    "alpha must be in": [lambda: c.descent_constraints(NAN), lambda: c.descent_constraints([0.2, 1.5])],
    "alpha must have one entry": [lambda: c.descent_constraints([0.2, 0.5, 0.5])(LOSSES)],
    "bounds must be one of": [lambda: c.descent_constraints(0.3, bounds="sideways")],
    "levels must be 1, 2 or 3 numbers": [lambda: c.level_constraints([1.0] * 4)(LOSSES)],
    "plain_layer_losses must end below": [lambda: c.suggest_alpha([2.0, 2.0])],
    "plain_layer_losses must hold": [lambda: c.suggest_alpha([2.0])],
    "reference must be": [
        lambda: c.descent_constraints(0.2, bounds="cumulative"),
        lambda: c.suggest_alpha([2.0, 1.0], reference=-1.0),
    ],
    "floor must be": [lambda: c.descent_constraints(0.2, floor=NAN)],
    "levels must be": [lambda: c.level_constraints([1.0, 0.0])],
    "layer_losses must be at least 0 with form 'ratio'": [lambda: RATIO(-LOSSES)],
    "level must be": [
        lambda: c.tail_mean(1.0),
        lambda: c.tail_mean(-0.1),
        lambda: c.tail_mean(()),
        lambda: c.tail_mean((0.1, 0.2))(np.ones((5, 3))),
    ],
    "violations must be (samples, constraints)": [
        lambda: c.tail_mean(0.5)(ONES),
        lambda: c.tail_mean(0.5)(np.ones((0, 2), np.float32)),
        lambda: c.mean_of_samples()(ONES),
    ],
    "sample_losses must be (samples, L + 1)": [lambda: c.sample_constraints(STEPWISE, c.tail_mean(0.5))(LOSSES)],
    "groups must be in 0..1, got 2": [lambda: gap(ONES[:2], np.array([1, 2]))],
    "groups must have shape (2,)": [lambda: gap(ONES[:2], np.array([[0], [1]])), lambda: gap(ONES[:2], np.array([1]))],
    "groups must be integers": [lambda: gap(ONES[:2], np.array([0.0, 1.0]))],
    "labels must be in 0..1, got 2": [lambda: of_classes(ONES, np.array([1, 2, 2]), 2)],
    "labels must have shape (3,)": [
        lambda: of_classes(ONES, np.array([1])),
        lambda: of_classes(ONES, np.array([[0], [1], [2]])),
    ],
    "losses must have shape (samples,)": [lambda: of_classes(ONES[:, None], np.array([0, 1, 2]))],
    "logits must have shape (samples,)": [lambda: rate(ONES[:, None]), lambda: rate(np.float32(1.0))],
    "where must have shape": [
        lambda: rate(ONES, where=lambda batch: ONES[:2]),
        lambda: kl(np.ones((2, 4)), np.ones((2, 4)), where=lambda batch: np.ones(4)),
        lambda: gap(ONES[:2], np.array([0, 1]), where=lambda batch: np.ones((2, 2))),
    ],
    "where must be at least 0": [lambda: rate(ONES, where=lambda batch: -ONES)],
    "at_most must be": [
        lambda: c.rate(at_most=1.5),
        lambda: c.gap(2, at_most=-0.1, groups=first),
        lambda: c.class_losses(2, at_most=NAN, labels=first),
        lambda: c.norm(at_most=0.0),
        lambda: c.kl(at_most=float("inf")),
    ],
    "num_groups must be at least 2": [lambda: c.gap(1, at_most=0.1, groups=first)],
    "num_classes must be at least 2": [lambda: c.class_losses(1, at_most=0.1, labels=first)],
    "params must hold at least one array": [lambda: norm({})],
    "measure must return a number": [lambda: norm(ONES, measure=lambda params: params)],
    "reference_logits must have the shape of logits, (2, 3)": [lambda: kl(np.ones((2, 3)), np.ones(3))],
    "count of one/x must have shape ()": [lambda: sized(1.0, count=ONES)],
    "count of one/x must be at least 0": [lambda: sized(1.0, count=-1.0)],
    "bound of one must be finite": [lambda: sized(1.0, bound=NAN)],
    "bound of one must be one value or have shape ()": [lambda: sized(1.0, bound=ONES)],
    "constraints must be one Constraint or more": [
        lambda: c.column_sums({}, 1.0, None),
        lambda: c.violations({"a": 3.0}, {"a": {}}),
    ],
    "means must have the names": [lambda: c.violations({"a": c.norm(at_most=1.0)}, {"b": {}})],
    "constraints must have a name": [
        lambda: c.violations(
            {
                "a": c.Constraint(lambda x, b: {}, lambda means: {"b": jnp.ones(())}, 1.0),
                "a/b": c.Constraint(lambda x, b: {}, lambda means: jnp.ones(()), 1.0),
            },
            {"a": {}, "a/b": {}},
        )
    ],
    "violations must have a name for each constraint, got ['a/b'] twice": [
        lambda: c.constraint_report({"a": {"b": 5.0}, "a/b": -1.0}, {"a": {"b": 0.0}, "a/b": 0.0})
    ],
    "violations must have a name for each constraint, got an empty one": [
        lambda: c.constraint_report({"": 5.0}, {"": 0.0})
    ],
    "objective must be a scalar": [
        lambda: c.lagrangian(ONES, ONES, ONES),
        lambda: c.augmented_lagrangian(ONES, ONES, ONES, penalty=1.0),
        lambda: c.switching_objective(ONES, ONES),
    ],
    "multipliers must be at least 0": [
        lambda: c.lagrangian(1.0, ONES, -ONES, kinds="at_most"),
        lambda: c.augmented_lagrangian(1.0, ONES, -ONES, penalty=1.0),
        lambda: c.resilient_lagrangian(1.0, ONES, ONES, -ONES, resilience=1.0),
        lambda: c.layer_weights(-ONES[:2], STEPWISE, 2),
        lambda: duals(-ONES),
        lambda: c.feasibility_report(LOSSES[None], -ONES[:2], STEPWISE),
    ],
    "multipliers must be finite": [lambda: c.lagrangian(1.0, ONES, NAN * ONES)],
    "multipliers must have shape (3,)": [
        lambda: c.lagrangian(1.0, ONES, ONES[:1]),
        lambda: c.augmented_lagrangian(1.0, ONES, ONES[:, None], penalty=1.0),
        lambda: c.constraint_report(ONES, ONES[:1]),
    ],
    "slacks must be at least 0": [lambda: c.resilient_lagrangian(1.0, ONES, -ONES, ONES, resilience=1.0)],
    "slacks must have shape (3,)": [lambda: c.resilient_lagrangian(1.0, ONES, ONES[:1], ONES, resilience=1.0)],
    "penalty must be positive": [
        lambda: c.augmented_lagrangian(1.0, ONES, ONES, penalty=-1.0),
        lambda: c.growing_penalty(0.0),
        lambda: c.bertsekas_penalty(NAN),
    ],
    "resilience must be positive": [
        lambda: c.dual_ascent(SGD, resilience=NAN),
        lambda: c.resilient_lagrangian(1.0, ONES, ONES, ONES, resilience=0.0),
    ],
    "cap must be positive": [
        lambda: c.dual_ascent(SGD, cap=NAN),
        lambda: c.proportional_integral(0.1, 0.1, cap=-1.0),
    ],
    "start must be": [
        *(lambda start=start: uj.dual_ascent(SGD).init(3, start) for start in (-0.1, (1.0, 2.0), NAN)),
        lambda: c.nu_pi(0.1, start="c"),
    ],
    "number of constraints of at least 1": [lambda: c.slack_descent(SGD).init(0)],
    "kinds must be one of": [lambda: c.dual_ascent(SGD, kinds="equals").init(2)],
    "optimizer must be one for equalities": [
        lambda: c.dual_ascent(c.proportional_integral(0.1), kinds={"a": "equal", "b": "at_most"}).init(
            {"a": ONES, "b": ONES}
        )
    ],
    "violations must be finite": [
        lambda: uj.dual_ascent(SGD).update(uj.dual_ascent(SGD).init(3), NAN * ONES),
        lambda: implicit(NAN * ONES),
    ],
    "violations must hold one for each point": [lambda: implicit(ONES[:0], features=np.ones((0, 1), np.float32))],
    "apply must return (points,)": [lambda: implicit(ONES, lambda params, x: x * params)],
    "rows must be a vector": [
        lambda: moved_rows(3, [[0, 1]]),
        lambda: moved_rows(np.float32(0.0), [0, 1]),
    ],
    "rows must be in 0..2": [lambda: moved_rows(3, [2, 7])],
    "rows must not come with optax.MultiSteps": [
        lambda: moved_rows(3, [0, 1], optax.MultiSteps(SGD, 2).gradient_transformation())
    ],
    "rows must be in": [lambda: c.take_rows(ONES, np.array([3])), lambda: c.take_rows(ONES, np.array([-1]))],
    "integral_gain must be": [
        lambda: c.nu_pi(NAN),
        lambda: c.nu_pi(-0.1),
        *(lambda gain=gain: c.proportional_integral(gain) for gain in (0.0, float("inf"), NAN)),
    ],
    "proportional_gain must be": [
        lambda: c.nu_pi(0.1, float("inf")),
        lambda: c.proportional_integral(0.1, -0.1),
    ],
    "needs the multipliers": [lambda: c.proportional_integral(0.1).update(ONES, ONES)],
    "nu must be": [lambda: c.nu_pi(0.1, nu=1.0)],
    "optimizer must be one of": [lambda: c.dual_optimizer("pid", 0.1)],
    "learning_rate and options are for a name": [lambda: c.dual_optimizer(SGD, 0.1)],
    "learning_rate is missing": [lambda: c.dual_optimizer("sgd")],
    "order must be": [lambda: c.primal_dual(SGD, c.dual_ascent(SGD), violations=2, order="both")],
    "opt_state must hold": [lambda: c.multipliers_of(SGD.init(ONES))],
    "gradient must have shape": [lambda: c.slack_descent(SGD).update(c.slack_descent(SGD).init(3), ONES[:1])],
    "weight must be": [lambda: c.proximal_smoothing(SGD, weight=-1.0)],
    "tolerance must be": [
        lambda: c.switching_objective(1.0, ONES, tolerance=-1.0),
        lambda: c.constraint_report(ONES, ONES, tolerance=NAN),
        lambda: c.feasibility_report(LOSSES[None], ONES[:2], STEPWISE, tolerance=-1.0),
    ],
    "multipliers of constraint must be at least 0, as it": [lambda: c.constraint_report(1.0, -1.0)],
    "gradient must hold": [lambda: c.constraint_report(1.0, 1.0, {})],
    "num_layers must be": [lambda: c.constraint_names(0), lambda: c.layer_weights(ONES, STEPWISE, 0)],
    "plain_layer_losses must be positive": [lambda: c.suggest_alpha([4.0, NAN])],
    "layer_losses must be finite": [lambda: c.descent_warnings([1.0, NAN], [0.0])],
    "multipliers must be finite, one": [lambda: c.descent_warnings([2.0, 1.0], [NAN])],
    "start_losses must have as many": [lambda: c.descent_warnings([2.0, 1.0], [0.0], start_losses=[1.0])],
    "chunk must be at least": [lambda: c.chunked_cross_entropy(HIDDEN, HEAD, np.array([0, 1]), chunk=0)],
    "labels must be in 0..7, got -100": [lambda: c.chunked_cross_entropy(HIDDEN, HEAD, np.array([0, -100]))],
    "labels must be in 0..7, got 8": [lambda: c.chunked_cross_entropy(HIDDEN, HEAD, np.array([8, 0]))],
    "labels must have shape (2,)": [lambda: c.chunked_cross_entropy(HIDDEN, HEAD, np.array([0]))],
    "weights must have shape (2,)": [
        lambda: c.chunked_cross_entropy(HIDDEN, HEAD, np.array([0, 1]), np.ones(1, np.float32))
    ],
    "head must have rows of d=4": [lambda: c.chunked_cross_entropy(HIDDEN, HEAD[:, :2], np.array([0, 1]))],
}
CALLS = [
    pytest.param(message, call, id=f"{message}-{at}") for message, calls in BAD.items() for at, call in enumerate(calls)
]


@pytest.mark.parametrize(("message", "call"), CALLS)
def test_a_known_value_out_of_range_is_an_error_that_names_the_argument(message, call):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


COMPLEX = np.array([1j, 1.0, 2.0])


@pytest.mark.parametrize(
    "call",
    [
        lambda: c.lagrangian(1.0, COMPLEX, ONES),
        lambda: c.augmented_lagrangian(1.0, COMPLEX, ONES, penalty=1.0),
        lambda: c.switching_objective(1.0, COMPLEX),
        lambda: c.constraint_report(COMPLEX, ONES),
        lambda: uj.dual_ascent(SGD).init(COMPLEX),
        lambda: STEPWISE(COMPLEX),
        lambda: c.tail_mean(0.5)(COMPLEX[:, None]),
        lambda: rate(COMPLEX),
        lambda: sized(COMPLEX[0]),
        lambda: implicit(COMPLEX),
        lambda: c.slack_descent(SGD).update(c.slack_descent(SGD).init(3), COMPLEX),
        lambda: c.chunked_cross_entropy(HIDDEN + 1j, HEAD, np.array([0, 1])),
        lambda: c.kl(at_most=1.0).columns((COMPLEX[None], COMPLEX[None]), None),
        lambda: c.feasibility_report(COMPLEX[None], ONES[:2], STEPWISE),
        lambda: moved_rows(3, [0.0, 1.0]),
        lambda: c.slack_descent(0.1),
        lambda: c.dual_optimizer(0.1),
    ],
)
def test_values_of_another_type_are_an_error(call):
    with pytest.raises(TypeError, match=r"must|real"):
        call()


def traced(function):
    """``function`` under jit, its array an argument."""
    return lambda array: jax.jit(function)(jnp.asarray(array))


# Functions of a traced array; the array; and where the result must be NaN (True for everywhere).
TRACED = {
    "gap, group": (lambda g: gap(jnp.ones(2), g), np.array([1, 2]), [[True, True], [True, True]]),
    "class_losses, label": (lambda y: of_classes(jnp.ones(3), y), np.array([-1, 1, 1]), [True] * 3),
    "rate, weight": (lambda w: rate(jnp.ones(3), where=lambda batch: w), -ONES, True),
    "kl, weight": (lambda w: kl(jnp.ones((3, 2)), jnp.ones((3, 2)), where=lambda batch: w), -ONES, True),
    "count": (lambda n: sized(1.0, count=n), np.float32(-1.0), True),
    "lagrangian, multiplier": (lambda m: c.lagrangian(1.0, jnp.ones(3), m, kinds="at_most"), -ONES, True),
    "augmented_lagrangian, multiplier": (
        lambda m: c.augmented_lagrangian(1.0, jnp.ones(3), m, penalty=1.0),
        -ONES,
        True,
    ),
    "augmented_lagrangian, penalty": (
        lambda rho: c.augmented_lagrangian(1.0, jnp.ones(3), jnp.ones(3), penalty=rho),
        np.float32(-1.0),
        True,
    ),
    "resilient_lagrangian, slack": (
        lambda s: c.resilient_lagrangian(1.0, jnp.ones(3), s, jnp.ones(3), resilience=1.0),
        -ONES,
        True,
    ),
    "layer_weights, multiplier": (lambda m: c.layer_weights(m, STEPWISE, 2), -ONES[:2], [True] * 3),
    "ratio of a negative loss": (RATIO, np.float32([4.0, -1.0, 1.0]), [True, True]),
    "log of a negative loss": (
        uj.descent_constraints(0.2, form="log_ratio"),
        np.float32([4.0, 2.0, -1.0]),
        [False, True],
    ),
    "switching_objective, tolerance": (
        lambda t: c.switching_objective(1.0, jnp.ones(3), tolerance=t),
        np.float32(-1.0),
        True,
    ),
    "take_rows": (lambda rows: c.take_rows(jnp.ones(3), rows), np.array([0, 3, -1]), [False, True, True]),
    "chunked_cross_entropy, label": (
        lambda y: c.chunked_cross_entropy(jnp.ones((3, 4)), jnp.ones((8, 4)), y),
        np.array([0, -100, 8]),
        [False, True, True],
    ),
    "optimal_slacks": (lambda m: optimal_slacks(m, 2.0), -ONES, [True] * 3),
}


@pytest.mark.parametrize("name", TRACED)
def test_a_traced_value_out_of_range_gives_nan_and_never_a_number(name):
    function, array, expected = TRACED[name]
    np.testing.assert_array_equal(np.isnan(traced(function)(array)), expected)


BROKEN = np.array([NAN, 3.0, 1.0], np.float32)
# The same for arrays with a NaN.
WITH_NAN = {
    "rate": (rate, BROKEN, True),
    "gap": (lambda z: gap(z, jnp.array([0, 1, 1])), BROKEN, [[True, True], [True, True]]),
    "class_losses": (lambda f: of_classes(f, jnp.array([0, 1, 2])), BROKEN, [True, False, False]),
    "norm": (lambda w: norm({"w": w}), BROKEN, True),
    "kl": (lambda z: kl(z[None], jnp.ones((1, 3))), BROKEN, True),
    "kl of a reference": (lambda z: kl(jnp.ones((1, 3)), z[None]), BROKEN, True),
    "constraint": (sized, np.float32(NAN), True),
    "batch_violations": (
        lambda z: jnp.stack([each["a"] for each in c.batch_violations({"a": c.rate(at_most=0.2)}, z, None)]),
        BROKEN,
        [True, True],
    ),
    "lagrangian": (lambda v: c.lagrangian(1.0, v, jnp.zeros(3)), BROKEN, True),
    "lagrangian, objective": (lambda f: c.lagrangian(f, jnp.ones(3), jnp.zeros(3)), np.float32(NAN), True),
    "augmented_lagrangian": (lambda v: c.augmented_lagrangian(1.0, v, jnp.zeros(3), penalty=1.0), BROKEN, True),
    "resilient_lagrangian": (
        lambda v: c.resilient_lagrangian(1.0, v, jnp.ones(3), jnp.ones(3), resilience=1.0),
        BROKEN,
        True,
    ),
    "switching_objective": (lambda v: c.switching_objective(5.0, v), BROKEN, True),
    "switching_objective, objective": (lambda f: c.switching_objective(f, jnp.ones(3)), np.float32(NAN), True),
    "stepwise": (STEPWISE, BROKEN, [True, False]),
    "ratio": (RATIO, BROKEN, [True, False]),
    "log_ratio": (uj.descent_constraints(0.2, form="log_ratio"), BROKEN, [True, False]),
    "cumulative": (
        uj.descent_constraints(0.2, reference=4.0, bounds="cumulative"),
        BROKEN,
        [True, False, False],
    ),
    "levels": (c.level_constraints([1.0, 1.0, 1.0]), BROKEN, [True, False, False]),
    "tail_mean": (lambda v: c.tail_mean(0.5)(v[:, None]), BROKEN, [True]),
    "mean_of_samples": (lambda v: c.mean_of_samples()(v[:, None]), BROKEN, [True]),
    "feasibility_report": (
        lambda f: c.feasibility_report(f[None], jnp.zeros(2), STEPWISE).ratios,
        BROKEN,
        [True, False],
    ),
    "feasibility_report, shares": (
        lambda f: c.feasibility_report(f[None], jnp.zeros(2), STEPWISE).descending,
        BROKEN,
        [True, False],
    ),
    "chunked_cross_entropy": (
        lambda h: c.chunked_cross_entropy(h[:, None] * jnp.ones(4), jnp.ones((8, 4)), jnp.array([0, 1, 2])),
        BROKEN,
        [True, False, False],
    ),
    "nu_pi": (lambda g: c.nu_pi(0.1).update(g, c.nu_pi(0.1).init(jnp.zeros(3)))[0], BROKEN, [True, False, False]),
    "proportional_integral": (
        lambda g: c.proportional_integral(0.1).update(g, jnp.zeros(3), jnp.zeros(3))[0],
        BROKEN,
        [True, False, False],
    ),
    "slack_descent": (
        lambda g: c.slack_descent(SGD).update(c.slack_descent(SGD).init(3), g).slacks,
        BROKEN,
        [True, False, False],
    ),
}


@pytest.mark.parametrize("name", WITH_NAN)
def test_nan_in_gives_nan_out_there_and_nowhere_else(name):
    function, array, expected = WITH_NAN[name]
    np.testing.assert_array_equal(np.isnan(traced(function)(array)), expected)


MANY = 70_000
MANY_ONES = np.ones(MANY, np.float16)
# Functions of 70,000 float16 values of 1, which float16 neither counts nor sums; and their result.
HALF = {
    "rate": (lambda z: rate(z), 0.8),
    "gap": (lambda z: gap(z, jnp.arange(MANY) % 2)[0], [-0.25, -0.25]),
    "class_losses": (lambda f: of_classes(f, jnp.arange(MANY) % 3), [0.0, 0.0, 0.0]),
    "norm": (lambda w: norm(300.0 * w[:4]), 599.0),
    "kl": (lambda z: kl(z[:, None] * jnp.ones(2, z.dtype), jnp.zeros((MANY, 2), z.dtype)), -0.1),
    "lagrangian": (lambda v: c.lagrangian(0.0, v, v), MANY),
    "augmented_lagrangian": (lambda v: c.augmented_lagrangian(0.0, v, 0 * v, penalty=2.0), MANY),
    "resilient_lagrangian": (lambda v: c.resilient_lagrangian(0.0, v, v, 0 * v, resilience=2.0), MANY),
    "tail_mean": (lambda v: c.tail_mean(0.5)(v[:, None]), [1.0]),
    "mean_of_samples": (lambda v: c.mean_of_samples()(v[:, None]), [1.0]),
    "sample_constraints": (
        lambda f: c.sample_constraints(STEPWISE, c.mean_of_samples())(f[:, None] * jnp.array([1.0, 0.5], f.dtype)),
        [-0.3],
    ),
    "feasibility_report": (
        lambda f: c.feasibility_report(f[:, None] * jnp.ones(2, f.dtype), jnp.zeros(1), STEPWISE).layer_losses,
        [1.0, 1.0],
    ),
    "implicit": (
        lambda v: (
            c.implicit_dual_ascent(lambda p, x: x @ p, optax.sgd(1.0), kind="equal")
            .update(
                c.implicit_dual_ascent(lambda p, x: x @ p, optax.sgd(1.0)).init(jnp.zeros(1, v.dtype)), v, v[:, None]
            )
            .params
        ),
        [1.0],
    ),
}


@pytest.mark.parametrize("name", HALF)
def test_sums_are_in_at_least_float32(name):
    function, expected = HALF[name]
    np.testing.assert_allclose(traced(function)(MANY_ONES), expected, rtol=2e-3, atol=2e-4)


def test_values_left_out_count_neither_in_values_nor_in_gradients():
    """Also NaN, and a label out of range, where the weight is 0."""
    logits, mask = jnp.array([NAN, 2.0, -1.0]), jnp.array([False, True, True])

    def total(logits):
        ones, zeros = jnp.ones((3, 4)), jnp.zeros((3, 2))
        left = rate(logits, where=lambda batch: mask)
        left += jnp.sum(gap(logits, jnp.array([-1, 0, 1]), where=lambda batch: mask))
        left += kl(logits[:, None] * jnp.array([1.0, 2.0]), zeros, where=lambda batch: mask)
        return left + jnp.sum(c.chunked_cross_entropy(ones, ones, jnp.array([-100, 0, 1]), mask.astype(jnp.float32)))

    value, gradient = jax.jit(jax.value_and_grad(total))(logits)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    assert gradient[0] == 0.0


def test_a_norm_of_complex_parameters_is_real():
    assert float(norm({"w": np.array([3 + 4j])})) == 4.0
    gradient = jax.grad(lambda w: norm(w).real)(jnp.array([3 + 4j]))
    np.testing.assert_allclose(np.conj(gradient), [0.6 + 0.8j], rtol=1e-6)


def test_a_mean_over_no_sample_is_unknown_in_reports_and_zero_in_training():
    constraints = {"loss": c.class_losses(3, at_most=1.0, labels=lambda labels: labels)}
    losses, labels = jnp.array([3.0, 2.0]), jnp.array([0, 0])
    smooth, strict = jax.jit(lambda losses: c.batch_violations(constraints, losses, labels))(losses)
    np.testing.assert_allclose(smooth["loss"], [1.5, 0.0, 0.0])
    np.testing.assert_allclose(strict["loss"], [1.5, 0.0, 0.0])
    gradient = jax.grad(lambda losses: jnp.sum(c.batch_violations(constraints, losses, labels)[0]["loss"]))(losses)
    np.testing.assert_allclose(gradient, [0.5, 0.5])
    sums = c.column_sums(constraints, losses, labels)
    report = c.held_out_report(constraints, sums, {"loss": jnp.zeros(3)}, tolerance=2.0)
    assert (report.groups[0].status, report.feasible) == ("no samples", False)
    met = jax.tree.map(jnp.add, sums, c.column_sums(constraints, jnp.array([0.5, 0.5]), jnp.array([1, 2])))
    assert c.held_out_report(constraints, met, {"loss": jnp.zeros(3)}, tolerance=2.0).feasible


def test_traced_classes_and_counts_out_of_range_are_unknown_in_every_class():
    labels = {"g": c.class_losses(2, at_most=0.5, labels=lambda batch: batch)}
    groups = {"g": c.gap(2, at_most=0.05, groups=lambda batch: batch)}
    counted = {"g": c.Constraint(lambda x, n: {"x": (jnp.sum(x), n)}, lambda means: means["x"], bound=1.0)}
    for one, batch in ((labels, jnp.array([2, 2, 2])), (groups, jnp.array([1, 2, 2])), (counted, jnp.array(-2.0))):
        both = jax.jit(lambda x, batch: c.batch_violations(one, x, batch))(jnp.ones(3), batch)  # noqa: B023
        assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(both))


def test_a_traced_negative_multiplier_of_a_state_gives_nan():
    init, update = uj.dual_ascent(optax.sgd(0.2))
    state = init(2)._replace(multipliers=jnp.array([-1.0, 0.0]))
    np.testing.assert_allclose(jax.jit(update)(state, jnp.ones(2)).multipliers, [np.nan, 0.2])


def test_a_report_names_a_gradient_that_is_not_finite_and_a_multiplier_that_has_wound_up():
    report = uj.constraint_report(jnp.array(-1.0), jnp.array(0.0), jnp.array([np.nan]))
    assert report.status == "not finite"
    assert "nan" in report.verdict
    report = uj.constraint_report(jnp.array([0.0, -1.0]), jnp.array([1.0, 17500.0]))
    assert report.status == "met, wound up"
    assert "Binding" not in report.verdict


def test_the_table_has_every_public_function():
    text = inspect.getsource(inspect.getmodule(violation))
    functions = [name for name in c.__all__ if inspect.isfunction(getattr(c, name))]
    assert not [name for name in functions if f"c.{name}(" not in text and f"uj.{name}(" not in text]
