"""One table of errors: a known value out of range, or of another kind, is an error that names the argument."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.constrained.calls import (
    LOSSES,
    NAN,
    ONES,
    RATIO,
    SGD,
    STEPWISE,
    gap,
    implicit,
    kl,
    norm,
    of_classes,
    rate,
    sized,
)
from unroll_jax import constrained as c

pytestmark = pytest.mark.usefixtures("unchecked")

HIDDEN, HEAD = np.ones((2, 4), np.float32), np.ones((8, 4), np.float32)
COMPLEX, TWO = np.array([1j, 1.0, 2.0], np.complex64), ONES[:2]
CLASH = {"a": {"b": ONES}, "a/b": ONES}
PI = c.proportional_integral
INFINITY = float("inf")


def cross_entropy(labels, weights=None, hidden=HIDDEN, head=HEAD, **options):
    return c.chunked_cross_entropy(hidden, head, np.array(labels), weights, **options)


def ascent(violations=3, start=0.0, optimizer=SGD, **options):
    return c.dual_ascent(optimizer, **options).init(violations, start)


def moved(multipliers=0.0 * ONES, violations=ONES, rows=None, optimizer=SGD, **options):
    state = ascent(jnp.asarray(multipliers), optimizer=optimizer)._replace(multipliers=jnp.asarray(multipliers))
    return c.dual_ascent(optimizer, **options).update(state, violations, rows)


def named(one, other):
    """Violations of two constraints by these names."""
    constraints = {name: c.norm(at_most=1.0) for name in (one, other)}
    return c.violations(constraints, {name: {"norm": jnp.ones(())} for name in constraints})


def updated(order="simultaneous", **given):
    optimizer = c.primal_dual(SGD, c.dual_ascent(SGD), violations=1, order=order)
    return optimizer.update(ONES[:1], optimizer.init(ONES[:1]), ONES[:1], **given)


def accumulated():
    """The state of a mistake: gradients are averaged over calls, and violations are not."""
    dual = c.primal_dual(SGD, c.dual_ascent(SGD), violations=1)
    return optax.chain(optax.clip(1.0), in_calls(dual)).init(ONES)


def in_calls(optimizer):
    return optax.MultiSteps(optimizer, 2).gradient_transformation()


# The argument that the message names; calls with known values that are out of range.
VALUES = {
    "alpha": [
        *(lambda alpha=alpha: c.descent_constraints(alpha) for alpha in (NAN, 0.0, [0.2, 1.5])),
        lambda: c.descent_constraints([0.2, 0.5, 0.5])(LOSSES),
    ],
    "bounds": [lambda: c.descent_constraints(0.3, bounds="sideways")],
    "form": [lambda: c.descent_constraints(0.3, form="square"), lambda: c.level_constraints(1.0, form="square")],
    "levels": [lambda: c.level_constraints([1.0] * 4)(LOSSES), lambda: c.level_constraints([1.0, 0.0])],
    "plain_layer_losses": [lambda values=values: c.suggest_alpha(values) for values in ([2.0, 2.0], [2.0], [4.0, NAN])],
    "reference": [
        lambda: c.descent_constraints(0.2, bounds="cumulative"),
        lambda: c.suggest_alpha([2.0, 1.0], reference=-1.0),
    ],
    "floor": [lambda: c.descent_constraints(0.2, floor=NAN)],
    "layer_losses": [
        lambda: RATIO(-LOSSES),
        lambda: STEPWISE(LOSSES[:1]),
        lambda: c.descent_warnings([1.0, NAN], [0.0]),
    ],
    "level": [
        *(lambda level=level: c.tail_mean(level) for level in (1.0, -0.1, NAN, ())),
        lambda: c.tail_mean((0.1, 0.2))(np.ones((5, 3))),
    ],
    "sample_losses": [
        lambda: c.sample_constraints(STEPWISE, c.tail_mean(0.5))(LOSSES),
        lambda: c.feasibility_report(LOSSES[None][:0], TWO, STEPWISE),
    ],
    "groups": [
        lambda: gap(TWO, np.array([1, 2])),
        lambda: gap(TWO, np.array([-1, 0])),
        lambda: gap(TWO, np.array([[0], [1]])),
        lambda: gap(TWO, np.array([1])),
        lambda: gap(TWO, np.array([0.0, 1.0])),
    ],
    "labels": [
        lambda: of_classes(ONES, np.array([1, 2, 2]), 2),
        lambda: of_classes(ONES, np.array([1])),
        lambda: of_classes(ONES, np.array([[0], [1], [2]])),
        lambda: cross_entropy([0, -100]),
        lambda: cross_entropy([8, 0]),
        lambda: cross_entropy([0]),
    ],
    "losses": [lambda: of_classes(ONES[:, None], np.array([0, 1, 2]))],
    "logits": [lambda: rate(ONES[:, None]), lambda: rate(np.float32(1.0))],
    "where": [
        lambda: rate(ONES, where=lambda batch: TWO),
        lambda: rate(ONES, where=lambda batch: -ONES),
        lambda: kl(np.ones((2, 4)), np.ones((2, 4)), where=lambda batch: np.ones(4)),
        lambda: kl(np.ones((2, 4)), np.ones((2, 4)), where=lambda batch: np.ones((2, 1))),
        lambda: gap(TWO, np.array([0, 1]), where=lambda batch: np.ones((2, 2))),
        lambda: of_classes(ONES, np.array([0, 1, 2]), where=lambda batch: np.ones((3, 3))),
    ],
    "at_most": [
        lambda: c.rate(at_most=1.5),
        lambda: c.gap(2, at_most=-0.1, groups=len),
        lambda: c.class_losses(2, at_most=NAN, labels=len),
        lambda: c.norm(at_most=0.0),
        lambda: c.kl(at_most=INFINITY),
    ],
    "num_groups": [lambda: c.gap(1, at_most=0.1, groups=len)],
    "num_classes": [lambda: c.class_losses(1, at_most=0.1, labels=len)],
    "params": [lambda: norm({})],
    "measure": [lambda: norm(ONES, measure=lambda params: params)],
    "reference_logits": [lambda: kl(np.ones((2, 3)), np.ones(3))],
    "count of one/x": [lambda: sized(1.0, count=ONES), lambda: sized(1.0, count=-1.0)],
    "bound of one": [lambda: sized(1.0, bound=NAN), lambda: sized(1.0, bound=ONES)],
    "constraints": [
        lambda: c.column_sums({}, 1.0, None),
        lambda: c.violations({"a": 3.0}, {"a": {}}),
        lambda: c.batch_violations({"a": 3.0}, 1.0, None),
        lambda: named("a", ""),
    ],
    "means": [lambda: c.violations({"a": c.norm(at_most=1.0)}, {"b": {}})],
    "objective": [
        lambda: c.lagrangian(ONES, ONES, ONES),
        lambda: c.augmented_lagrangian(ONES, ONES, ONES, penalty=1.0),
        lambda: c.resilient_lagrangian(ONES, ONES, ONES, ONES, resilience=1.0),
        lambda: c.switching_objective(ONES, ONES),
    ],
    "multipliers": [
        lambda: c.lagrangian(1.0, ONES, -ONES, kinds="at_most"),
        lambda: c.lagrangian(
            1.0, {"a": ONES, "b": ONES}, {"a": -ONES, "b": -ONES}, kinds={"a": "equal", "b": "at_most"}
        ),
        lambda: c.lagrangian(1.0, ONES, NAN * ONES),
        lambda: c.lagrangian(1.0, ONES, TWO),
        lambda: c.lagrangian(1.0, {"a": ONES}, {"b": ONES}),
        lambda: c.augmented_lagrangian(1.0, ONES, -ONES, penalty=1.0),
        lambda: c.augmented_lagrangian(1.0, ONES, ONES[:, None], penalty=1.0),
        lambda: c.resilient_lagrangian(1.0, ONES, ONES, -ONES, resilience=1.0),
        lambda: moved(-ONES),
        lambda: c.feasibility_report(LOSSES[None], -TWO, STEPWISE),
        lambda: c.feasibility_report(LOSSES[None], ONES, STEPWISE),
        lambda: c.constraint_report(ONES, TWO),
        lambda: c.constraint_report(1.0, -1.0),
        lambda: c.held_out_report({"a": c.norm(at_most=1.0)}, {"a": {"norm": (1.0, 1.0)}}, {"a": -1.0}),
        lambda: c.descent_warnings([2.0, 1.0], [NAN]),
        lambda: PI(0.1).update(ONES, ONES),
    ],
    "slacks": [
        lambda: c.resilient_lagrangian(1.0, ONES, -ONES, ONES, resilience=1.0),
        lambda: c.resilient_lagrangian(1.0, ONES, TWO, ONES, resilience=1.0),
    ],
    "penalty": [
        lambda: c.augmented_lagrangian(1.0, ONES, ONES, penalty=-1.0),
        lambda: c.augmented_lagrangian(1.0, ONES, ONES, penalty=TWO),
        lambda: c.dual_ascent(None, penalty=INFINITY),
        *(lambda penalty=penalty: c.growing_penalty(penalty) for penalty in (0.0, NAN, 1e7)),
    ],
    "factor": [lambda: c.growing_penalty(1.0, factor=0.5)],
    "increment": [lambda: c.growing_penalty(1.0, increment=-1.0)],
    "shrinkage": [lambda: c.growing_penalty(1.0, shrinkage=1.5)],
    "maximum": [lambda: c.growing_penalty(1.0, maximum=NAN)],
    "resilience": [
        lambda: ascent(resilience=NAN),
        lambda: c.resilient_lagrangian(1.0, ONES, ONES, ONES, resilience=0.0),
    ],
    "cap": [lambda: ascent(cap=NAN), lambda: ascent(cap=TWO), lambda: PI(0.1, 0.1, cap=-1.0)],
    "start": [
        *(lambda start=start: ascent(3, start) for start in (-0.1, (1.0, 2.0), NAN)),
        lambda: c.nu_pi(0.1, start="c"),
    ],
    "kinds": [lambda: ascent(2, kinds="equals"), lambda: ascent({"a": ONES}, kinds={"b": "equal"})],
    "optimizer": [lambda: ascent({"a": ONES, "b": ONES}, optimizer=PI(0.1), kinds={"a": "equal", "b": "at_most"})],
    "violations": [
        lambda: ascent(0),
        lambda: ascent({}),
        lambda: ascent(CLASH),
        lambda: ascent({"": ONES}),
        lambda: c.constraint_report(CLASH, CLASH),
        lambda: c.constraint_report({"": 5.0}, {"": 0.0}),
        lambda: moved(violations=NAN * ONES),
        lambda: moved(violations=TWO),
        lambda: implicit(NAN * ONES),
        lambda: implicit(TWO),
        lambda: implicit(ONES[:0], features=np.ones((0, 1), np.float32)),
        lambda: c.tail_mean(0.5)(ONES),
        lambda: c.tail_mean(0.5)(np.ones((0, 2), np.float32)),
        lambda: updated(),
        lambda: updated("primal_dual", violations=ONES[:1], problem=lambda x: (jnp.sum(x), x)),
    ],
    "apply": [lambda: implicit(ONES, lambda params, x: x * params)],
    "rows": [
        lambda: moved(violations=TWO, rows=np.array([[0, 1]])),
        lambda: moved(np.float32(0.0), TWO, np.array([0, 1])),
        lambda: moved(violations=TWO, rows=np.array([2, 7])),
        lambda: moved(
            violations=TWO, rows=np.array([0, 1]), optimizer=optax.MultiSteps(SGD, 2).gradient_transformation()
        ),
        lambda: c.take_rows(ONES, np.array([3])),
        lambda: c.take_rows(ONES, np.array([-1])),
    ],
    "integral_gain": [
        *(lambda gain=gain: c.nu_pi(gain) for gain in (NAN, -0.1)),
        *(lambda gain=gain: PI(gain) for gain in (0.0, INFINITY, NAN)),
    ],
    "proportional_gain": [lambda: c.nu_pi(0.1, INFINITY), lambda: PI(0.1, -0.1)],
    "nu": [lambda: c.nu_pi(0.1, nu=1.0)],
    "order": [lambda: updated("both"), lambda: updated("dual_primal", violations=ONES[:1])],
    "opt_state": [lambda: c.multipliers_of(SGD.init(ONES)), lambda: c.multipliers_of(accumulated())],
    "weight": [lambda: c.proximal_smoothing(SGD, weight=-1.0)],
    "tolerance": [
        lambda: c.switching_objective(1.0, ONES, tolerance=-1.0),
        lambda: c.constraint_report(ONES, ONES, tolerance=NAN),
        lambda: c.feasibility_report(LOSSES[None], TWO, STEPWISE, tolerance=-1.0),
        lambda: c.growing_penalty(1.0, tolerance=-1.0),
    ],
    "gradient": [lambda: c.constraint_report(1.0, 1.0, {})],
    "num_layers": [lambda: c.constraint_names(0)],
    "start_losses": [lambda: c.descent_warnings([2.0, 1.0], [0.0], start_losses=[1.0])],
    "chunk": [lambda: cross_entropy([0, 1], chunk=0)],
    "weights": [lambda: cross_entropy([0, 1], ONES[:1]), lambda: cross_entropy([0, 1], -TWO)],
    "head": [lambda: cross_entropy([0, 1], head=HEAD[:, :2])],
}
# The same for values of another kind: not real numbers, traced where a value must be known, or no function.
KINDS = {
    "objective": [lambda: c.lagrangian(COMPLEX[0], ONES, ONES)],
    "violations": [
        lambda: c.lagrangian(1.0, COMPLEX, ONES),
        lambda: c.augmented_lagrangian(1.0, COMPLEX, ONES, penalty=1.0),
        lambda: c.resilient_lagrangian(1.0, COMPLEX, ONES, ONES, resilience=1.0),
        lambda: c.switching_objective(1.0, COMPLEX),
        lambda: c.constraint_report(COMPLEX, ONES),
        lambda: jax.jit(lambda values: c.constraint_report(values, values).feasible)(ONES),
        lambda: ascent(COMPLEX),
        lambda: moved(violations=COMPLEX),
        lambda: c.tail_mean(0.5)(COMPLEX[:, None]),
        lambda: implicit(COMPLEX),
    ],
    "layer_losses": [
        lambda losses=losses: STEPWISE(losses)
        for losses in (COMPLEX, None, "4, 2, 1", [[1.0], [1.0, 2.0]], np.array([True, False]))
    ],
    "alpha": [lambda: jax.jit(lambda alpha: c.descent_constraints(alpha)(LOSSES))(0.2)],
    "logits": [lambda: rate(COMPLEX), lambda: kl(COMPLEX[None], COMPLEX[None])],
    "sum of one/x": [lambda: sized(COMPLEX[0])],
    "hidden": [lambda: cross_entropy([0, 1], hidden=HIDDEN + 1j)],
    "sample_losses": [lambda: c.feasibility_report(COMPLEX[None], TWO, STEPWISE)],
    "rows": [lambda: moved(violations=TWO, rows=np.array([0.0, 1.0]))],
    "optimizer": [
        lambda: c.dual_ascent(0.1),
        lambda: c.proximal_smoothing(0.1),
        lambda: c.implicit_dual_ascent(len, 0.1),
    ],
    "primal": [lambda: c.primal_dual(0.1, c.dual_ascent(SGD), violations=1)],
    "groups": [lambda: c.gap(2, at_most=0.1, groups=3)],
    "columns of a": [lambda: c.column_sums({"a": c.Constraint(3, 3, 1.0)}, 1.0, None)],
}


def rows(table):
    return [
        pytest.param(name, call, id=f"{name}-{at}") for name, calls in table.items() for at, call in enumerate(calls)
    ]


@pytest.mark.parametrize(("name", "call"), rows(VALUES))
def test_a_known_value_out_of_range_is_an_error_that_names_the_argument(name, call):
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        call()


@pytest.mark.parametrize(("name", "call"), rows(KINDS))
def test_values_of_another_type_are_an_error(name, call):
    with pytest.raises(TypeError, match=rf"\b{name}\b"):
        call()
