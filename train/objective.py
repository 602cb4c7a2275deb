"""Training on the losses of layers, plain or under constraints: objective, figures,
reports."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from unroll_jax import (
    dual_ascent,
    held_out_report,
    in_coordinates,
    lagrangian,
    multipliers_of,
    primal_dual,
)
from unroll_jax.constrained import (
    ConstraintReport,
    batch_violations,
    column_means,
    column_sums,
    violations,
)

from .config.constrained import ConstrainedConfig, check_depth
from .constraints import dual_rule, is_affine, layer_constraints
from .metrics import ratio_figures
from .optimizers import make_optimizer
from .sharding.mesh import make_mesh
from .task import (
    MANY,
    Objective,
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
    """Figures of one step, before its update. Violations are of the tightened bounds
    of training."""

    violations: Float[Array, "constraints"]
    multipliers: Float[Array, "constraints"]


class LayerObjective(Objective):
    """The last loss under constraints on those of the layers. Other methods descend a
    fixed sum of losses, and watch the same constraints.

    Attributes:
      stated: The constraints as stated to the user, as shares of their bounds:
        validation and reports judge by these.
      tightened: In the form of the options, with every bound lowered by the margin:
        training enforces these.
      ascent: Ascent of the multipliers.
      is_affine: True if the weights of losses in the Lagrangian are known without the
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
        self._config = config
        self._settings = settings
        self._warmup = settings.warmup(num_steps)
        self._weights = config.loss_weights(num_layers, numbers)
        make = functools.partial(layer_constraints, settings, num_layers)
        self._of_means = make("ratio_of_means")
        self.stated = self._of_means if settings.of_means else make("ratio")
        self.tightened = make(settings.form, tightened=True)
        self.is_affine = not config.enforces or is_affine(settings)
        rule = dual_rule(config.dual, warmup=self._warmup)
        self.ascent = dual_ascent(
            rule, resilience=settings.resilience, cap=config.dual.cap
        )

    def optimizer(
        self, primal: optax.GradientTransformation
    ) -> optax.GradientTransformationExtraArgs:
        """The optimiser of the parameters, and of the multipliers if there are any."""
        if not self._config.enforces:
            return optax.with_extra_args_support(primal)
        starts = np.broadcast_to(self._config.dual.start, len(self.tightened))
        start = dict(zip(self.tightened, starts.tolist(), strict=True))
        return primal_dual(primal, self.ascent, violations=start, start=start)

    def value(
        self, samples: SampleLosses, means: Array, opt_state: Any, step: Array
    ) -> tuple[Float[Array, ""], dict[str, Any]]:
        """The Lagrangian, or the fixed sum of losses, and the violations for the
        optimiser. Multipliers do not count in the warm-up."""
        outputs = self._outputs(samples, means)
        smooth, strict = batch_violations(self.tightened, outputs, None)
        extra = {"violations": strict}
        if not self._config.enforces:
            return self._weighted(means), extra
        multipliers = multipliers_of(opt_state)
        if self._warmup:
            multipliers = jax.tree.map(
                lambda one: jnp.where(step < self._warmup, 0.0, one), multipliers
            )
        objective = self._minimised(means)
        normalise = self._settings.normalise
        return lagrangian(objective, smooth, multipliers, normalise=normalise), extra

    def figures(self, extra: dict[str, Any], opt_state: Any) -> Figures:
        """The figures of a step."""
        prices = self._in_order(self._prices(opt_state))
        return Figures(self._in_order(extra["violations"]), prices)

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
            **self._named("violation", figures.violations),
            **self._named("multiplier", figures.multipliers),
        }
        if self._settings.resilience is not None:
            row |= self._named("slack", self._slacks(figures.multipliers))
        return row, {
            "loss": f"{means[-1]:.3f}",
            "worst_violation": f"{figures.violations.max():+.3f}",
        }

    def multipliers(self, opt_state: Any) -> np.ndarray:
        """The multipliers in the order of the constraints."""
        return np.asarray(self._in_order(self._prices(opt_state)))

    def judge(
        self, step: int, samples: np.ndarray, opt_state: Any
    ) -> tuple[Row, float]:
        """Feasible first, then by loss. Infeasible checkpoints go by their worst excess
        over a bound where constraints are hard. Under resilience, where bounds may be
        exceeded at a cost, by the last layer's loss with that cost.
        """
        losses = samples.mean(axis=0)
        report = self.check(samples, opt_state)
        excess = max(group.worst for group in report.groups)
        stated = self._in_form(report)
        minimised = float(self._minimised(losses))
        row = {
            "layer_losses": losses.tolist(),
            "violations": json_numbers(stated, length=losses.size),
            "worst_excess": excess,
            "feasible": report.feasible,
            "minimised": minimised,
            **self._named("violation", stated),
        }
        cost, beta = excess, self._settings.resilience
        if beta is not None:
            # beta/2 |c|^2 is the least that relaxing these can cost
            relaxed = 0.5 * beta * np.sum(np.maximum(stated, 0.0) ** 2)
            cost = row["relaxed_loss"] = float(minimised + relaxed)
        infeasible = self._config.enforces and not report.feasible
        return row, INFEASIBLE - cost if infeasible else -minimised

    def report(self, samples: np.ndarray, opt_state: Any) -> Row:
        """Losses, bounds, violations, multipliers and slacks by layer, and how samples
        descend, on held-out data. Bounds and violations are as stated. Complementary
        slackness is of the tightened ones, which multipliers enforced. Layer 0 has null
        without a reference.
        """
        means = samples.mean(axis=0)
        report = self.check(samples, opt_state)
        multipliers = self.multipliers(opt_state)
        slacks = self._slacks(multipliers)
        sums = column_sums(self.tightened, self._outputs(samples, means), None)
        enforced = self._in_order(violations(self.tightened, column_means(sums)))
        figures = {
            "layer_losses": means,
            "bounds": self._bounds(means),
            "violations": self._in_form(report),
            "multipliers": multipliers,
            "slacks": slacks,
            "complementary_slackness": multipliers * (enforced - slacks),
        }
        return {
            "tolerance": self._settings.tolerance,
            "form": self._settings.form,
            **{
                name: json_numbers(values, length=means.size)
                for name, values in figures.items()
            },
            **ratio_figures(samples),
            "feasible": report.feasible,
            "constraint_report": str(report).splitlines(),
        }

    def check(self, samples: np.ndarray, opt_state: Any) -> ConstraintReport:
        """The library's report on the constraints as stated. Its prices are of the
        losses."""
        means = samples.mean(axis=0)
        sums = column_sums(self.stated, self._outputs(samples, means), None)
        prices = self._prices(opt_state)
        if self._settings.form == "difference":
            # multipliers of differences are per unit of the loss, these of a share
            bounds = zip(self.stated, self._bounds(means), strict=True)
            prices = {name: prices[name] * bound for name, bound in bounds}
        tolerance = self._settings.tolerance
        return held_out_report(self.stated, sums, prices, tolerance=tolerance)

    def _prices(self, opt_state: Any) -> dict[str, Array]:
        if self._config.enforces:
            return multipliers_of(opt_state)
        return dict.fromkeys(self.tightened, jnp.zeros(()))

    def _slacks(self, multipliers: Any) -> Any:
        """The slacks at which resilient multipliers rest."""
        beta = self._settings.resilience
        return 0.0 * multipliers if beta is None else multipliers / beta

    def _outputs(self, samples: Any, means: Any) -> Any:
        """The losses that constraints read: of samples only where these are compared,
        which keeps means over devices where they are."""
        return means if self._settings.of_means else samples

    def _bounds(self, means: Any) -> np.ndarray:
        """The stated bounds of mean losses, in their units."""
        sums = column_sums(self._of_means, means, None)
        zeros = dict.fromkeys(self._of_means, 0.0)
        groups = held_out_report(self._of_means, sums, zeros).groups
        return np.array([group.bound for group in groups])

    def _in_form(self, report: ConstraintReport) -> np.ndarray:
        """Violations of a report in the form of the options."""
        shares = np.array([group.worst for group in report.groups])
        if self._settings.form == "difference":
            return shares * [group.bound for group in report.groups]
        if self._settings.form.startswith("log_ratio"):
            return np.log1p(shares)
        return shares

    def _in_order(self, by_name: dict[str, Array]) -> Any:
        # JAX sorts names: layer 10 comes before layer 2
        return jnp.stack([by_name[name] for name in self.tightened])

    def _weighted(self, losses: Any) -> Float[Array, ""]:
        return jnp.vdot(jnp.asarray(self._weights), jnp.asarray(losses))

    def _minimised(self, losses: Any) -> Any:
        """The last loss. If it is bound, the losses before it."""
        return self._weighted(losses) if self._config.early else losses[-1]

    def _named(self, figure: str, values: Any) -> dict[str, float | None]:
        names = [f"{figure}/{name}" for name in self.tightened]
        return dict(zip(names, json_numbers(values), strict=True))


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
    where not every layer has a loss. ``trained`` marks trained parameters, None for
    all. In ``bases`` the optimiser takes its steps, see `unroll_jax.in_coordinates`.
    """
    check_depth(config, num_layers)
    check_batch_size(
        config.batch_size, MANY if num_examples is None else num_examples, examples
    )
    primal = make_optimizer(config.primal, num_steps=config.steps, trained=trained)
    primal = primal if bases is None else in_coordinates(primal, bases)
    objective = LayerObjective(
        config, num_layers=num_layers, num_steps=config.steps, numbers=numbers
    )
    return Training(
        objective=objective,
        optimizer=objective.optimizer(primal),
        num_steps=config.steps,
        validate_every=config.validate_every,
        mesh=make_mesh(
            config.mesh, batch_size=config.batch_size, accumulate=config.accumulate
        ),
    )
