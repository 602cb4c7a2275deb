"""One table of errors: a known value out of range, or of another kind, is an error
that names the argument."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.constrained import calls
from tests.constrained.calls import (
    LOSSES,
    NAN,
    ONES,
    RATIO,
    SGD,
    STEPWISE,
    kl,
    norm,
    rate,
    sized,
)
from unroll_jax import constrained as c
from unroll_jax.constrained.transformation import ORDERS

pytestmark = pytest.mark.usefixtures("unchecked")
HIDDEN, HEAD = np.ones((2, 4), np.float32), np.ones((8, 4), np.float32)
COMPLEX, TWO = np.array([1j, 1.0, 2.0], np.complex64), ONES[:2]
CLASH = {"a": {"b": ONES}, "a/b": ONES}
INFINITY, MANY = float("inf"), np.ones((3, 3), np.float32)
PI, PAIR = c.proportional_integral, np.array([0, 1])
IN_CALLS = optax.MultiSteps(SGD, 2).gradient_transformation()
SIMULTANEOUS = c.primal_dual(SGD, c.dual_ascent(SGD), violations=1)


def cross_entropy(labels=PAIR, weights=None, hidden=HIDDEN, head=HEAD, **options):
    return c.chunked_cross_entropy(hidden, head, np.array(labels), weights, **options)


def where(*weights):
    return {"where": lambda batch: np.array(weights, np.float32)}


def gap(groups, logits=TWO, **options):
    return calls.gap(logits, np.array(groups), **options)


def of_classes(labels, losses=ONES, **options):
    return calls.of_classes(losses, np.array(labels), **options)


def ascent(violations=3, start=0.0, optimizer=SGD, **options):
    return c.dual_ascent(optimizer, **options).init(violations, start)


def moved(multipliers=0.0 * ONES, violations=ONES, rows=None, optimizer=SGD):
    state = ascent(jnp.asarray(multipliers), optimizer=optimizer)._replace(
        multipliers=jnp.asarray(multipliers)
    )
    return c.dual_ascent(optimizer).update(state, violations, rows)


def moved_rows(*rows, **options):
    return moved(violations=TWO, rows=np.array(rows), **options)


def named(values):
    constraints = {
        name: c.Constraint(len, lambda means, value=value: value, 1.0)
        for name, value in values.items()
    }
    return c.violations(constraints, {name: {} for name in values})


def updated(order="simultaneous", start=0.0, **given):
    options = {"order": order, "start": start}
    optimizer = c.primal_dual(SGD, c.dual_ascent(SGD), violations=1, **options)
    return optimizer.update(ONES[:1], optimizer.init(ONES[:1]), ONES[:1], **given)


def augmented(multipliers=ONES, penalty=1.0, **options):
    return c.lagrangian(1.0, ONES, multipliers, penalty=penalty, **options)


def resilient(slacks=ONES, multipliers=ONES, resilience=1.0, violations=ONES):
    options = {"slacks": slacks, "resilience": resilience}
    return c.lagrangian(1.0, violations, multipliers, **options)


def lagrangian(multipliers, **options):
    return c.lagrangian(1.0, ONES, multipliers, **options)


def reported(losses=LOSSES[None], prices=TWO, **options):
    constraints = c.descent_constraints(0.2, num_layers=2)
    prices = dict(zip(("layer 1", "layer 2"), prices, strict=True))
    sums = c.column_sums(constraints, losses, None)
    return c.held_out_report(constraints, sums, prices, **options)


def held_out(price):
    return c.held_out_report(
        {"a": c.norm(at_most=1.0)}, {"a": {"norm": (1.0, 1.0)}}, {"a": price}
    )


def two_kinds(optimizer):
    return ascent([ONES, ONES], optimizer=optimizer, kinds=["equal", "at_most"])


# The argument that the message names; a function; and known values of it that are out
# of range.
VALUES = [
    ("bounds", lambda bounds: c.descent_constraints(0.3, bounds=bounds), "sideways"),
    ("form", lambda form: c.descent_constraints(0.3, form=form), "square"),
    ("form", lambda form: c.level_constraints(1.0, form=form), "square"),
    (
        "levels",
        lambda levels: c.level_constraints(levels)(LOSSES),
        [1.0] * 4,
        [1.0, 0.0],
        NAN,
    ),
    ("plain_layer_losses", c.suggest_alpha, [2.0, 2.0], [2.0], [4.0, NAN]),
    (
        "reference",
        lambda reference: c.descent_constraints(
            0.2, reference=reference, bounds="cumulative"
        ),
        None,
        -1.0,
    ),
    (
        "reference",
        lambda reference: c.suggest_alpha([2.0, 1.0], reference=reference),
        -1.0,
        NAN,
    ),
    ("floor", lambda floor: c.descent_constraints(0.2, floor=floor), NAN, -1.0),
    ("layer_losses", RATIO, -LOSSES, LOSSES[:1]),
    ("layer_losses", lambda losses: c.descent_warnings(losses, [0.0]), [1.0, NAN]),
    ("level", c.tail_mean, 1.0, -0.1, NAN, ()),
    ("level", lambda level: c.tail_mean(level)(np.ones((5, 3))), (0.1, 0.2)),
    ("layer_losses", reported, LOSSES[None, None], LOSSES[:2]),
    ("margin", lambda margin: c.descent_constraints(0.2, margin=margin), 1.0, -0.1),
    (
        "alpha",
        lambda alpha: c.descent_constraints(alpha, num_layers=3),
        [0.1, 0.2],
        1.0,
    ),
    (
        "bounds",
        lambda bounds: c.descent_warnings(
            [2.0, 1.0], [0.0], bounds=bounds, plain_losses=[2.0, 1.0]
        ),
        NAN,
    ),
    ("scale of one", lambda scale: sized(1.0, scale=scale), 0.0, NAN, ONES),
    ("groups", gap, [1, 2], [-1, 0], [[0], [1]], [1], [0.0, 1.0]),
    (
        "labels",
        of_classes,
        [1, 2, 3],
        [-1, 0, 1],
        [1],
        [[0], [1], [2]],
        [0.0, 1.0, 2.0],
    ),
    ("labels", cross_entropy, [0, -100], [8, 0], [0]),
    ("losses", lambda losses: of_classes(PAIR, losses), ONES[:, None]),
    ("logits", rate, ONES[:, None], np.float32(1.0)),
    ("where", lambda weights: rate(ONES, **where(*weights)), TWO, -ONES),
    ("where", lambda weights: kl(MANY, MANY, **where(*weights)), TWO, MANY, -ONES),
    ("where", lambda weights: gap(PAIR, **where(*weights)), ONES, [TWO, TWO]),
    ("where", lambda weights: of_classes([0, 1, 2], **where(*weights)), TWO, MANY),
    ("at_most", lambda bound: c.rate(at_most=bound), 1.5, NAN),
    ("at_most", lambda bound: c.gap(2, at_most=bound, groups=len), -0.1),
    ("at_most", lambda bound: c.class_losses(2, at_most=bound, labels=len), NAN),
    ("at_most", lambda bound: c.norm(at_most=bound), 0.0, NAN),
    ("at_most", lambda bound: c.kl(at_most=bound), INFINITY),
    ("num_groups", lambda count: c.gap(count, at_most=0.1, groups=len), 1),
    ("num_classes", lambda count: c.class_losses(count, at_most=0.1, labels=len), 1),
    ("params", norm, {}),
    ("measure", lambda size: norm(ONES, measure=lambda params: size), ONES),
    ("reference_logits", lambda reference: kl(MANY, reference), ONES, TWO),
    (
        "reference_logits",
        lambda reference: kl(MANY, reference, **where(*ONES)),
        ONES,
        MANY[:1],
    ),
    ("count of one/x", lambda count: sized(1.0, count=count), ONES, -1.0),
    ("bound of one", lambda bound: sized(1.0, bound=bound), NAN, ONES),
    (
        "constraints",
        lambda constraints: c.column_sums(constraints, 1.0, None),
        {},
        {"a": 3.0},
    ),
    (
        "constraints",
        lambda constraints: c.batch_violations(constraints, 1.0, None),
        {},
        {"a": 3.0},
    ),
    ("constraints", named, {"": ONES}, CLASH),
    ("means", lambda name: c.violations({"a": c.norm(at_most=1.0)}, {name: {}}), "b"),
    (
        "objective",
        lambda objective: c.lagrangian(objective, ONES, ONES, penalty=1.0),
        ONES,
    ),
    (
        "objective",
        lambda objective: c.lagrangian(
            objective, ONES, ONES, slacks=ONES, resilience=1.0
        ),
        ONES,
    ),
    ("multipliers", lagrangian, NAN * ONES, TWO, {"a": ONES}),
    (
        "multipliers",
        lambda multipliers: lagrangian(multipliers, kinds="at_most"),
        -ONES,
    ),
    (
        "multipliers",
        lambda prices: c.lagrangian(
            1.0, [ONES] * 2, prices, kinds=["equal", "at_most"]
        ),
        [-ONES] * 2,
    ),
    ("multipliers", augmented, -ONES, ONES[:, None]),
    ("multipliers", moved, -ONES),
    ("multipliers", lambda prices: reported(prices=prices), -TWO),
    (
        "multipliers",
        lambda multipliers: c.constraint_report(ONES, multipliers),
        TWO,
        -ONES,
    ),
    ("multipliers", held_out, -1.0),
    (
        "multipliers",
        lambda multipliers: c.descent_warnings([2.0, 1.0], multipliers),
        [NAN],
    ),
    ("multipliers", lambda missing: PI(0.1).update(ONES, ONES, missing), None),
    ("multipliers", lambda multipliers: resilient(multipliers=multipliers), -ONES, TWO),
    ("slacks", resilient, -ONES, TWO),
    (
        "slacks",
        lambda kinds: c.lagrangian(
            1.0, ONES, ONES, slacks=ONES, resilience=1.0, kinds=kinds
        ),
        "equal",
    ),
    ("resilience", lambda missing: resilient(resilience=missing), None),
    ("penalty", lambda penalty: augmented(penalty=penalty), -1.0, TWO),
    ("penalty", c.growing_penalty, 0.0, NAN, 1e7),
    ("factor", lambda factor: c.growing_penalty(1.0, factor=factor), 0.5),
    ("increment", lambda increment: c.growing_penalty(1.0, increment=increment), -1.0),
    ("shrinkage", lambda shrinkage: c.growing_penalty(1.0, shrinkage=shrinkage), 1.5),
    ("maximum", lambda maximum: c.growing_penalty(1.0, maximum=maximum), NAN),
    ("resilience", lambda resilience: resilient(resilience=resilience), 0.0),
    ("cap", lambda cap: ascent(cap=cap), NAN, TWO, 0.0),
    ("cap", lambda cap: PI(0.1, 0.1, cap=cap), -1.0),
    ("start", lambda start: c.nu_pi(0.1, start=start), "c"),
    ("start", lambda start: updated(start=start, violations=ONES[:1]), -1.0, NAN, TWO),
    (
        "optimizer",
        two_kinds,
        PI(0.1),
        optax.chain(optax.ema(0.5), PI(0.1)),
        optax.flatten(PI(0.1)),
    ),
    ("violations", ascent, CLASH, {"": ONES}),
    (
        "violations",
        lambda violations: c.constraint_report(violations, violations),
        CLASH,
        {"": 5.0},
        {},
    ),
    ("violations", c.tail_mean(0.5), ONES, np.ones((0, 2), np.float32)),
    ("violations", lambda missing: updated(violations=missing), None),
    *(
        (
            "problem" if order == "simultaneous" else "violations",
            lambda given, order=order: updated(
                order, violations=given, problem=lambda x: (x[0], x)
            ),
            ONES[:1],
        )
        for order in ORDERS
    ),
    ("rows", lambda rows: moved_rows(*rows), [[0, 1]], [2, 7], [-1, 0]),
    ("rows", lambda rows: moved(np.float32(0.0), TWO, rows), PAIR),
    ("rows", lambda optimizer: moved_rows(0, 1, optimizer=optimizer), IN_CALLS),
    ("rows", lambda rows: c.take_rows(ONES, np.array(rows)), [3], [-1]),
    ("integral_gain", c.nu_pi, NAN, -0.1),
    ("integral_gain", PI, 0.0, INFINITY, NAN),
    ("proportional_gain", lambda gain: c.nu_pi(0.1, gain), INFINITY),
    ("order", lambda order: updated(order, violations=ONES[:1]), "dual_primal"),
    (
        "opt_state",
        lambda several: c.multipliers_of(optax.chain(*several).init(ONES)),
        [SGD],
        [SIMULTANEOUS] * 2,
    ),
    # Gradients are averaged over calls, and violations are not.
    (
        "opt_state",
        lambda dual: c.multipliers_of(
            optax.chain(SGD, optax.MultiSteps(dual, 2)).init(ONES)
        ),
        SIMULTANEOUS,
    ),
    (
        "tolerance",
        lambda tolerance: c.constraint_report(ONES, ONES, tolerance=tolerance),
        NAN,
    ),
    ("tolerance", lambda tolerance: c.growing_penalty(1.0, tolerance=tolerance), -1.0),
    ("gradient", lambda gradient: c.constraint_report(1.0, 1.0, gradient), {}),
    ("num_layers", lambda count: c.descent_constraints(0.2, num_layers=count), 0),
    ("num_layers", lambda count: c.level_constraints(0.2, num_layers=count), -1),
    (
        "start_losses",
        lambda losses: c.descent_warnings([2.0, 1.0], [0.0], start_losses=losses),
        [1.0],
    ),
    ("chunk", lambda chunk: cross_entropy(chunk=chunk), 0),
    ("weights", lambda weights: cross_entropy(weights=weights), ONES[:1], -TWO),
    ("head", lambda head: cross_entropy(head=head), HEAD[:, :2]),
]
# The same for values of another kind: not real numbers, traced where a value must be
# known, or no function.
KINDS = [
    ("objective", lambda objective: c.lagrangian(objective, ONES, ONES), COMPLEX[0]),
    ("violations", lambda violations: c.lagrangian(1.0, violations, ONES), COMPLEX),
    (
        "violations",
        lambda violations: c.lagrangian(1.0, violations, ONES, penalty=1.0),
        COMPLEX,
    ),
    ("violations", lambda violations: resilient(violations=violations), COMPLEX),
    ("violations", lambda violations: c.constraint_report(violations, ONES), COMPLEX),
    (
        "violations",
        jax.jit(
            lambda violations: c.constraint_report(violations, violations).feasible
        ),
        ONES,
    ),
    ("violations", ascent, COMPLEX),
    ("violations", lambda violations: moved(violations=violations), COMPLEX),
    ("violations", lambda violations: c.tail_mean(0.5)(violations), COMPLEX[:, None]),
    (
        "layer_losses",
        STEPWISE,
        COMPLEX,
        None,
        "4, 2, 1",
        [[1.0], [1.0, 2.0]],
        np.array([True, False]),
    ),
    ("alpha", jax.jit(lambda alpha: c.descent_constraints(alpha)(LOSSES)), 0.2),
    ("logits", rate, COMPLEX),
    ("logits", lambda logits: kl(logits, logits), COMPLEX[None]),
    ("sum of one/x", sized, COMPLEX[0]),
    ("hidden", lambda hidden: cross_entropy(hidden=hidden), HIDDEN + 1j),
    ("layer_losses", reported, COMPLEX[None]),
    (
        "held_out_report",
        lambda option: reported(**{option: 2.0}),
        "bounds",
        "resilience",
    ),
    ("rows", lambda rows: moved_rows(*rows), [0.0, 1.0]),
    ("groups", lambda groups: c.gap(2, at_most=0.1, groups=groups), 3),
    (
        "columns of a",
        lambda columns: c.column_sums(
            {"a": c.Constraint(columns, len, 1.0)}, 1.0, None
        ),
        3,
    ),
]


def rows(table):
    return [
        pytest.param(name, function, value, id=f"{name}-{row}-{at}")
        for row, (name, function, *values) in enumerate(table)
        for at, value in enumerate(values)
    ]


@pytest.mark.parametrize(("name", "function", "value"), rows(VALUES))
def test_a_known_value_out_of_range_is_an_error_that_names_the_argument(
    name, function, value
):
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        function(value)


@pytest.mark.parametrize(("name", "function", "value"), rows(KINDS))
def test_values_of_another_type_are_an_error(name, function, value):
    with pytest.raises(TypeError, match=rf"\b{name}\b"):
        function(value)
