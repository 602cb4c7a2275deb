"""Calls of constraints and of multipliers in one line, for tables of tests, and the
loop of training."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from unroll_jax import constrained as c

NAN = float("nan")
ONES = np.ones(3, np.float32)
SGD = optax.sgd(0.1)
LOSSES = np.array([4.0, 2.0, 1.0], np.float32)
STEPWISE = c.descent_constraints(0.2)
RATIO = c.descent_constraints(0.2, form="ratio")


def violation(constraint, outputs, batch=None, *, strict=True, parts=()):
    """Of the whole batch, or of sums over its parts, which begin at the rows of
    ``parts``."""
    constraints = {"one": constraint}
    sums = []
    for start, end in zip((0, *parts), (*parts, None), strict=True):
        piece = (
            jax.tree.map(lambda x, cut=slice(start, end): x[cut], (outputs, batch))
            if parts
            else (outputs, batch)
        )
        sums.append(c.column_sums(constraints, *piece, strict=strict))
    total = jax.tree.map(lambda *each: sum(each[1:], each[0]), *sums)
    return c.violations(constraints, c.column_means(total))["one"]


def report_of(constraints, outputs, prices=0.0, **options):
    """Of one batch; ``prices`` are one for all constraints, or one for each."""
    sums = c.column_sums(constraints, outputs, None)
    prices = np.broadcast_to(prices, len(constraints))
    multipliers = dict(zip(constraints, prices, strict=True))
    return c.held_out_report(constraints, sums, multipliers, **options)


def gap(logits, groups, **options):
    return violation(
        c.gap(2, at_most=0.25, groups=lambda groups: groups, **options), logits, groups
    )


def of_classes(losses, labels, count=3, **options):
    return violation(
        c.class_losses(count, at_most=1.0, labels=lambda labels: labels, **options),
        losses,
        labels,
    )


def rate(logits, **options):
    return violation(c.rate(at_most=0.2, **options), logits)


def kl(logits, reference, **options):
    return violation(c.kl(at_most=0.1, **options), (logits, reference))


def norm(params, **options):
    return violation(c.norm(at_most=1.0, **options), params)


def sized(value, bound=1.0, count=1.0, scale=1.0):
    def columns(x, batch):
        return {"x": (x, count)}

    return violation(
        c.Constraint(columns, lambda means: means["x"], bound, scale=scale), value
    )


def solve(
    optimizer, problem, x, steps, *, order="simultaneous", normalise=False, kinds=None
):
    """The primal-dual loop as a user writes it: its end (x, state), and (x,
    multipliers) after every step. ``problem(x)`` gives the objective and the
    violations.
    """

    def step(carry, _):
        x, state = carry

        def value(x):
            objective, violations = problem(x)
            prices = state.dual.multipliers
            loss = c.lagrangian(
                objective,
                violations,
                prices,
                normalise=normalise,
                penalty=state.dual.penalty,
                kinds=kinds,
            )
            return loss, violations

        gradient, violations = jax.grad(value, has_aux=True)(x)
        given = (
            {"violations": violations}
            if order == "simultaneous"
            else {"problem": problem}
        )
        updates, state = optimizer.update(
            jax.tree.map(jnp.conj, gradient), state, x, **given
        )
        x = optax.apply_updates(x, updates)
        return (x, state), (x, state.dual.multipliers)

    return jax.jit(lambda x: jax.lax.scan(step, (x, optimizer.init(x)), length=steps))(
        x
    )
