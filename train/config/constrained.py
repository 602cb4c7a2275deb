"""Options of runs with a loss at every layer: plain, supervised deeply or under
descent constraints; their multipliers and rules."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from .errors import OptionError, option_text
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
    value_of,
    with_value,
)
from .run import Judgement, PrimalConfig, RunConfig

# of the constraints, and of most experiments
PAPER = "Porras-Valenzuela, Hadou, Ribeiro"
# erm: the former name of plain
Method = Literal["plain", "constrained", "deep_supervision", "both", "all", "erm"]
# The runs of one command, by method. Any other method is one run.
SEVERAL: dict[str, tuple[Literal["plain", "constrained", "deep_supervision"], ...]] = {
    "both": ("plain", "constrained"),
    "all": ("plain", "deep_supervision", "constrained"),
}


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
    """Largest multiplier. None for no bound."""

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
    """alpha of layer 1. None takes the alpha of all layers."""
    reference: Positive | None = None
    """f_ref, bound on the loss at the embedded input. None leaves that constraint
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
    """beta, cost of slack (multiplier / beta), which decays the multipliers. None
    keeps the constraints hard."""
    slacks: Literal["implicit", "explicit"] = "implicit"
    """Slacks of resilient constraints. implicit: at their optimum, multiplier / beta.
    explicit: variables that descend with the parameters, from 0 and again from 0
    after every epoch."""
    slack_rate: Positive = 0.05
    """Learning rate of explicit slacks, in units of violation per gradient."""
    warmup_steps: Natural | Share = 0
    """Steps of plain risk before constraints count, whatever multipliers start at.
    Below 1, a share of all steps."""
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


@options
class ConstrainedConfig(RunConfig):
    """Train a model whose every layer has a loss, plainly or under descent
    constraints."""

    method: Method = "constrained"
    """plain: the last loss (or erm, empirical risk). constrained: under descent
    constraints. deep_supervision: fixed weights on the losses of layers before the
    last. both, all: plain and constrained, or all three, and a report.
    """
    layer_weights: NonNegatives = (0.1,)
    """Of deep_supervision (last layer: 1) and --constraints.last: one number, or one
    for each of layers 1 to L - 1."""
    layer_weighting: Literal["given", "layerskip"] = "given"
    """given: --layer-weights. layerskip: weights that grow with depth, of LayerSkip
    (Elhoushi et al. 2024). --layer-weights is their scale of layers before the last.
    """
    steps: Count = 1500
    """Training steps."""
    epochs: Count | None = None
    """Passes over the train split, in place of --steps."""
    train_gamma: NonNegative = 0.0
    """Strength of the noise of training."""
    test_gammas: NonNegatives = (0.0,)
    """Strengths of noise of the evaluation. The strength of training is added when
    missing."""
    validate_every: Count = 250
    """Steps between validations. Each writes a checkpoint."""
    primal: PrimalConfig = dataclasses.field(default_factory=PrimalConfig)
    dual: DualConfig = dataclasses.field(default_factory=DualConfig)
    constraints: ConstraintConfig = dataclasses.field(default_factory=ConstraintConfig)

    def __post_init__(self) -> None:
        """Gives the plain method its one name."""
        if self.method == "erm":
            object.__setattr__(self, "method", "plain")

    def resolved(self) -> Self:
        """No reference beside a bound on the last loss, which replaces it, and steps of
        the multipliers in a short run, too."""
        config = self
        if config.constraints.last is not None:
            config = with_value(config, "constraints.reference", None)
        counted = self.steps - self.constraints.warmup(self.steps)
        if self.enforces and not any(self.dual.start) and counted > 0:
            every = min(self.dual.every, counted)
            config = with_value(config, "dual.every", every)
        return config

    def check(self) -> None:
        """Checks the rules across fields, also for each layer's values where the depth
        is known before the model is read."""
        super().check()
        _check_weights(self)
        if self.enforces:
            _check_enforced(self)
        constraints = self.constraints
        absolute = constraints.bounds == "cumulative" and constraints.last is None
        if absolute and constraints.reference is None:
            bounds = option_text("constraints.bounds", "cumulative")
            allowed = f"a number with {bounds}, which start at it"
            raise OptionError("constraints.reference", allowed, None)
        if self.depth is not None:
            check_depth(self, self.depth)

    @property
    def depth(self) -> int | None:
        """The number of layers, or None where a pretrained model or a user's task has
        it."""
        model: Any = getattr(self, "model", None)
        return (
            None
            if getattr(model, "pretrained", None) is not None
            else getattr(model, "num_layers", None)
        )

    @property
    def title(self) -> str:
        """The method."""
        return self.method

    @property
    def enforces(self) -> bool:
        """True where constraints are enforced, in one of the runs at least."""
        return "constrained" in SEVERAL.get(self.method, (self.method,))

    @property
    def supervises(self) -> bool:
        """True where layers before the last have fixed weights, in one of the runs
        at least."""
        return "deep_supervision" in SEVERAL.get(self.method, (self.method,))

    @property
    def early(self) -> bool:
        """True where the losses of layers before the last are minimised, in one of
        the runs at least."""
        return self.enforces and self.constraints.last is not None

    @property
    def noise_levels(self) -> list[float]:
        """Noise levels of the evaluation in rising order, the training level among
        them."""
        return sorted({float(gamma) for gamma in (*self.test_gammas, self.train_gamma)})

    def loss_weights(
        self, num_layers: int, numbers: Sequence[int] | None = None
    ) -> tuple[float, ...]:
        """Returns the weights of f_0 to f_L: of the last loss only, of deep
        supervision, or of the losses before a bound last one. ``numbers`` has the
        layers' numbers in the model, where not every layer has a loss.
        """
        if not (self.supervises or self.early):
            return (*(0.0,) * num_layers, 1.0)
        early = self.layer_weights
        if len(early) == 1:
            early *= num_layers - 1
        weights = (0.0, *early, 1.0)
        if self.layer_weighting != "given":
            layers = numbers or range(num_layers + 1)
            weights = _layerskip_weights(layers, scale=self.layer_weights[0])
            if self.early and not any(weights[:-1]):
                allowed = f"given: no layer of {tuple(layers)} gets a weight"
                raise OptionError("layer_weighting", allowed, self.layer_weighting)
        return (*weights[:-1], 0.0) if self.early else weights

    def variants(self) -> Sequence[tuple[str, Self]]:
        """One run, or with methods "both" and "all" one of each."""
        if self.method not in SEVERAL:
            return [("", self)]
        each = {
            method: dataclasses.replace(self, method=method)
            for method in SEVERAL[self.method]
        }
        return list(each.items())

    def judge(self, row: Mapping[str, Any]) -> Judgement:
        """The metric is the loss of the last layer, of either method, or those that
        are minimised within its bound."""
        loss = row["minimised"] if self.early else row["layer_losses"][-1]
        if not self.enforces:
            return Judgement(True, None, loss)
        return Judgement(row["feasible"], row["worst_excess"], loss)


def check_depth(config: ConstrainedConfig, num_layers: int) -> None:
    """Checks the options that have a value for each layer or constraint against the
    number of layers."""
    constraints = config.constraints
    dual = config.dual
    early = config.supervises or constraints.last is not None
    if num_layers == 1 and early:
        allowed = "another for one layer, which has none before it"
        raise OptionError("method", allowed, config.method)
    bounds = num_layers if constraints.last is None else 1
    if constraints.reference is not None:
        bounds += 1
    for name, count, what in (
        ("layer_weights", num_layers - 1, "layers before the last"),
        ("constraints.alpha", num_layers, "layers"),
        ("dual.start", bounds, "constraints"),
    ):
        values = value_of(config, name)
        if len(values) not in (1, count):
            allowed = f"one number, or one for each of {count} {what}"
            raise OptionError(name, allowed, values)
    if dual.cap is not None and max(dual.start) > dual.cap:
        allowed = f"at most {option_text('dual.cap', dual.cap)}"
        raise OptionError("dual.start", allowed, dual.start)


def check_heads(model: Any) -> None:
    """Checks that attention heads share out the width."""
    if model.dim % model.num_heads:
        allowed = f"a divisor of {option_text('model.dim', model.dim)}"
        raise OptionError("model.num_heads", allowed, model.num_heads)


def _layerskip_weights(layers: Sequence[int], *, scale: float) -> tuple[float, ...]:
    r"""Weights of the losses of layers, quadratically larger towards the end. They add
    up to 1.

    With layers counted by their outputs, 1 to L, before all are divided by their sum:
    layer :math:`l < L` weighs :math:`s \sum_{i<l} i`, layer L
    :math:`L - 1 + s \sum_{i<L-1} i`, and layer 0, the embedded input, nothing.

    Source: Elhoushi et al., "LayerSkip" (2024), section 4.1.2, whose layers count from
    0.
    """
    depth = layers[-1]
    early = [scale * layer * (layer - 1) / 2 for layer in layers[:-1]]
    last = depth - 1 + scale * (depth - 1) * (depth - 2) / 2
    total = sum(early) + last
    if total == 0.0:
        return (*early, 1.0)
    return tuple(weight / total for weight in (*early, last))


def _check_weights(config: ConstrainedConfig) -> None:
    """Checks the weights of layers."""
    weights, weighting = config.layer_weights, config.layer_weighting
    if weighting != "given" and len(weights) > 1:
        rising = option_text("layer_weighting", weighting)
        allowed = f"one number with {rising}, which it scales"
        raise OptionError("layer_weights", allowed, weights)
    if (config.supervises or config.early) and not any(weights):
        allowed = f"above 0 for a layer, or it is {option_text('method', 'plain')}"
        raise OptionError("layer_weights", allowed, weights)


def _check_enforced(config: ConstrainedConfig) -> None:
    """Checks that constraints count, and that multipliers settle."""
    constraints = config.constraints
    dual = config.dual
    if constraints.warmup(config.steps) >= config.steps:
        allowed = (
            f"below {option_text('steps', config.steps)}, or constraints never count;"
            " lower it, or raise the steps"
        )
        raise OptionError("constraints.warmup_steps", allowed, constraints.warmup_steps)
    least, beta = dual.least_resilience, constraints.resilience
    if constraints.slacks == "explicit":
        if beta is None:
            resilience = option_text("constraints.resilience")
            allowed = f"implicit without {resilience}, the cost of slack"
            raise OptionError("constraints.slacks", allowed, "explicit")
        if constraints.slack_rate * beta >= 2.0:
            allowed = f"below {2.0 / beta:g}, or slacks will oscillate; lower it"
            raise OptionError("constraints.slack_rate", allowed, constraints.slack_rate)
        return
    if beta is not None and beta <= least:
        gains = f"these gains of {option_text('dual.optimizer', dual.optimizer)}"
        allowed = (
            f"above {least:g} with {gains}, or multipliers will oscillate; raise it, or"
            " lower the gains"
        )
        raise OptionError("constraints.resilience", allowed, beta)
