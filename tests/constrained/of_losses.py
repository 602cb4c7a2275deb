"""The Lagrangians of layer losses under constraints on them: the objective is the mean loss of the last layer."""

import jax.numpy as jnp

from unroll_jax import constrained


def lagrangian(losses, multipliers, constraints, **options):
    return constrained.lagrangian(jnp.mean(losses[..., -1]), constraints(losses), multipliers, **options)


def augmented_lagrangian(losses, multipliers, constraints, **options):
    return constrained.augmented_lagrangian(jnp.mean(losses[..., -1]), constraints(losses), multipliers, **options)


def resilient_lagrangian(losses, slacks, multipliers, constraints, **options):
    objective, violations = jnp.mean(losses[..., -1]), constraints(losses)
    return constrained.resilient_lagrangian(objective, violations, slacks, multipliers, **options)
