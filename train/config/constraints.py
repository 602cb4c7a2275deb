"""Training under descent constraints: what every task with layer losses is configured by."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from .basic import Basic
from .fields import with_value
from .layer_skip import rising_weights
from .run import Judgement, PrimalConfig, RunConfig, Tunable

Method = Literal["erm", "constrained", "deep_supervision", "both", "all"]
# The runs of one command, by method; any other method is one run.
SEVERAL: dict[str, tuple[Literal["erm", "constrained", "deep_supervision"], ...]] = {
    "both": ("erm", "constrained"),
    "all": ("erm", "deep_supervision", "constrained"),
}


@dataclasses.dataclass(frozen=True)
class DualConfig:
    """Projected ascent on the multipliers.

    Example:
      >>> from unroll_jax.train import OwnConfig
      >>> OwnConfig(dual=DualConfig(optimizer="sgd")).dual.learning_rate
      0.005
    """

    optimizer: str = "pi"
    """sgd: rate x violation a step; pi: sgd plus a part proportional to the violation, which damps swings; nu_pi: the
    same on a moving average; adam: about its learning rate a step, whatever the violation (the paper's). Any other:
    MODULE:FACTORY, as in optax:rmsprop, which makes an optax chain of the rate; it is fed minus the violations."""
    learning_rate: float = 5e-3
    """Rate of the ascent; for pi and nu_pi, the integral gain."""
    proportional_gain: float = 1.0
    """Multiplier per unit of violation, for pi and nu_pi alone."""
    nu: float = 0.0
    """Decay in (-1, 1) of the moving average of nu_pi."""
    every: int | Literal["epoch"] = 1
    """Batches whose violations are averaged for one step of the multipliers; epoch: as many as fit into a pass over the
    data, counted from the end of the warm-up on. Where batches do not divide the data they run over into the next
    pass. Of tails it is the mean of the batches' tails, which is lower than the tail over the pass."""
    smoothing: float = 0.0
    """Decay in [0, 1) of a moving average that takes the place of the violations; 0 for none."""
    start: tuple[float, ...] = (0.0,)
    """Initial multipliers: one number, or one for each; under --constraints.scale, of the scaled constraints."""
    cap: float | None = None
    """Largest multiplier; None for no bound. Under --constraints.scale, of the scaled constraint."""
    frozen: tuple[int, ...] = ()
    """Layers whose multipliers stay where they start and weigh a fixed penalty; 0 is the bound on the input's loss."""
    freeze_after: int | None = None
    """Steps after which all multipliers stay as they are; None for never."""


@dataclasses.dataclass(frozen=True)
class ConstraintConfig:
    """Constraints on every layer.

    Example:
      >>> ConstraintConfig(alpha=(0.3,), first_alpha=0.5).alphas(num_layers=3)  # shares of the loss to remove
      (0.5, 0.3, 0.3)
    """

    alpha: Basic[tuple[float, ...]] = (0.22,)
    """Share of the loss each layer must remove, in (0, 1): one number, or one a layer."""
    first_alpha: float | None = None
    """alpha of layer 1; None takes that of all layers."""
    reference: float | None = None
    """f_ref, bound on the loss at the embedded input; None leaves that constraint out."""
    resilience: float | None = None
    """beta, cost of slack; None keeps the constraints hard. Implied slacks decay multipliers by 1 / beta, which pi and
    nu_pi answer at once: a beta so small that multipliers would oscillate is refused."""
    slacks: Literal["implied", "explicit"] = "implied"
    """Under resilience. implied: multiplier / beta, which decays the multipliers; explicit: variables that descend
    beside the parameters."""
    slack_rate: float = 0.01
    """Rate of the descent of explicit slacks."""
    slack_restarts: bool = True
    """Set explicit slacks to 0 after every pass over the data, as the paper does."""
    bind: Literal["mean", "tail", "positive"] = "mean"
    """Statistic of the samples that a constraint bounds. mean: their mean; tail: the mean over the worst share 1 -
    level (CVaR); positive: the mean of the violations above 0, so every sample. The last two are beyond the paper."""
    level: float = 0.7
    """Of tail, in [0, 1): 0 is the mean, towards 1 the worst sample."""
    leeway: float = 0.0
    """Largest mean that --constraints.bind positive allows, in units of the loss; at 0, no model is strictly
    feasible."""
    form: Literal["difference", "ratio", "log_ratio"] = "difference"
    """Form in which a loss is compared with its bound. difference: loss minus bound, of mean losses. ratio, log_ratio:
    loss over bound minus 1, or the logarithm of that quotient, sample by sample before the mean, so that every sample
    counts alike."""
    proxy: bool = False
    """Take the loss before a layer for a constant in the gradient, so that no layer is rewarded for being bad;
    multipliers see the true violations (proxy constraints, Cotter et al. 2019)."""
    scale: bool = False
    """Divide every constraint by the size of the loss it bounds at the first step, so that one rate fits all; with
    slacks, too, a share of that. What is reported stays in plain units, the sizes beside it."""
    margin: float = 0.05
    """Share by which training tightens the bounds of layers 2 and on, so that the stated ones hold on held-out data."""
    first_margin: float = 0.2
    """The same for layer 1, whose loss carries over to held-out data least well."""
    warmup_steps: int = 0
    """Steps of plain risk before the constraints count, whatever multipliers start at."""
    normalise: bool = True
    """Divide the Lagrangian by 1 + sum of multipliers, so that growing multipliers do not grow the gradient."""
    tolerance: float = 0.05
    """Relative excess over a bound that still counts as feasible."""

    def alphas(self, num_layers: int) -> tuple[float, ...]:
        """The share that each of layers 1 to L must remove."""
        alphas = self.alpha if len(self.alpha) == num_layers else self.alpha * num_layers
        return alphas if self.first_alpha is None else (self.first_alpha, *alphas[1:])


@dataclasses.dataclass(frozen=True)
class ConstrainedConfig(RunConfig):
    """Train a model whose every layer has a loss, plainly or under descent constraints."""

    unit: ClassVar[str] = ""
    """Of losses, for the labels of axes."""
    ranges: ClassVar[Mapping[str, str]] = {"primal": "1e-4:5e-3", "dual": "5e-4:5e-2", "alpha": "0.05:0.3"}
    """Default ranges of a search, for the two rates and alpha."""

    method: Basic[Method] = "constrained"
    """Plain risk (erm), descent constraints, or fixed weights on the losses of layers before the last
    (deep_supervision); both: a run of the first two, all: of all three, with a report that compares them."""
    layer_weights: tuple[float, ...] = (0.1,)
    """Of deep_supervision, beside 1 on the last layer: one number, or one for each of layers 1 to L - 1."""
    rising_weights: bool = False
    """Of deep_supervision: weights that grow with depth as LayerSkip's (Elhoushi et al. 2024), whose e_scale is
    --layer-weights: layer l of L weighs e_scale l (l - 1) / 2, the last L - 1 more than that, all over their sum."""
    steps: Basic[int] = 1500
    """Training steps."""
    train_gamma: float = 0.0
    """Strength of the noise of training."""
    test_gammas: tuple[float, ...] = (0.0,)
    """Strengths of noise of the evaluation; that of training is added when missing."""
    validate_every: int = 250
    """Steps between validations; each writes a checkpoint."""
    on_collapse: Literal["stop", "warn"] = "stop"
    """Response to two validations in a row that show a collapsed model."""
    primal: PrimalConfig = dataclasses.field(default_factory=PrimalConfig)
    dual: DualConfig = dataclasses.field(default_factory=DualConfig)
    constraints: ConstraintConfig = dataclasses.field(default_factory=ConstraintConfig)

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
        """True where layers before the last have fixed weights, in one of the runs at least."""
        return "deep_supervision" in SEVERAL.get(self.method, (self.method,))

    @property
    def noise_levels(self) -> list[float]:
        """Those of the evaluation in rising order, the training level among them."""
        return sorted({float(gamma) for gamma in (*self.test_gammas, self.train_gamma)})

    def loss_weights(self, num_layers: int, numbers: Sequence[int] | None = None) -> tuple[float, ...]:
        """Returns the weights of f_0 to f_L without constraints: the last loss alone, or those of deep supervision.

        ``numbers`` are those of the layers in the model, from 0 on, where not every layer has a loss.
        """
        if not self.supervises:
            return (*(0.0,) * num_layers, 1.0)
        if self.rising_weights:
            return rising_weights(numbers or range(num_layers + 1), self.layer_weights[0])
        one, several = self.layer_weights * (num_layers - 1), self.layer_weights
        return (0.0, *(several if len(several) == num_layers - 1 else one), 1.0)

    def variants(self) -> Sequence[tuple[str, Self]]:
        """One run, or with methods "both" and "all" one of each."""
        if self.method not in SEVERAL:
            return [("", self)]
        unused = {"layer_weights": ConstrainedConfig.layer_weights, "rising_weights": False}
        return [
            (method, dataclasses.replace(self, method=method, **({} if method == "deep_supervision" else unused)))
            for method in SEVERAL[self.method]
        ]

    def describe(self) -> str:
        """Method, noise and steps."""
        return f"{self.method}, train gamma {self.train_gamma}, {self.steps} steps"

    def tunables(self) -> dict[str, Tunable]:
        """Rates, bounds and the cost of slack; plain risk has but the rate of the parameters."""
        rate = Tunable("primal.learning_rate", self.ranges["primal"], log=True)
        if not self.enforces:
            weight = {"layer-weight": Tunable("layer_weights", "0.01:1", log=True)} if self.supervises else {}
            return {"primal-rate": rate, **weight}
        reference = self.constraints.reference
        # From where it is: a lower one may be below a loss that nothing can lower.
        bounds = None if reference is None else f"{reference:g}:{1.5 * reference:g}"
        return {
            "f-ref": Tunable("constraints.reference", bounds, optional=True, unit=self.unit),
            "alpha": Tunable("constraints.alpha", self.ranges["alpha"]),
            "first-alpha": Tunable("constraints.first_alpha", None, optional=True),
            "dual-rate": Tunable("dual.learning_rate", self.ranges["dual"], log=True),
            "primal-rate": rate,
            "resilience": Tunable("constraints.resilience", "none,3,10,100", log=True, optional=True),
        }

    def judge(self, row: Mapping[str, Any]) -> Judgement:
        """The metric is the loss of the last layer, of either method."""
        loss = row["layer_losses"][-1]
        if not self.enforces:
            return Judgement(True, None, loss)
        return Judgement(row["feasible"], row["worst_excess"], loss, row.get("relaxed_loss"))

    def fitting(self, usual: "RunConfig", *, chosen: bool, log: Callable[[str], None]) -> Self:
        """With a default warm-up that fits the steps; one that was chosen and does not is refused by `check`.

        A default as long as the run, or longer, becomes as large a share of it as the ``usual`` configuration has.
        """
        assert isinstance(usual, ConstrainedConfig)
        warmup = self.constraints.warmup_steps
        if chosen or warmup != usual.constraints.warmup_steps or not 1 <= self.steps <= warmup:
            return self
        fits = self.steps * usual.constraints.warmup_steps // usual.steps
        log(f"--constraints.warmup-steps is {fits} here: the default, {warmup}, does not fit --steps {self.steps}")
        return with_value(self, "constraints.warmup_steps", fits)


@dataclasses.dataclass(frozen=True)
class PerturbedConfig(ConstrainedConfig):
    """Training and evaluation of layers whose outputs are disturbed."""

    layer_noise: float = 0.0
    """Standard deviation of Gaussian noise on every layer's output in training, in units of the state; validation, and
    the feasibility of an evaluation, have it too."""
    test_layer_noises: tuple[float, ...] = ()
    """The same in the evaluation, level by level, at the noise of training on the input; none: not evaluated."""
    lose_layers: bool = False
    """Evaluate with each layer left out in turn, at the noise of training on the input."""
    test_disturbances: tuple[str, ...] = ()
    """Disturbances of the input in the evaluation, one by one, beside the noise of training, as in salt-and-pepper=0.05
    blur=1 dropped=0.1. salt-and-pepper: share of pixels that are black or white. blur: deviation in pixels of a
    Gaussian, before the noise. dropped: share of frames of video that are lost, where the last one that arrived is
    shown again, or of pixels of an image that are 0."""
