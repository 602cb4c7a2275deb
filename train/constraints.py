"""Constraints on layers and the optimiser of multipliers, from a configuration."""

import jax.numpy as jnp
import optax

from unroll_jax import descent_constraints, proportional_integral
from unroll_jax.constrained import Constraint, level_constraints

from .config.constraints import ConstraintConfig, DualConfig


def layer_constraints(
    settings: ConstraintConfig, num_layers: int, form: str, *, tightened: bool = False
) -> dict[str, Constraint]:
    """Returns the constraints of a configuration in a form of its options: as stated,
    or with the margins that training tightens them by."""
    margins = (0.0,) * num_layers
    if tightened:
        margins = (settings.first_margin, *[settings.margin] * (num_layers - 1))
    compared = form.removesuffix("_of_means")
    if settings.last is not None:
        level = settings.last * (1.0 - margins[-1])
        return level_constraints([level], num_layers=num_layers, form=compared)
    return descent_constraints(
        settings.alphas(num_layers),
        num_layers=num_layers,
        reference=settings.reference,
        bounds=settings.bounds,
        floor=settings.floor,
        margin=margins,
        form=compared,
        proxy=form.endswith("_of_means"),
        of_samples=form == "ratio",
    )


def is_affine(settings: ConstraintConfig) -> bool:
    """Returns whether violations are affine in the mean losses, so that the weights of
    losses in the Lagrangian are known before the losses are."""
    if settings.last is not None or settings.bounds == "cumulative":
        # the bounds are numbers
        return settings.of_means and not settings.form.startswith("log_ratio")
    return settings.form == "difference" and not settings.floor


def dual_rule(dual: DualConfig, *, warmup: int) -> optax.GradientTransformation:
    """Returns the optimiser of the multipliers, on means of so many calls as it
    says, after ``warmup`` calls."""
    if dual.optimizer == "pi":
        rule = proportional_integral(
            dual.learning_rate, dual.proportional_gain, cap=dual.cap
        )
    else:
        rules = {"adam": optax.adam, "sgd": optax.sgd}
        rule = rules[dual.optimizer](dual.learning_rate)
    if dual.every > 1:
        wide = jnp.result_type(float)
        steps = optax.MultiSteps(rule, dual.every, accumulator_dtype=wide)
        rule = steps.gradient_transformation()
    if warmup > 0:
        rule = optax.conditionally_mask(
            rule, lambda step, **_: jnp.asarray(step) >= warmup
        )
    return rule
