"""Descent constraints as an objective of the step, by all options of a run: their bounds and multipliers."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from unroll_jax import constrained, lagrangian

from .config.constrained import ConstrainedConfig
from .optimizers import dual_rule
from .task import Row, SampleLosses, json_numbers, require_finite

Constraints = constrained.Constraints
# Bins of the ratios of two layers' losses; the last one is open.
RATIO_EDGES = np.append(np.round(np.linspace(0.0, 2.0, 81), 3), np.inf)
# Below any score of a checkpoint that may be reported without a warning.
INFEASIBLE = -1e6


class Moving(NamedTuple):
    """State of a constrained objective.

    Attributes:
      dual: Multipliers and the state of their optimiser.
    """

    dual: constrained.DualState


class Figures(NamedTuple):
    """Figures of one step, before its update; violations are of the tightened bounds of training."""

    violations: Float[Array, "constraints"]
    multipliers: Float[Array, "constraints"]
    slacks: Float[Array, "constraints"] | None


class DescentConstraints:
    """The constraints of a run. Other methods descend a fixed sum of losses and only watch them.

    Attributes:
      stated: ``layer_losses -> violations``, as stated to the user: validation and reports judge by these.
      tightened: The same with every descent bound lowered by the margin: training enforces these.
      number: Number of violations.
    """

    def __init__(
        self, config: ConstrainedConfig, *, num_layers: int, steps_an_epoch: int, numbers: Sequence[int] | None = None
    ):
        self._config = config
        settings = self._settings = config.constraints
        self._steps_an_epoch, self._enforced = steps_an_epoch, config.enforces
        self._weights = config.loss_weights(num_layers, numbers)
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
            lower = [level * (1.0 - margin) for level, margin in zip(levels, margins, strict=True)]
            bounds = ([*first, *levels], [*first, *lower])
            self.stated, self.tightened = (constrained.level_constraints(by, form=self._form) for by in bounds)
        self.number = num_layers + (settings.reference is not None)
        self._names = constrained.constraint_names(num_layers, reference=settings.reference)

    @functools.cached_property
    def ascent(self) -> constrained.DualAscent:
        """The ascent of the multipliers; once an epoch, it is on the mean violation (or tail) of its batches."""
        dual, settings = self._config.dual, self._settings
        return constrained.dual_ascent(
            dual_rule(self._config),
            resilience=settings.resilience,
            every=self._steps_an_epoch if dual.every == "epoch" else dual.every,
            warmup=settings.warmup_steps,
            cap=dual.cap,
        )

    @property
    def reduction(self) -> constrained.Reduction | None:
        """The reduction of samples' violations to constraints; None where these are on means and need no samples."""
        settings = self._settings
        if settings.bind == "tail":
            return constrained.tail_mean(settings.level)
        return None if settings.of_means else constrained.mean_of_samples()

    def init(self) -> Moving:
        """Multipliers at their start."""
        start = self._config.dual.start
        return Moving(self.ascent.init(self.number, start[0] if len(start) == 1 else start))

    def is_affine(self, moving: Moving, step: Array) -> bool | Bool[Array, ""]:
        """Returns whether the weights of losses in the Lagrangian are known without the losses."""
        known = self._form != "log_ratio" if self._constant else self._form == "difference" and not self._settings.floor
        return not self._enforced or (self.reduction is None and known)

    def value(self, samples: SampleLosses, means: Array, moving: Moving, step: Array) -> Float[Array, ""]:
        """The Lagrangian, or the fixed sum of losses; multipliers do not count in the warm-up."""
        if not self._enforced:
            return jnp.vdot(jnp.asarray(self._weights, means.dtype), means)
        multipliers = jnp.where(step < self._settings.warmup_steps, 0.0, moving.dual.multipliers)
        violations = self.enforced(self._bound(samples, means))
        return lagrangian(means[-1], violations, multipliers, normalise=self._settings.normalise)

    def advance(self, samples: SampleLosses, means: Array, moving: Moving, step: Array) -> tuple[Moving, Figures]:
        """Multipliers after a step on the violations; and figures of before."""
        violations = self.enforced(self._bound(samples, means))
        new = Moving(self.ascent.update(moving.dual, violations)) if self._enforced else moving
        return new, Figures(violations, moving.dual.multipliers, self.slacks(moving))

    def describe(self, step: int, value: Any, means: Any, figures: Figures) -> tuple[Row, dict[str, str]]:
        """Losses, violations and multipliers by layer and by name."""
        require_finite(step, figures.multipliers, "multiplier", each="constraint")
        require_finite(step, value, "Lagrangian")
        row = {
            "loss": float(means[-1]),
            "lagrangian": float(value),
            "layer_losses": means.tolist(),
            "violations": json_numbers(figures.violations, length=means.size),
            "multipliers": json_numbers(figures.multipliers, length=means.size),
            **self._named(**dict(zip(("violation", "multiplier", "slack"), figures, strict=True))),
        }
        return row, {"loss": f"{means[-1]:.3f}", "worst_violation": f"{figures.violations.max():+.3f}"}

    def multipliers(self, moving: Moving) -> np.ndarray:
        """Returns the multipliers."""
        return np.asarray(moving.dual.multipliers)

    def judge(self, step: int, samples: np.ndarray, moving: Moving) -> tuple[Row, float]:
        """Feasible first, then by loss.

        Checkpoints that are not feasible go by their worst excess over a bound where constraints are hard. Resilience
        lets every bound be exceeded at a cost, so there they go by the last layer's loss with that cost.
        """
        losses, form = samples.mean(axis=0), self._form
        violations = self._reduced(self.stated)(jnp.asarray(self._bound(samples, losses)))
        # Bounds on the means, as in `feasibility_report`, for any reduction of the samples.
        bounded = losses[losses.size - violations.size :]
        allowed = constrained.constraint_bounds(bounded, self.stated(jnp.asarray(losses)), form=form)
        excess = float(np.max(constrained.relative_excess(violations, allowed, form=form)))
        violations = np.asarray(violations)
        feasible, score = excess <= self._settings.tolerance, -float(losses[-1])
        relaxed = self._relaxed_loss(losses, violations)
        if not feasible and self._enforced:
            score = INFEASIBLE - (excess if relaxed is None else relaxed)
        row = {
            "layer_losses": losses.tolist(),
            "violations": json_numbers(violations, length=losses.size),
            "worst_excess": excess,
            "feasible": feasible,
            **({} if relaxed is None else {"relaxed_loss": relaxed}),
            **self._named(violation=violations),
        }
        return row, score

    def report(self, samples: np.ndarray, moving: Moving) -> Row:
        """Losses, bounds, violations, multipliers and slacks by layer, and how samples descend, on held-out data.

        Bounds and violations are those stated; complementary slackness is of the tightened ones, which the multipliers
        of training enforced. Layer 0 has null without a reference.
        """
        settings, reduction = self._settings, self.reduction
        options = {name: getattr(settings, name) for name in ("tolerance", "resilience")}
        losses, multipliers = jnp.asarray(samples), jnp.asarray(moving.dual.multipliers)
        report = constrained.feasibility_report(losses, multipliers, self.stated, reduction=reduction, **options)
        bound = report.layer_losses if reduction is None else losses
        slacks = report.slacks if (implied := self.slacks(moving)) is None else implied
        slackness = report.multipliers * (self.enforced(bound) - slacks)
        report = report._replace(slacks=slacks, complementary_slackness=slackness)
        names = ("layer_losses", "bounds", "violations", "multipliers", "slacks", "complementary_slackness")
        return {
            "tolerance": settings.tolerance,
            "bind": settings.bind,
            "form": settings.form,
            **{name: json_numbers(getattr(report, name), length=len(report.layer_losses)) for name in names},
            "feasible": bool(report.feasible),
            "descend_share": json_numbers(report.descending),
            "mean_ratio": json_numbers(report.ratios),
            **_ratio_figures(samples),
        }

    def enforced(self, losses: Array) -> Float[Array, "constraints"]:
        """The violations of the tightened constraints, which training enforces."""
        return self._reduced(self.tightened)(losses)

    def slacks(self, moving: Moving) -> Float[Array, "constraints"] | None:
        """The slacks that the multipliers imply; None where constraints are hard."""
        beta = self._settings.resilience
        return None if beta is None else constrained.optimal_slacks(moving.dual.multipliers, beta)

    def _reduced(self, constraints: Constraints) -> Constraints:
        reduction = self.reduction
        return constraints if reduction is None else constrained.sample_constraints(constraints, reduction)

    def _bound(self, samples: Any, means: Any) -> Any:
        """Returns the losses that the constraints are on: means, or those of every sample."""
        return means if self.reduction is None else samples

    def _relaxed_loss(self, losses: np.ndarray, violations: np.ndarray) -> float | None:
        """f_L + beta/2 |[c]_+|^2: the least that the relaxed problem can give these losses; None without resilience."""
        if self._settings.resilience is None:
            return None
        return float(losses[-1] + 0.5 * self._settings.resilience * np.sum(np.maximum(violations, 0.0) ** 2))

    def _named(self, **figures: Any) -> dict[str, float | None]:
        named = constrained.named_figures(self._names, **figures)
        return dict(zip(named, json_numbers(map(float, named.values())), strict=True))


def _ratio_figures(sample_losses: np.ndarray) -> dict[str, Any]:
    """Distribution of f_l / f_{l-1} over samples, layer by layer, and the share of steps that descend."""
    before, after = sample_losses[:, :-1], sample_losses[:, 1:]
    ratios = np.divide(after, before, out=np.full_like(after, np.nan), where=before > 0.0)
    counts = [np.histogram(column[np.isfinite(column)], RATIO_EDGES)[0].tolist() for column in ratios.T]
    known = ratios[np.isfinite(ratios)]
    return {
        "ratio_histogram": {"edges": json_numbers(RATIO_EDGES), "counts": counts},
        "share_descending": float(np.mean(after < before)),
        "mean_ratio_all": float(np.mean(known)) if known.size else None,
    }
