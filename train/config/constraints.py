"""Options of descent constraints and of their multipliers."""

from typing import Literal

from .options import (
    Count,
    Fraction,
    Fractions,
    Natural,
    NonNegative,
    NonNegatives,
    Positive,
    Share,
    options,
)


@options
class DualConfig:
    """Projected ascent on the multipliers.

    Example:
      >>> from unroll_jax.train import OwnConfig
      >>> OwnConfig(dual=DualConfig(optimizer="sgd")).dual.learning_rate
      0.005
    """

    optimizer: Literal["adam", "pi", "sgd"] = "pi"
    """sgd: rate x violation per step; pi: that plus a part proportional to the
    violation; adam: the paper's."""
    learning_rate: Positive = 5e-3
    """Rate of the ascent; for pi, the integral gain."""
    proportional_gain: NonNegative = 1.0
    """Multiplier per unit of violation, only for pi."""
    every: Count = 1
    """Batches whose violations are averaged for one step of the multipliers, counted
    from the end of the warm-up on."""
    start: NonNegatives = (0.0,)
    """Initial multipliers: one number, or one for each."""
    cap: Positive | None = None
    """Largest multiplier; None for no bound."""

    @property
    def least_resilience(self) -> float:
        """The resilience at or below which a root of the loop of a multiplier and
        its decay is -1 or beyond."""
        if self.optimizer not in ("sgd", "pi"):
            return 0.0  # Adam's steps do not grow with the violation.
        return 0.5 * self.learning_rate + (
            self.proportional_gain if self.optimizer == "pi" else 0.0
        )


@options
class ConstraintConfig:
    """Constraints on the losses of layers.

    Example:
      >>> ConstraintConfig(alpha=(0.3,), first_alpha=0.5).alphas(
      ...     num_layers=3
      ... )  # shares of the loss to remove
      (0.5, 0.3, 0.3)
    """

    alpha: Fractions = (0.22,)
    """Share of the loss each layer must remove, in (0, 1): one number, or one a
    layer."""
    first_alpha: Fraction | None = None
    """alpha of layer 1; None takes the alpha of all layers."""
    reference: Positive | None = None
    """f_ref, bound on the loss at the embedded input; None leaves that constraint
    out."""
    bounds: Literal["stepwise", "cumulative"] = "stepwise"
    """stepwise: layer l is bound by the loss before it, (1 - alpha) f_(l-1).
    cumulative: by f_ref (1 - alpha)^l, so that an early layer that does more than asked
    tightens no bound, and none gains from a larger loss.
    """
    floor: NonNegative = 0.0
    """Least bound of layers 1 to L, in units of the loss, such as the last loss of
    plain training."""
    last: Positive | None = None
    """Bound on the last loss alone, within which the losses before it are minimised,
    weighted by --layer-weights: early exits at a cost that is known. None: the last
    loss is minimised.
    """
    form: Literal["difference", "ratio", "ratio_of_means", "log_ratio_of_means"] = (
        "difference"
    )
    """Comparison of a loss and its bound. difference: loss minus bound, of mean losses.
    ratio: loss over bound minus 1, sample by sample. ratio_of_means,
    log_ratio_of_means: that, or the logarithm of the quotient, of mean losses, with the
    loss before a layer as a constant in gradients; without units: one rate of the
    multipliers fits all losses.
    """
    margin: Share = 0.05
    """Share by which training tightens the bounds of layers 2 and on, to make the
    stated ones hold on new data."""
    first_margin: Share = 0.2
    """The same for layer 1, whose loss carries over to held-out data least well."""
    resilience: Positive | None = None
    """beta, cost of slack (multiplier / beta), which decays the multipliers; None
    keeps the constraints hard."""
    slacks: Literal["implicit", "explicit"] = "implicit"
    """Slacks of resilient constraints. implicit: at their optimum, multiplier / beta.
    explicit: variables that descend with the parameters, from 0 and again from 0
    after every epoch."""
    slack_rate: Positive = 0.05
    """Learning rate of explicit slacks, in units of violation per gradient."""
    warmup_steps: Natural | Share = 0
    """Steps of plain risk before constraints count, whatever multipliers start at;
    below 1, a share of all steps."""
    normalise: bool = True
    """Divide the Lagrangian by 1 + sum of multipliers: growing multipliers then do
    not grow the gradient."""
    tolerance: NonNegative = 0.05
    """Relative excess over a bound that still counts as feasible."""

    def warmup(self, num_steps: int) -> int:
        """The steps of plain risk of a run."""
        return (
            round(self.warmup_steps * num_steps)
            if self.warmup_steps < 1
            else int(self.warmup_steps)
        )

    def alphas(self, num_layers: int) -> tuple[float, ...]:
        """The share that each of layers 1 to L must remove."""
        alphas = (
            self.alpha if len(self.alpha) == num_layers else self.alpha * num_layers
        )
        return alphas if self.first_alpha is None else (self.first_alpha, *alphas[1:])

    @property
    def of_means(self) -> bool:
        """True where mean losses are compared with their bounds, not the losses of
        samples."""
        return self.form == "difference" or self.form.endswith("_of_means")
