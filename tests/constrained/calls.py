"""Calls of the ready-made constraints and of multipliers in one line, for tables of tests."""

import jax.numpy as jnp
import numpy as np
import optax

from unroll_jax import constrained as c

NAN = float("nan")
ONES, SGD = np.ones(3, np.float32), optax.sgd(0.1)
LOSSES, FEATURES = np.array([4.0, 2.0, 1.0], np.float32), np.ones((3, 1), np.float32)
STEPWISE, RATIO = c.descent_constraints(0.2), c.descent_constraints(0.2, form="ratio")


def violation(constraint, outputs, batch=None, *, strict=True):
    """Of one constraint on one batch."""
    constraints = {"one": constraint}
    sums = c.column_sums(constraints, outputs, batch, strict=strict)
    return c.violations(constraints, c.column_means(sums))["one"]


def gap(logits, groups, **options):
    return violation(c.gap(2, at_most=0.25, groups=lambda groups: groups, **options), logits, groups)


def of_classes(losses, labels, count=3, **options):
    return violation(c.class_losses(count, at_most=1.0, labels=lambda labels: labels, **options), losses, labels)


def rate(logits, **options):
    return violation(c.rate(at_most=0.2, **options), logits)


def kl(logits, reference, **options):
    return violation(c.kl(at_most=0.1, **options), (logits, reference))


def norm(params, **options):
    return violation(c.norm(at_most=1.0, **options), params)


def sized(value, bound=1.0, count=1.0):
    return violation(c.Constraint(lambda x, batch: {"x": (x, count)}, lambda means: means["x"], bound), value)


def implicit(violations, apply=lambda params, x: x @ params, features=FEATURES, **options):
    """Parameters after one step from 1."""
    ascent = c.implicit_dual_ascent(apply, optax.sgd(1.0), **options)
    return ascent.update(ascent.init(jnp.ones(1, violations.real.dtype)), violations, features).params
