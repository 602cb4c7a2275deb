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
    (
        "levels",
        lambda levels: c.level_constraints(levels)(LOSSES),
        [1.0] * 4,
        [1.0, 0.0],
    ),
    ("plain_layer_losses", c.suggest_alpha, [2.0, 2.0], [2.0], [4.0, NAN]),
    (
        "reference",
        lambda reference: c.descent_constraints(
            0.2, reference=reference, bounds="cumulative"
        ),
        None,
    ),
    ("layer_losses", RATIO, -LOSSES),
    ("layer_losses", lambda losses: c.descent_warnings(losses, [0.0]), [1.0, NAN]),
    ("level", lambda level: c.tail_mean(level)(np.ones((5, 3))), (0.1, 0.2)),
    ("margin", lambda margin: c.descent_constraints(0.2, margin=margin), 1.0),
    (
        "bounds",
        lambda bounds: c.descent_warnings(
            [2.0, 1.0], [0.0], bounds=bounds, plain_losses=[2.0, 1.0]
        ),
        NAN,
    ),
    ("scale of one", lambda scale: sized(1.0, scale=scale), 0.0, ONES),
    ("groups", gap, [[0], [1]], [0.0, 1.0]),
    ("labels", of_classes, [1, 2, 3], [-1, 0, 1], [1]),
    ("labels", cross_entropy, [0, -100], [0]),
    ("losses", lambda losses: of_classes(PAIR, losses), ONES[:, None]),
    ("logits", rate, ONES[:, None]),
    ("where", lambda weights: rate(ONES, **where(*weights)), TWO, -ONES),
    ("params", norm, {}),
    ("measure", lambda size: norm(ONES, measure=lambda params: size), ONES),
    ("reference_logits", lambda reference: kl(MANY, reference), ONES),
    ("count of one/x", lambda count: sized(1.0, count=count), ONES, -1.0),
    ("bound of one", lambda bound: sized(1.0, bound=bound), NAN, ONES),
    ("constraints", lambda constraints: c.column_sums(constraints, 1.0, None), {}),
    ("constraints", lambda constraints: c.batch_violations(constraints, 1.0, None), {}),
    ("constraints", named, {"": ONES}),
    ("means", lambda name: c.violations({"a": c.norm(at_most=1.0)}, {name: {}}), "b"),
    ("multipliers", lagrangian, NAN * ONES),
    (
        "multipliers",
        lambda multipliers: lagrangian(multipliers, kinds="at_most"),
        -ONES,
    ),
    ("multipliers", moved, -ONES),
    ("multipliers", lambda prices: reported(prices=prices), -TWO),
    ("multipliers", lambda multipliers: c.constraint_report(ONES, multipliers), TWO),
    (
        "multipliers",
        lambda multipliers: c.descent_warnings([2.0, 1.0], multipliers),
        [NAN],
    ),
    ("multipliers", lambda missing: PI(0.1).update(ONES, ONES, missing), None),
    ("slacks", resilient, -ONES, TWO),
    (
        "slacks",
        lambda kinds: c.lagrangian(
            1.0, ONES, ONES, slacks=ONES, resilience=1.0, kinds=kinds
        ),
        "equal",
    ),
    ("resilience", lambda missing: resilient(resilience=missing), None),
    ("penalty", lambda penalty: augmented(penalty=penalty), TWO),
    ("penalty", c.growing_penalty, 1e7),
    ("cap", lambda cap: ascent(cap=cap), TWO),
    ("start", lambda start: updated(start=start, violations=ONES[:1]), NAN),
    ("optimizer", two_kinds, PI(0.1), optax.flatten(PI(0.1))),
    (
        "violations",
        lambda violations: c.constraint_report(violations, violations),
        CLASH,
        {},
    ),
    ("violations", c.tail_mean(0.5), ONES),
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
    ("rows", lambda rows: moved_rows(*rows), [[0, 1]], [-1, 0]),
    ("rows", lambda optimizer: moved_rows(0, 1, optimizer=optimizer), IN_CALLS),
    ("rows", lambda rows: c.take_rows(ONES, np.array(rows)), [3], [-1]),
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
    ("gradient", lambda gradient: c.constraint_report(1.0, 1.0, gradient), {}),
    (
        "start_losses",
        lambda losses: c.descent_warnings([2.0, 1.0], [0.0], start_losses=losses),
        [1.0],
    ),
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
        jax.jit(
            lambda violations: c.constraint_report(violations, violations).feasible
        ),
        ONES,
    ),
    ("violations", lambda violations: moved(violations=violations), COMPLEX),
    ("violations", lambda violations: c.tail_mean(0.5)(violations), COMPLEX[:, None]),
    ("alpha", jax.jit(lambda alpha: c.descent_constraints(alpha)(LOSSES)), 0.2),
    ("logits", rate, COMPLEX),
    ("logits", lambda logits: kl(logits, logits), COMPLEX[None]),
    ("sum of one/x", sized, COMPLEX[0]),
    ("hidden", lambda hidden: cross_entropy(hidden=hidden), HIDDEN + 1j),
    ("held_out_report", lambda option: reported(**{option: 2.0}), "bounds"),
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
def test_a_known_value_out_of_range_is_named(name, function, value):
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        function(value)


@pytest.mark.parametrize(("name", "function", "value"), rows(KINDS))
def test_a_value_of_another_type_is_named(name, function, value):
    with pytest.raises(TypeError, match=rf"\b{name}\b"):
        function(value)
