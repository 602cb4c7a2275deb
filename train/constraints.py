"""Constraints on the losses of layers as an objective of the step, with their bounds
and multipliers."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax import DualState, constrained, in_coordinates, lagrangian
from unroll_jax.constrained.lagrangian import optimal_slacks
from unroll_jax.constrained.layer_bounds import LayerConstraints, relative_excess
from unroll_jax.constrained.samples import Reduction

from .config.constrained import ConstrainedConfig, check_depth
from .config.constraints import ConstraintConfig
from .metrics import ratio_figures
from .optimizers import dual_rule, make_optimizer
from .sharding.mesh import make_mesh
from .task import (
    MANY,
    Row,
    SampleLosses,
    Training,
    check_batch_size,
    json_numbers,
    require_finite,
)

# Below any score of a checkpoint that may be reported without a warning.
INFEASIBLE = -1e6


class Figures(NamedTuple):
    """Figures of one step, before its update; violations are of the tightened bounds
    of training."""

    violations: Float[Array, "constraints"]
    multipliers: Float[Array, "constraints"]
    slacks: Float[Array, "constraints"] | None


class DescentConstraints:
    """The constraints of a run. Other methods descend a fixed sum of losses and only
    watch them.

    Attributes:
      stated: ``layer_losses -> violations``, as stated to the user: validation and
        reports judge by these.
      tightened: The same with every descent bound lowered by the margin: training
        enforces these.
      number: Number of violations.
      reduction: Of samples' violations to constraints; None where these are on means
        and need no samples.
      is_affine: Whether the weights of losses in the Lagrangian are known without the
        losses.
    """

    def __init__(
        self,
        config: ConstrainedConfig,
        *,
        num_layers: int,
        num_steps: int,
        numbers: Sequence[int] | None = None,
    ):
        settings = config.constraints
        self._config, self._settings, self._enforced = config, settings, config.enforces
        self._warmup, self._form = (
            settings.warmup(num_steps),
            settings.form.removesuffix("_of_means"),
        )
        self._weights = config.loss_weights(num_layers, numbers)
        self.stated, self.tightened = _bounded(settings, num_layers)
        self.number = (1 if settings.last else num_layers) + (
            settings.reference is not None
        )
        self._names = constrained.constraint_names(
            num_layers, reference=settings.reference
        )[-self.number :]
        self.reduction: Reduction | None = (
            None if settings.of_means else constrained.tail_mean(0.0)
        )
        if settings.absolute_bounds(num_layers) is not None:
            known = self._form != "log_ratio"
        else:
            known = self._form == "difference" and not settings.floor
        self.is_affine = not self._enforced or (settings.of_means and known)

    @functools.cached_property
    def ascent(self) -> constrained.DualAscent:
        """The ascent of the multipliers."""
        rule = dual_rule(self._config.dual, warmup=self._warmup)
        return constrained.dual_ascent(
            rule, resilience=self._settings.resilience, cap=self._config.dual.cap
        )

    def init(self) -> DualState:
        """Multipliers at their start."""
        return self.ascent.init(
            self.number, np.broadcast_to(self._config.dual.start, self.number)
        )

    def value(
        self, samples: SampleLosses, means: Array, moving: DualState, step: Array
    ) -> Float[Array, ""]:
        """The Lagrangian, or the fixed sum of losses; multipliers do not count in
        the warm-up."""
        if not self._enforced:
            return self._weighted(means)
        multipliers = jnp.where(step < self._warmup, 0.0, moving.multipliers)
        violations, normalise = (
            self.violations(samples, means),
            self._settings.normalise,
        )
        return lagrangian(
            self._minimised(means), violations, multipliers, normalise=normalise
        )

    def advance(
        self, samples: SampleLosses, means: Array, moving: DualState, step: Array
    ) -> tuple[DualState, Figures]:
        """Multipliers after a step on the violations; and figures of before."""
        violations = self.violations(samples, means)
        new = self.ascent.update(moving, violations) if self._enforced else moving
        return new, Figures(violations, moving.multipliers, self.slacks(moving))

    def describe(
        self, step: int, value: Any, means: Any, figures: Figures
    ) -> tuple[Row, dict[str, str]]:
        """Losses, violations and multipliers by layer and by name."""
        require_finite(step, figures.multipliers, "multiplier", each="constraint")
        require_finite(step, value, "Lagrangian")
        row = {
            "loss": float(means[-1]),
            "lagrangian": float(value),
            "layer_losses": means.tolist(),
            "violations": json_numbers(figures.violations, length=means.size),
            "multipliers": json_numbers(figures.multipliers, length=means.size),
            **self._named(
                **dict(zip(("violation", "multiplier", "slack"), figures, strict=True))
            ),
        }
        return row, {
            "loss": f"{means[-1]:.3f}",
            "worst_violation": f"{figures.violations.max():+.3f}",
        }

    def multipliers(self, moving: DualState) -> np.ndarray:
        """Returns the multipliers."""
        return np.asarray(moving.multipliers)

    def judge(
        self, step: int, samples: np.ndarray, moving: DualState
    ) -> tuple[Row, float]:
        """Feasible first, then by loss. Infeasible checkpoints go by their worst excess
        over a bound where constraints are hard; under resilience, where bounds may be
        exceeded at a cost, by the last layer's loss with that cost.
        """
        losses = samples.mean(axis=0)
        violations = np.asarray(self.violations(samples, losses, self.stated))
        # Bounds on the means, as in `feasibility_report`, for any reduction of the
        # samples.
        allowed = self.stated.bounds(jnp.asarray(losses))
        excess = float(
            np.max(np.asarray(relative_excess(violations, allowed, form=self._form)))
        )
        minimised = float(self._minimised(losses))
        feasible, score, beta = (
            excess <= self._settings.tolerance,
            -minimised,
            self._settings.resilience,
        )
        # beta/2 |c|^2 is the least that relaxing these can cost
        exceeded = np.maximum(violations, 0.0)
        relaxed = (
            None
            if beta is None
            else float(minimised + 0.5 * beta * np.sum(exceeded**2))
        )
        if not feasible and self._enforced:
            score = INFEASIBLE - (excess if relaxed is None else relaxed)
        row = {
            "layer_losses": losses.tolist(),
            "violations": json_numbers(violations, length=losses.size),
            "worst_excess": excess,
            "feasible": feasible,
            "minimised": minimised,
            **({} if relaxed is None else {"relaxed_loss": relaxed}),
            **self._named(violation=violations),
        }
        return row, score

    def report(self, samples: np.ndarray, moving: DualState) -> Row:
        """Losses, bounds, violations, multipliers and slacks by layer, and how samples
        descend, on held-out data. Bounds and violations are as stated; complementary
        slackness is of the tightened ones, which multipliers enforced. Layer 0 has null
        without a reference.
        """
        losses, multipliers, implied = (
            jnp.asarray(samples),
            jnp.asarray(moving.multipliers),
            self.slacks(moving),
        )
        means = jnp.mean(losses, axis=0)
        stated, enforced = (
            self.violations(losses, means, one) for one in (self.stated, self.tightened)
        )
        slacks = jnp.zeros_like(multipliers) if implied is None else implied
        figures = {
            "layer_losses": means,
            "bounds": self.stated.bounds(means),
            "violations": stated,
            "multipliers": multipliers,
            "slacks": slacks,
            "complementary_slackness": multipliers * (enforced - slacks),
        }
        options = {"tolerance": self._settings.tolerance, "reduction": self.reduction}
        return {
            "tolerance": self._settings.tolerance,
            "form": self._settings.form,
            **{
                name: json_numbers(values, length=means.size)
                for name, values in figures.items()
            },
            **ratio_figures(samples),
            "feasible": constrained.feasibility_report(
                losses, multipliers, self.stated, **options
            ).feasible,
        }

    def violations(
        self, samples: Any, means: Any, constraints: Any = None
    ) -> Float[Array, "constraints"]:
        """The violations of means, or of every sample in the mean; of the tightened
        constraints if none are given."""
        constraints = self.tightened if constraints is None else constraints
        if self.reduction is None:
            return constraints(jnp.asarray(means))
        return constrained.sample_constraints(constraints, self.reduction)(
            jnp.asarray(samples)
        )

    def slacks(self, moving: DualState) -> Float[Array, "constraints"] | None:
        """The slacks that the multipliers imply; None where constraints are hard."""
        beta = self._settings.resilience
        return None if beta is None else optimal_slacks(moving.multipliers, beta)

    def _weighted(self, losses: Any) -> Float[Array, ""]:
        return jnp.vdot(jnp.asarray(self._weights), jnp.asarray(losses))

    def _minimised(self, losses: Any) -> Any:
        """The last loss; if it is bound, the losses before it."""
        return self._weighted(losses) if self._config.early else losses[-1]

    def _named(self, **figures: Any) -> dict[str, float | None]:
        known = {
            figure: json_numbers(values)
            for figure, values in figures.items()
            if values is not None
        }
        return {
            f"{figure}/{name}": values[i]
            for figure, values in known.items()
            for i, name in enumerate(self._names)
        }


def _bounded(
    settings: ConstraintConfig, num_layers: int
) -> tuple[LayerConstraints, LayerConstraints]:
    """Returns the constraints on layers as stated, and with the margins that
    training tightens them by."""
    alphas, levels = settings.alphas(num_layers), settings.absolute_bounds(num_layers)
    margins = (settings.first_margin, *[settings.margin] * (num_layers - 1))
    form, of_means = (
        settings.form.removesuffix("_of_means"),
        settings.form.endswith("_of_means"),
    )
    if levels is None:
        tight = [
            1.0 - (1.0 - alpha) * (1.0 - margin)
            for alpha, margin in zip(alphas, margins, strict=True)
        ]
        options = {
            "reference": settings.reference,
            "form": form,
            "floor": settings.floor,
            "proxy": of_means,
        }
        stated, tightened = (
            constrained.descent_constraints(by, **options) for by in (alphas, tight)
        )
    else:
        first = () if settings.reference is None else (settings.reference,)
        lower = [
            level * (1.0 - margin)
            for level, margin in zip(levels, margins[-len(levels) :], strict=True)
        ]
        bounds = ([*first, *levels], [*first, *lower])
        stated, tightened = (
            constrained.level_constraints(by, form=form) for by in bounds
        )
    return stated, tightened


def constrained_training(
    config: ConstrainedConfig,
    *,
    num_layers: int,
    num_examples: int | None,
    examples: str = "samples",
    numbers: Sequence[int] | None = None,
    trained: Any = None,
    bases: Any = None,
) -> Training:
    """Training by a configuration with constraints, plain or under them, on
    ``num_examples`` (None without data). ``numbers`` are of layers 0..L in the model,
    where not every layer has a loss; ``trained`` marks trained parameters, None for
    all; in ``bases`` the optimiser takes its steps, see `unroll_jax.in_coordinates`.
    """
    check_depth(config, num_layers)
    check_batch_size(
        config.batch_size, MANY if num_examples is None else num_examples, examples
    )
    optimizer = make_optimizer(config.primal, num_steps=config.steps, trained=trained)
    return Training(
        objective=DescentConstraints(
            config, num_layers=num_layers, num_steps=config.steps, numbers=numbers
        ),
        optimizer=optimizer if bases is None else in_coordinates(optimizer, bases),
        num_steps=config.steps,
        validate_every=config.validate_every,
        mesh=make_mesh(
            config.mesh, batch_size=config.batch_size, accumulate=config.accumulate
        ),
    )
