"""Calls with a known value out of range, or of another kind: an error that names the
argument."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.constrained import calls
from tests.constrained.calls import (
    LOSSES,
    ONES,
    SGD,
)
from tests.hostile.calls import calls as read
from tests.marks import types_unchecked
from unroll_jax import constrained as c

pytestmark = types_unchecked
HIDDEN = np.ones((2, 4), np.float32)
HEAD = np.ones((8, 4), np.float32)
COMPLEX = np.array([1j, 1.0, 2.0], np.complex64)
TWO = ONES[:2]
CLASH = {"a": {"b": ONES}, "a/b": ONES}
MANY = np.ones((3, 3), np.float32)
PI = c.proportional_integral
PAIR = np.array([0, 1])
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
    optimizer = c.primal_dual(
        SGD, c.dual_ascent(SGD), violations=1, order=order, start=start
    )
    return optimizer.update(ONES[:1], optimizer.init(ONES[:1]), ONES[:1], **given)


def augmented(multipliers=ONES, penalty=1.0, **options):
    return c.lagrangian(1.0, ONES, multipliers, penalty=penalty, **options)


def resilient(slacks=ONES, multipliers=ONES, resilience=1.0, violations=ONES):
    return c.lagrangian(
        1.0, violations, multipliers, slacks=slacks, resilience=resilience
    )


def lagrangian(multipliers, **options):
    return c.lagrangian(1.0, ONES, multipliers, **options)


def reported(prices=TWO, **options):
    constraints = c.descent_constraints(0.2, num_layers=2)
    return calls.report_of(constraints, LOSSES[None], prices, **options)


def two_kinds(optimizer):
    return ascent([ONES, ONES], optimizer=optimizer, kinds=["equal", "at_most"])


# By the error, the argument that its message names, and the calls.
CALLS = r"""
TypeError
objective: c.lagrangian(COMPLEX[0], ONES, ONES)
violations: c.lagrangian(1.0, COMPLEX, ONES);
    jax.jit(lambda violations: c.constraint_report(violations, violations).feasible)(ONES);
    moved(violations=COMPLEX); c.tail_mean(0.5)(COMPLEX[:, None])
alpha: jax.jit(lambda alpha: c.descent_constraints(alpha)(LOSSES))(0.2)
logits: rate(COMPLEX); kl(COMPLEX[None], COMPLEX[None])
sum of one/x: sized(COMPLEX[0])
hidden: cross_entropy(hidden=HIDDEN + 1j)
held_out_report: reported(bounds=2.0)
rows: moved_rows(0.0, 1.0)
groups: c.gap(2, at_most=0.1, groups=3)
columns of a: c.column_sums({"a": c.Constraint(3, len, 1.0)}, 1.0, None)
ValueError
levels: c.level_constraints([1.0] * 4)(LOSSES); c.level_constraints([1.0, 0.0])(LOSSES)
plain_layer_losses: c.suggest_alpha([2.0, 2.0]); c.suggest_alpha([2.0]); c.suggest_alpha([4.0, NAN])
reference: c.descent_constraints(0.2, reference=None, bounds="cumulative")
layer_losses: RATIO(-LOSSES); c.descent_warnings([1.0, NAN], [0.0])
level: c.tail_mean((0.1, 0.2))(np.ones((5, 3)))
margin: c.descent_constraints(0.2, margin=1.0)
bounds: c.descent_warnings([2.0, 1.0], [0.0], bounds=NAN, plain_losses=[2.0, 1.0])
scale of one: sized(1.0, scale=0.0); sized(1.0, scale=ONES)
groups: gap([[0], [1]]); gap([0.0, 1.0])
labels: of_classes([1, 2, 3]); of_classes([-1, 0, 1]); of_classes([1]); cross_entropy([0, -100]);
    cross_entropy([0]); cross_entropy([2**32 + 5, 0])
losses: of_classes(PAIR, ONES[:, None])
logits: rate(ONES[:, None])
where: rate(ONES, **where(1, 1)); rate(ONES, **where(-1, -1, -1))
params: norm({})
measure: norm(ONES, measure=lambda params: ONES)
reference_logits: kl(MANY, ONES)
count of one/x: sized(1.0, count=ONES); sized(1.0, count=-1.0)
bound of one: sized(1.0, bound=NAN); sized(1.0, bound=ONES)
constraints: c.column_sums({}, 1.0, None); c.batch_violations({}, 1.0, None); named({"": ONES})
means: c.violations({"a": c.norm(at_most=1.0)}, {"b": {}})
multipliers: lagrangian(NAN * ONES); lagrangian(-ONES, kinds="at_most"); moved(-ONES); reported(prices=-TWO);
    c.constraint_report(ONES, TWO); c.descent_warnings([2.0, 1.0], [NAN]); PI(0.1).update(ONES, ONES, None)
slacks: resilient(-ONES); resilient(TWO);
    c.lagrangian(1.0, ONES, ONES, slacks=ONES, resilience=1.0, kinds="equal")
resilience: resilient(resilience=None)
penalty: augmented(penalty=TWO); c.growing_penalty(1e7)
cap: ascent(cap=TWO)
start: updated(start=NAN, violations=ONES[:1])
optimizer: two_kinds(PI(0.1)); two_kinds(optax.flatten(PI(0.1)))
violations: c.constraint_report(CLASH, CLASH); c.constraint_report({}, {}); c.tail_mean(0.5)(ONES);
    updated(violations=None)
problem: updated("simultaneous", violations=ONES[:1], problem=lambda x: (x[0], x))
violations: updated("primal_dual", violations=ONES[:1], problem=lambda x: (x[0], x))
rows: moved_rows([0, 1]); moved_rows(-1, 0); moved_rows(0, 1, optimizer=IN_CALLS);
    c.take_rows(ONES, np.array([3])); c.take_rows(ONES, np.array([-1]))
order: updated("dual_primal", violations=ONES[:1])
opt_state: c.multipliers_of(optax.chain(SGD).init(ONES));
    c.multipliers_of(optax.chain(SIMULTANEOUS, SIMULTANEOUS).init(ONES));
    c.multipliers_of(optax.chain(SGD, optax.MultiSteps(SIMULTANEOUS, 2)).init(ONES))
tolerance: c.constraint_report(ONES, ONES, tolerance=NAN)
gradient: c.constraint_report(1.0, 1.0, {})
start_losses: c.descent_warnings([2.0, 1.0], [0.0], start_losses=[1.0])
weights: cross_entropy(weights=ONES[:1]); cross_entropy(weights=-TWO)
head: cross_entropy(head=HEAD[:, :2])
"""


@pytest.mark.parametrize(("error", "name", "expression"), list(read(CALLS)))
def test_a_bad_argument_is_named(error, name, expression):
    with pytest.raises(error, match=rf"\b{name}\b"):
        eval(expression, vars(calls) | globals())
