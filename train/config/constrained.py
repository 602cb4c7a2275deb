"""Options of runs with a loss at every layer: plain, supervised deeply or under descent constraints; their rules."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from .constraints import ConstraintConfig, DualConfig
from .errors import UserError, option_text
from .fields import Basic, Condition, Count, NonNegative, Rule, check_rules, with_value
from .run import Judgement, PrimalConfig, RunConfig

DUAL_OPTIMIZERS = ("adam", "nu_pi", "pi", "sgd")  # those of unroll_jax.constrained, which importing would load JAX for
Method = Literal["erm", "constrained", "deep_supervision", "both", "all"]
# The runs of one command, by method; any other method is one run.
SEVERAL: dict[str, tuple[Literal["erm", "constrained", "deep_supervision"], ...]] = {
    "both": ("erm", "constrained"),
    "all": ("erm", "deep_supervision", "constrained"),
}


@dataclasses.dataclass(frozen=True)
class ConstrainedConfig(RunConfig):
    """Train a model whose every layer has a loss, plainly or under descent constraints."""

    method: Basic[Method] = "constrained"
    """Plain risk (erm), descent constraints, or fixed weights on the losses of layers before the last
    (deep_supervision); both, all: the first two, or three, and a report."""
    layer_weights: tuple[NonNegative, ...] = (0.1,)
    """Of deep_supervision, with 1 on the last layer: one number, or one for each of layers 1 to L - 1."""
    rising_weights: bool = False
    """Of deep_supervision: weights that grow with depth as LayerSkip's (Elhoushi et al. 2024), whose e_scale is
    --layer-weights: layer l of L weighs e_scale l (l - 1) / 2, the last L - 1 more than that, all over their sum."""
    steps: Basic[Count] = 1500
    """Training steps."""
    train_gamma: NonNegative = 0.0
    """Strength of the noise of training."""
    test_gammas: tuple[NonNegative, ...] = (0.0,)
    """Strengths of noise of the evaluation; that of training is added when missing."""
    validate_every: Count = 250
    """Steps between validations; each writes a checkpoint."""
    on_collapse: Literal["stop", "warn"] = "stop"
    """Response to two validations in a row that show a collapsed model."""
    primal: PrimalConfig = dataclasses.field(default_factory=PrimalConfig)
    dual: DualConfig = dataclasses.field(default_factory=DualConfig)
    constraints: ConstraintConfig = dataclasses.field(default_factory=ConstraintConfig)

    def rules(self) -> Iterator[Rule]:
        """Yields the rules across fields that hold at any depth; `check_depth` has the others."""
        yield from super().rules()
        yield from _dual_rules(self)
        yield from _layer_rules(self)
        yield from _swing_rules(self)
        warmup = self.constraints.warmup_steps
        needed = f"below {option_text('steps', self.steps)}, or constraints never count; lower it, or raise the steps"
        yield "constraints.warmup_steps", needed, not self.enforces or warmup < self.steps
        yield "test_gammas", "one number or more", len(self.test_gammas) > 0
        explicit = self.constraints.slacks == "explicit"
        needed = f"a number with {option_text('constraints.slacks', 'explicit')}, whose slacks cost it"
        yield "constraints.resilience", needed, not explicit or self.constraints.resilience is not None

    def conditions(self) -> Iterator[Condition]:
        """Yields the options of one choice among several."""
        dual, constraints, slacks = self.dual, self.constraints, option_text("constraints.slacks", "explicit")
        yield "dual.nu", option_text("dual.optimizer", "nu_pi"), dual.optimizer == "nu_pi"
        pi = option_text("dual.optimizer", "pi or nu_pi")
        yield "dual.proportional_gain", pi, dual.optimizer in ("pi", "nu_pi")
        for name in ("layer_weights", "rising_weights"):
            yield name, option_text("method", "deep_supervision"), self.supervises
        for name, bind in (("level", "tail"), ("leeway", "positive")):
            yield f"constraints.{name}", option_text("constraints.bind", bind), constraints.bind == bind
        for name in ("bounds", "floor"):
            yield f"constraints.{name}", f"no {option_text('constraints.levels')}", not constraints.levels
        for name in ("slack_rate", "slack_restarts"):
            yield f"constraints.{name}", slacks, constraints.slacks == "explicit"

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
        name, steps = option_text("constraints.warmup_steps"), option_text("steps", self.steps)
        log(f"{name} is {fits} here: the default, {warmup}, does not fit {steps}")
        return with_value(self, "constraints.warmup_steps", fits)


NOISE = "noise and collapse, which a user's task does not have"
WITHOUT_EFFECT = {
    "train_gamma": NOISE,
    "test_gammas": NOISE,
    "on_collapse": NOISE,
    "unroll": "a loop over layers of this package",
}


@dataclasses.dataclass(frozen=True)
class OwnConfig(ConstrainedConfig):
    """Options of a user's task, an `OwnTask` of functions and arrays, which gets no noise.

    Example:
      >>> from unroll_jax.train import ConstraintConfig, PrimalConfig
      >>> constraints, primal = ConstraintConfig(alpha=(0.1,)), PrimalConfig(learning_rate=1e-2)
      >>> config = OwnConfig(steps=100, constraints=constraints, primal=primal)
      >>> config.check()  # of every number
      >>> config.label()
      'constrained-seed0'
    """

    task: ClassVar[str] = "own"
    metric: ClassVar[str] = "validation loss"

    def conditions(self) -> Iterator[Condition]:
        """Yields those of all such runs, and the options that a user's task cannot have."""
        yield from super().conditions()
        yield from ((name, of, False) for name, of in WITHOUT_EFFECT.items())

    def label(self) -> str:
        """Method and seed."""
        return f"{self.method}-seed{self.seed}"


def check_depth(config: ConstrainedConfig, num_layers: int) -> None:
    """Checks the options that have a value for each layer or constraint against the number of layers."""
    check_rules(config, _depth_rules(config, num_layers))


def check_epochs(config: ConstrainedConfig, steps_an_epoch: int) -> None:
    """Checks that multipliers move, and that explicit slacks are not 0 in every step, at this length of an epoch."""
    counted, settings = _counted_steps(config), config.constraints
    restarts = settings.slacks == "explicit" and settings.slack_restarts
    if config.enforces and restarts and steps_an_epoch == 1:
        raise UserError(
            f"{option_text('constraints.slack_restarts')} sets explicit slacks to 0 in every step: the train split is "
            f"one batch; pass {option_text('constraints.slack_restarts', False)}, or a smaller "
            f"{option_text('batch_size')}"
        )
    if config.dual.every == "epoch" and counted < steps_an_epoch and not _may_stand_still(config):
        names = ", ".join(map(option_text, ("steps", "constraints.warmup_steps", "dual.freeze_after")))
        raise UserError(
            f"{option_text('dual.every', 'epoch')} moves no multiplier: an epoch has {steps_an_epoch} steps, "
            f"multipliers may move in {counted} ({names}); raise {option_text('steps')} or "
            f"{option_text('dual.freeze_after')}, or pass a number of batches"
        )


def rising_weights(numbers: Sequence[int], scale: float) -> tuple[float, ...]:
    r"""Returns the weights of the losses of layers, which add up to 1.

    Layer :math:`l < L` weighs :math:`e_l = s \sum_{i=0}^{l-1} i`, the last :math:`L - 1 + s \sum_{i=0}^{L-2} i`, each
    over the sum of these: quadratically more towards the end, where predicting is easier. The embedded input and layer
    1 weigh nothing.

    Source: Elhoushi et al., "LayerSkip" (2024), section 4.1.2, where layers are counted from 0; the sum runs over the
    layers that its curriculum has on, here those with a loss.
    """
    depth = numbers[-1]
    before = [scale * number * (number - 1) / 2 for number in numbers[:-1]]
    last = depth - 1 + scale * (depth - 1) * (depth - 2) / 2
    total = sum(before) + last
    return (*(weight / total for weight in before), last / total) if total > 0.0 else (*before, 1.0)


def _dual_rules(config: ConstrainedConfig) -> Iterator[Rule]:
    """Yields the rules for the multipliers' steps."""
    dual, counted = config.dual, _counted_steps(config)
    known = dual.optimizer in DUAL_OPTIMIZERS or ":" in dual.optimizer
    yield "dual.optimizer", f"one of {', '.join(DUAL_OPTIMIZERS)}, or MODULE:FACTORY", known
    warmup, frozen, still = config.constraints.warmup_steps, dual.freeze_after, _may_stand_still(config)
    name = option_text("constraints.warmup_steps", warmup)
    yield "dual.freeze_after", f"at least {name}", frozen is None or frozen >= warmup
    moves = still or frozen is None or frozen > warmup
    yield "dual.freeze_after", f"above {name}, unless some start above 0", moves
    every = 1 if dual.every == "epoch" else dual.every
    needed = f"at most the {counted} steps in which multipliers may move, unless some start above 0"
    yield "dual.every", needed, still or every <= max(counted, 1)


def _layer_rules(config: ConstrainedConfig) -> Iterator[Rule]:
    """Yields the rules for the constraints of layers and for their weights."""
    constraints, weights = config.constraints, config.layer_weights
    needed = f"a number with {option_text('constraints.bounds', 'cumulative')}, which start at it"
    absolute = bool(constraints.levels) or constraints.bounds == "stepwise"
    yield "constraints.reference", needed, absolute or constraints.reference is not None
    without_size = f"left out with {option_text('constraints.form', 'ratios')}, which have no size"
    yield "constraints.scale", without_size, not constraints.scale or constraints.form == "difference"
    yield "constraints.alpha", "one number or more", len(constraints.alpha) > 0
    single = constraints.first_alpha is None or len(constraints.alpha) == 1
    yield "constraints.first_alpha", f"None where {option_text('constraints.alpha')} has a number a layer", single
    yield "layer_weights", "one number or more", len(weights) > 0
    rising = f"one number with {option_text('rising_weights')}, which makes it one for each layer"
    yield "layer_weights", rising, len(weights) == 1 or not config.rising_weights
    some = f"above 0 for a layer, or it is {option_text('method', 'erm')}"
    yield "layer_weights", some, not config.supervises or any(weights)


def _swing_rules(config: ConstrainedConfig) -> Iterator[Rule]:
    """Yields the rules against oscillation under resilience: of a multiplier and its decay, a slack and its cost."""
    settings, least = config.constraints, config.dual.least_resilience
    beta = settings.resilience
    if not config.enforces or beta is None:
        return
    implied = (
        f"above {least:g} with these gains of {option_text('dual.optimizer', config.dual.optimizer)}, or multipliers "
        f"will oscillate; raise it, lower the gains, or pass {option_text('constraints.slacks', 'explicit')}"
    )
    yield "constraints.resilience", implied, settings.slacks == "explicit" or beta > least
    # Normalised, it is divided by 1 + sum of multipliers, which is 1 where they start.
    explicit = f"below {2.0 / beta:g}, which is 2 / {option_text('constraints.resilience')}, or slacks will oscillate"
    yield "constraints.slack_rate", explicit, settings.slacks == "implied" or settings.slack_rate * beta < 2.0


def _depth_rules(config: ConstrainedConfig, num_layers: int) -> Iterator[Rule]:
    """Yields the rules for values of each layer or constraint."""
    dual, alpha, cap = config.dual, config.constraints.alpha, config.dual.cap
    before = f"one number, or one for each layer before the last, of which there are {num_layers - 1}"
    yield "layer_weights", before, len(config.layer_weights) in (1, num_layers - 1)
    yield "method", "another for one layer, which has none before it", num_layers > 1 or not config.supervises
    each = f"one number, or one for each layer, of which there are {num_layers}"
    yield "constraints.alpha", each, len(alpha) in (1, num_layers)
    yield "constraints.levels", each, len(config.constraints.levels) in (0, 1, num_layers)
    first = 0 if config.constraints.reference is not None else 1
    count = num_layers + 1 - first
    yield "dual.start", f"one number, or one for each of {count} constraints", len(dual.start) in (1, count)
    starts = dual.start * count if len(dual.start) == 1 else dual.start
    below = cap is None or all(at <= cap or first + place in dual.frozen for place, at in enumerate(starts))
    yield "dual.start", f"at most {option_text('dual.cap', cap)}, but for frozen layers", below
    there = all(first <= layer <= num_layers for layer in dual.frozen)
    yield "dual.frozen", f"layers in {first}..{num_layers}", there


def _counted_steps(config: ConstrainedConfig) -> int:
    """Steps in which multipliers may move: after the warm-up, before they are frozen."""
    frozen = config.dual.freeze_after
    last = config.steps if frozen is None else min(config.steps, frozen)
    return last - config.constraints.warmup_steps


def _may_stand_still(config: ConstrainedConfig) -> bool:
    """Returns whether a run makes sense although no multiplier ever moves."""
    return not config.enforces or any(config.dual.start)
