"""Constraints as an objective of the step: on every layer and by name, with their bounds and multipliers."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from unroll_jax import DualState, constrained, in_coordinates, lagrangian
from unroll_jax.constrained.lagrangian import optimal_slacks
from unroll_jax.constrained.layer_bounds import Constraints, LayerConstraints, relative_excess
from unroll_jax.constrained.samples import Reduction

from .config.constrained import ConstrainedConfig, check_depth, check_epochs
from .config.constraints import ConstraintConfig
from .config.images import SupervisedConfig
from .limits import Limit, check_names, limits_report, limits_violations, with_columns
from .metrics import ratio_figures
from .optimizers import dual_rule, make_optimizer
from .sharding.mesh import make_mesh
from .task import MANY, Batch, Params, Row, SampleLosses, Training, check_batch_size, json_numbers, require_finite

# Below any score of a checkpoint that may be reported without a warning.
INFEASIBLE = -1e6


class Figures(NamedTuple):
    """Figures of one step, before its update; violations are of the tightened bounds of training."""

    violations: Float[Array, "constraints"]
    multipliers: Float[Array, "constraints"]
    slacks: Float[Array, "constraints"] | None


class DescentConstraints:
    """The constraints of a run. Other methods descend a fixed sum of losses and only watch them.

    Losses have a column for each layer, and behind these the columns of the constraints by name, see `measured`.

    Attributes:
      limits: Constraints by name; their violations come behind the layers'.
      stated: ``layer_losses -> violations``, as stated to the user: validation and reports judge by these.
      tightened: The same with every descent bound lowered by the margin: training enforces these.
      number: Number of violations.
    """

    def __init__(
        self,
        config: ConstrainedConfig | SupervisedConfig,
        *,
        num_layers: int,
        steps_an_epoch: int,
        num_steps: int,
        numbers: Sequence[int] | None = None,
        limits: Sequence[Limit] = (),
    ):
        self._config, self.limits, self._losses = config, tuple(limits), num_layers + 1
        self._steps_an_epoch, self._enforced = steps_an_epoch, config.enforces
        self._settings: Any = config.constraints
        self._warmup = config.constraints.warmup(num_steps)
        self._names = [name for limit in limits for name in limit.names]
        self._bounded, self._form, self._constant = 0, "difference", True
        self.stated = self.tightened = LayerConstraints(lambda losses: losses[..., :0], "difference")  # none on layers
        if isinstance(config, ConstrainedConfig):
            self._weights = config.loss_weights(num_layers, numbers)
            self._bound_layers(config.constraints, num_layers)
        check_names(self._names)
        self.number = len(self._names)
        # Constraints on layers that are reported and do not count.
        idle = 0 if self._bounded == 0 or self._settings.layers else self._bounded
        self._idle = np.arange(self.number) < idle

    def _bound_layers(self, settings: ConstraintConfig, num_layers: int) -> None:
        alphas = settings.alphas(num_layers)
        margins = (settings.first_margin, *[settings.margin] * (num_layers - 1))
        tight = [1.0 - (1.0 - alpha) * (1.0 - margin) for alpha, margin in zip(alphas, margins, strict=True)]
        self._form, levels = settings.form.removesuffix("_of_means"), settings.absolute_bounds(num_layers)
        self._constant = levels is not None
        if levels is None:
            options = {"reference": settings.reference, "form": self._form, "floor": settings.floor}
            options["proxy"] = settings.proxy or settings.form != self._form
            self.stated, self.tightened = (constrained.descent_constraints(by, **options) for by in (alphas, tight))
        else:
            first = () if settings.reference is None else (settings.reference,)
            lower = [level * (1.0 - margin) for level, margin in zip(levels, margins[-len(levels) :], strict=True)]
            bounds = ([*first, *levels], [*first, *lower])
            self.stated, self.tightened = (constrained.level_constraints(by, form=self._form) for by in bounds)
        self._bounded = (1 if settings.last else num_layers) + (settings.reference is not None)
        names = constrained.constraint_names(num_layers, reference=settings.reference)
        self._names = [*names[-self._bounded :], *self._names]

    @functools.cached_property
    def ascent(self) -> constrained.DualAscent:
        """The ascent of the multipliers; by the epoch, it is on the mean violation (or tail) of all batches."""
        dual, settings = self._config.dual, self._settings
        every = self._steps_an_epoch if dual.every == "epoch" else dual.every
        rule = dual_rule(dual, every=every, warmup=self._warmup)
        return constrained.dual_ascent(rule, resilience=settings.resilience, cap=dual.cap)

    @property
    def reduction(self) -> Reduction | None:
        """The reduction of samples' violations to constraints; None where these are on means and need no samples."""
        settings = self._settings
        if not self._bounded or (settings.bind == "mean" and settings.of_means):
            return None
        return constrained.tail_mean(settings.level if settings.bind == "tail" else 0.0)

    def init(self) -> DualState:
        """Multipliers at their start."""
        start = self._config.dual.start
        start = start * self.number if len(start) == 1 else (*start, *(0.0,) * (self.number - len(start)))
        return self.ascent.init(self.number, np.where(self._idle, 0.0, start))

    def is_affine(self, moving: DualState, step: Array) -> bool | Bool[Array, ""]:
        """Returns whether the weights of losses in the Lagrangian are known without the losses."""
        known = self._form != "log_ratio" if self._constant else self._form == "difference" and not self._settings.floor
        return not self._enforced or (self.reduction is None and known and all(one.affine for one in self.limits))

    def measured(self, params: Params, batch: Batch, samples: SampleLosses, counts: Array | None) -> SampleLosses:
        """Returns losses with the columns that `limits` bound behind them; ``counts`` weigh samples in means."""
        return with_columns(self.limits, params, batch, samples, counts)

    def value(self, samples: SampleLosses, means: Array, moving: DualState, step: Array) -> Float[Array, ""]:
        """The Lagrangian, or the fixed sum of losses; multipliers do not count in the warm-up."""
        losses = means[: self._losses]
        if not self._enforced:
            return self._weighted(losses)
        multipliers = jnp.where(step < self._warmup, 0.0, moving.multipliers)
        violations, normalise = self.violations(samples, means), self._settings.normalise
        return lagrangian(self._minimised(losses), violations, multipliers, normalise=normalise)

    def advance(self, samples: SampleLosses, means: Array, moving: DualState, step: Array) -> tuple[DualState, Figures]:
        """Multipliers after a step on the violations; and figures of before."""
        violations = self.violations(samples, means)
        counted = jnp.where(self._idle, 0.0, violations) if self._idle.any() else violations
        new = self.ascent.update(moving, counted) if self._enforced else moving
        return new, Figures(violations, moving.multipliers, self.slacks(moving))

    def describe(self, step: int, value: Any, means: Any, figures: Figures) -> tuple[Row, dict[str, str]]:
        """Losses, violations and multipliers by layer and by name."""
        require_finite(step, figures.multipliers, "multiplier", each="constraint")
        require_finite(step, value, "Lagrangian")
        row = {
            "loss": float(means[-1]),
            "lagrangian": float(value),
            "layer_losses": means.tolist(),
            "violations": json_numbers(figures.violations[: self._bounded], length=means.size),
            "multipliers": json_numbers(figures.multipliers[: self._bounded], length=means.size),
            **self._named(**dict(zip(("violation", "multiplier", "slack"), figures, strict=True))),
        }
        return row, {"loss": f"{means[-1]:.3f}", "worst_violation": f"{figures.violations.max():+.3f}"}

    def multipliers(self, moving: DualState) -> np.ndarray:
        """Returns the multipliers."""
        return np.asarray(moving.multipliers)

    def judge(self, step: int, samples: np.ndarray, moving: DualState) -> tuple[Row, float]:
        """Feasible first, then by loss. Infeasible checkpoints go by their worst excess over a bound where constraints
        are hard; under resilience, where bounds may be exceeded at a cost, by the last layer's loss with that cost."""
        means, form = samples.mean(axis=0), self._form
        losses = means[: self._losses]
        violations = np.asarray(self.violations(samples, means, self.stated))
        # Bounds on the means, as in `feasibility_report`, for any reduction of the samples.
        allowed = self.stated.bounds(jnp.asarray(losses))
        excesses = np.asarray(relative_excess(violations[: self._bounded], allowed, form=form))
        excess = float(np.max(np.append(excesses, violations[self._bounded :])[~self._idle]))
        minimised = float(self._minimised(losses))
        feasible, score, beta = excess <= self._settings.tolerance, -minimised, self._settings.resilience
        exceeded = np.maximum(violations[~self._idle], 0.0)  # beta/2 |c|^2 is the least that relaxing these can cost
        relaxed = None if beta is None else float(minimised + 0.5 * beta * np.sum(exceeded**2))
        if not feasible and self._enforced:
            score = INFEASIBLE - (excess if relaxed is None else relaxed)
        row = {
            "layer_losses": losses.tolist(),
            "violations": json_numbers(violations[: self._bounded], length=losses.size),
            "worst_excess": excess,
            "feasible": feasible,
            "minimised": minimised,
            **({} if relaxed is None else {"relaxed_loss": relaxed}),
            **self._named(violation=violations),
        }
        return row, score

    def report(self, samples: np.ndarray, moving: DualState) -> Row:
        """Losses, bounds, violations, multipliers and slacks by layer, and how samples descend, on held-out data;
        values, bounds, units and prices of the constraints by name. Bounds and violations are as stated; complementary
        slackness is of the tightened ones, which multipliers enforced. Layer 0 has null without a reference."""
        settings, reduction, few = self._settings, self.reduction, slice(self._bounded)
        losses, multipliers = jnp.asarray(samples[:, : self._losses]), jnp.asarray(moving.multipliers)
        limits = {}
        if self.limits:
            means = samples.mean(axis=0)[self._losses :]
            limits = limits_report(self.limits, means, multipliers[self._bounded :], tolerance=settings.tolerance)
        if not self._bounded:
            return {"tolerance": settings.tolerance, "feasible": True, **limits}
        means, multipliers, implied = jnp.mean(losses, axis=0), multipliers[few], self.slacks(moving)
        stated, enforced = (self._of_layers(one, losses, means) for one in (self.stated, self.tightened))
        slacks = jnp.zeros_like(multipliers) if implied is None else implied[few]
        figures = {
            "layer_losses": means,
            "bounds": self.stated.bounds(means),
            "violations": stated,
            "multipliers": multipliers,
            "slacks": slacks,
            "complementary_slackness": multipliers * (enforced - slacks),
        }
        options = {"tolerance": settings.tolerance, "reduction": reduction}
        feasible = constrained.feasibility_report(losses, multipliers, self.stated, **options).feasible
        return {
            "tolerance": settings.tolerance,
            "bind": settings.bind,
            "form": settings.form,
            **{name: json_numbers(values, length=self._losses) for name, values in figures.items()},
            **ratio_figures(samples[:, : self._losses]),
            **limits,
            "feasible": (feasible or not settings.layers) and limits.get("feasible", True),
        }

    def violations(self, samples: Any, means: Any, of_layers: Any = None) -> Float[Array, "constraints"]:
        """The violations of constraints on layers, None for those that training tightens, and of those by name."""
        layers = self._of_layers(self.tightened if of_layers is None else of_layers, samples, means)
        return jnp.append(layers, limits_violations(self.limits, jnp.asarray(means)[self._losses :]))

    def slacks(self, moving: DualState) -> Float[Array, "constraints"] | None:
        """The slacks that the multipliers imply; None where constraints are hard."""
        beta = self._settings.resilience
        return None if beta is None else optimal_slacks(moving.multipliers, beta)

    def _of_layers(self, constraints: Constraints, samples: Any, means: Any) -> Float[Array, "layers"]:
        """The violations of layers, of means or of the losses of every sample."""
        if self.reduction is None:
            return constraints(jnp.asarray(means)[: self._losses])
        return constrained.sample_constraints(constraints, self.reduction)(jnp.asarray(samples)[:, : self._losses])

    def _weighted(self, losses: Any) -> Float[Array, ""]:
        return jnp.vdot(jnp.asarray(self._weights), jnp.asarray(losses))

    def _minimised(self, losses: Any) -> Any:
        """The last loss; if it is bound, the losses before it."""
        return self._weighted(losses) if getattr(self._config, "early", False) else losses[-1]

    def _named(self, **figures: Any) -> dict[str, float | None]:
        known = {figure: json_numbers(values) for figure, values in figures.items() if values is not None}
        return {f"{figure}/{name}": values[i] for figure, values in known.items() for i, name in enumerate(self._names)}


def constrained_training(
    config: ConstrainedConfig,
    *,
    num_layers: int,
    num_examples: int | None,
    examples: str = "samples",
    numbers: Sequence[int] | None = None,
    trained: Any = None,
    bases: Any = None,
    limits: Sequence[Limit] = (),
) -> Training:
    """Training by a configuration with constraints, plain or under them, on ``num_examples`` (None without data).
    ``numbers`` are of layers 0..L in the model, where not every layer has a loss; ``trained`` marks trained parameters,
    None for all; in ``bases`` the optimiser takes its steps, see `unroll_jax.in_coordinates`."""
    check_depth(config, num_layers)
    count = MANY if num_examples is None else num_examples
    check_batch_size(config.batch_size, count, examples)
    steps_an_epoch = max(count // config.batch_size, 1)
    check_epochs(config, steps_an_epoch)
    optimizer = make_optimizer(config.primal, num_steps=config.steps, trained=trained)
    return Training(
        objective=DescentConstraints(
            config,
            num_layers=num_layers,
            steps_an_epoch=steps_an_epoch,
            num_steps=config.steps,
            numbers=numbers,
            limits=limits,
        ),
        optimizer=optimizer if bases is None else in_coordinates(optimizer, bases),
        num_steps=config.steps,
        validate_every=config.validate_every,
        mesh=make_mesh(config.mesh, batch_size=config.batch_size, accumulate=config.accumulate),
    )
