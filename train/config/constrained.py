"""Options of runs with a loss at every layer: plain, supervised deeply or under
descent constraints; their rules."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from .constraints import ConstraintConfig, DualConfig
from .errors import UserError, option_text
from .fields import Condition, Count, NonNegative, Rule, check_rules
from .run import Judgement, PrimalConfig, RunConfig

# erm: the former name of plain
Method = Literal["plain", "constrained", "deep_supervision", "both", "all", "erm"]
# The runs of one command, by method; any other method is one run.
SEVERAL: dict[str, tuple[Literal["plain", "constrained", "deep_supervision"], ...]] = {
    "both": ("plain", "constrained"),
    "all": ("plain", "deep_supervision", "constrained"),
}


@dataclasses.dataclass(frozen=True)
class ConstrainedConfig(RunConfig):
    """Train a model whose every layer has a loss, plainly or under descent
    constraints."""

    method: Method = "constrained"
    """plain: the last loss (or erm, empirical risk). constrained: under descent
    constraints. deep_supervision: fixed weights on the losses of layers before the
    last. both, all: plain and constrained, or all three, and a report.
    """
    layer_weights: tuple[NonNegative, ...] = (0.1,)
    """Of deep_supervision (last layer: 1) and --constraints.last: one number, or one
    for each of layers 1 to L - 1."""
    layer_weighting: Literal["given", "layerskip"] = "given"
    """given: --layer-weights. layerskip: weights that grow with depth, of LayerSkip
    (Elhoushi et al. 2024); --layer-weights is their scale of layers before the last.
    """
    steps: Count = 1500
    """Training steps."""
    train_gamma: NonNegative = 0.0
    """Strength of the noise of training."""
    test_gammas: tuple[NonNegative, ...] = (0.0,)
    """Strengths of noise of the evaluation; the strength of training is added when
    missing."""
    validate_every: Count = 250
    """Steps between validations; each writes a checkpoint."""
    primal: PrimalConfig = dataclasses.field(default_factory=PrimalConfig)
    dual: DualConfig = dataclasses.field(default_factory=DualConfig)
    constraints: ConstraintConfig = dataclasses.field(default_factory=ConstraintConfig)

    def __post_init__(self) -> None:
        """Gives the plain method its one name."""
        if self.method == "erm":
            object.__setattr__(self, "method", "plain")

    def followers(self) -> Iterator[tuple[str, Any]]:
        """Yields the reference, which a bound on the last loss replaces, heads, which
        divide the width, and the batches of a step of the multipliers, which a short
        run has fewer of.
        """
        model: Any = getattr(self, "model", None)
        yield (
            "dual.every",
            min(
                self.dual.every,
                max(self.steps - self.constraints.warmup(self.steps), 1),
            ),
        )
        yield from [("constraints.reference", None)] * (
            self.constraints.last is not None
        )
        if hasattr(model, "num_heads"):
            yield "model.num_heads", math.gcd(model.dim, model.num_heads)
        if hasattr(model, "num_key_value_heads"):
            yield (
                "model.num_key_value_heads",
                math.gcd(model.num_heads, model.num_key_value_heads),
            )

    def check(self) -> None:
        """Checks every value, also each layer's where the depth is known before the
        model is read."""
        super().check()
        if self.depth is not None:
            check_depth(self, self.depth)

    @property
    def depth(self) -> int | None:
        """The number of layers; None where a pretrained model or a user's task has
        it."""
        model: Any = getattr(self, "model", None)
        return (
            None
            if getattr(model, "pretrained", None) is not None
            else getattr(model, "num_layers", None)
        )

    def rules(self) -> Iterator[Rule]:
        """Yields the rules across fields that hold at any depth; `check_depth` has
        the rest."""
        yield from super().rules()
        yield from _own_rules(self)
        warmup = self.constraints.warmup(self.steps)
        needed = (
            f"below {option_text('steps', self.steps)}, or constraints never count;"
            " lower it, or raise the steps"
        )
        yield (
            "constraints.warmup_steps",
            needed,
            not self.enforces or warmup < self.steps,
        )
        yield "test_gammas", "one number or more", len(self.test_gammas) > 0

    def conditions(self) -> Iterator[Condition]:
        """Yields the options of one choice among several."""
        yield (
            "dual.proportional_gain",
            option_text("dual.optimizer", "pi"),
            self.dual.optimizer == "pi",
        )
        # Not of layer_weights, which the demo has: it may be run by any method.
        weighted = (
            f"{option_text('method', 'deep_supervision')} or"
            f" {option_text('constraints.last')}"
        )
        yield "layer_weighting", weighted, self.supervises or self.early
        yield (
            "constraints.floor",
            f"no {option_text('constraints.last')}",
            self.constraints.last is None,
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
        one, several = self.layer_weights * (num_layers - 1), self.layer_weights
        weights = (0.0, *(several if len(several) == num_layers - 1 else one), 1.0)
        if self.layer_weighting != "given":
            layers = tuple(numbers or range(num_layers + 1))
            weights = _layerskip_weights(layers, scale=self.layer_weights[0])
            if self.early and not any(weights[:-1]):
                name = option_text("layer_weighting", self.layer_weighting)
                raise UserError(
                    f"{name} weighs none of the layers {layers} before the last; give"
                    " the weights"
                )
        return (*weights[:-1], 0.0) if self.early else weights

    def variants(self) -> Sequence[tuple[str, Self]]:
        """One run, or with methods "both" and "all" one of each."""
        if self.method not in SEVERAL:
            return [("", self)]
        each = {
            method: dataclasses.replace(self, method=method)
            for method in SEVERAL[self.method]
        }
        return [(method, one._without_unused()) for method, one in each.items()]

    def _without_unused(self) -> Self:
        """Returns the options, with the layers' weights as given if the method does
        not use them."""
        return (
            self
            if self.supervises or self.early
            else dataclasses.replace(self, layer_weighting="given")
        )

    def describe(self) -> str:
        """Method, seed, depth where it is an option, and steps."""
        depth = "" if self.depth is None else f"{self.depth} layers, "
        return f"{self.method}, seed {self.seed}, {depth}{self.steps} steps"

    def judge(self, row: Mapping[str, Any]) -> Judgement:
        """The metric is the loss of the last layer, of either method, or those that
        are minimised within its bound."""
        loss = row["minimised"] if self.early else row["layer_losses"][-1]
        if not self.enforces:
            return Judgement(True, None, loss)
        return Judgement(row["feasible"], row["worst_excess"], loss)


@dataclasses.dataclass(frozen=True)
class OwnConfig(ConstrainedConfig):
    """Options of a user's task, an `own_task` of functions and arrays, which gets no
    noise.

    Example:
      >>> from unroll_jax.train import ConstraintConfig, PrimalConfig
      >>> constraints, primal = (
      ...     ConstraintConfig(alpha=(0.1,)),
      ...     PrimalConfig(learning_rate=1e-2),
      ... )
      >>> config = OwnConfig(steps=100, constraints=constraints, primal=primal)
      >>> config.check()  # of every number
      >>> config.label()
      'constrained-seed0'
    """

    task: ClassVar[str] = "own"
    metric: ClassVar[str] = "validation loss"

    def conditions(self) -> Iterator[Condition]:
        """Yields the conditions of all such runs, and the options that a user's task
        cannot have."""
        yield from super().conditions()
        for name in ("train_gamma", "test_gammas"):
            yield name, "noise, which a user's task does not have", False

    def label(self) -> str:
        """Method and seed."""
        return f"{self.method}-seed{self.seed}"


def check_depth(config: ConstrainedConfig, num_layers: int) -> None:
    """Checks the options that have a value for each layer or constraint against the
    number of layers."""
    check_rules(config, _depth_rules(config, num_layers))


def _layerskip_weights(layers: Sequence[int], *, scale: float) -> tuple[float, ...]:
    r"""Weights of the losses of layers, quadratically larger towards the end; they add
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
    return (
        (*(weight / total for weight in early), last / total)
        if total > 0.0
        else (*early, 1.0)
    )


def _own_rules(config: ConstrainedConfig) -> Iterator[Rule]:
    """Yields the rules for multipliers, for the constraints of layers and for their
    weights."""
    dual, constraints, weights = config.dual, config.constraints, config.layer_weights
    counted = config.steps - constraints.warmup(config.steps)
    needed = (
        f"at most the {counted} steps in which multipliers may move, unless some start"
        " above 0"
    )
    still = not config.enforces or any(dual.start)
    yield "dual.every", needed, still or dual.every <= max(counted, 1)
    needed = (
        f"a number with {option_text('constraints.bounds', 'cumulative')}, which start"
        " at it"
    )
    alone = constraints.last is None
    absolute = constraints.bounds == "stepwise" or not alone
    yield "constraints.reference", needed, absolute or constraints.reference is not None
    needed = (
        f"None with {option_text('constraints.last')}, which is the only bound on"
        " layers then"
    )
    yield "constraints.reference", needed, alone or constraints.reference is None
    yield "constraints.alpha", "one number or more", len(constraints.alpha) > 0
    single = constraints.first_alpha is None or len(constraints.alpha) == 1
    yield (
        "constraints.first_alpha",
        f"None where {option_text('constraints.alpha')} has a number a layer",
        single,
    )
    yield "layer_weights", "one number or more", len(weights) > 0
    rising = (
        f"one number with {option_text('layer_weighting', config.layer_weighting)},"
        " which it scales"
    )
    yield (
        "layer_weights",
        rising,
        len(weights) == 1 or config.layer_weighting == "given",
    )
    some = f"above 0 for a layer, or it is {option_text('method', 'plain')}"
    yield (
        "layer_weights",
        some,
        any(weights) or not (config.supervises or (config.enforces and not alone)),
    )
    beta, least = constraints.resilience, dual.least_resilience
    gains = f"these gains of {option_text('dual.optimizer', dual.optimizer)}"
    steady = (
        f"above {least:g} with {gains}, or multipliers will oscillate; raise it, or"
        " lower the gains"
    )
    yield (
        "constraints.resilience",
        steady,
        not config.enforces or beta is None or beta > least,
    )


def _depth_rules(config: ConstrainedConfig, num_layers: int) -> Iterator[Rule]:
    """Yields the rules for values of each layer or constraint."""
    dual, alpha, weights = config.dual, config.constraints.alpha, config.layer_weights
    before = (
        "one number, or one for each layer before the last, of which there are"
        f" {num_layers - 1}"
    )
    yield "layer_weights", before, len(weights) in (1, num_layers - 1)
    several = num_layers > 1 or not (config.supervises or config.constraints.last)
    yield "method", "another for one layer, which has none before it", several
    each = f"one number, or one for each layer, of which there are {num_layers}"
    yield "constraints.alpha", each, len(alpha) in (1, num_layers)
    bounded = num_layers if config.constraints.last is None else 1
    count = bounded + (config.constraints.reference is not None)
    yield (
        "dual.start",
        f"one number, or one for each of {count} constraints",
        len(dual.start) in (1, count),
    )
    below = dual.cap is None or all(start <= dual.cap for start in dual.start)
    yield "dual.start", f"at most {option_text('dual.cap', dual.cap)}", below
