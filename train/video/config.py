"""The configuration of video experiments."""

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax

from train.config import PrimalConfig, RunConfig, check_fields, nonnegative, positive, run_rules, value_of
from train.data import DataConfig
from train.errors import UserError
from train.profile import parse_profile
from unroll_jax.constrained import DUAL_OPTIMIZERS

__all__ = [
    "ConstraintConfig",
    "DualConfig",
    "ModelConfig",
    "VideoConfig",
    "check_config",
    "counted_steps",
]

Method = Literal["erm", "constrained"]


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The unrolled transformer."""

    num_layers: int = 3
    """Depth L."""
    rank: int | None = None
    """Rows of V; none means the token width."""
    attention_scale: float = 0.25
    """V starts as this times the cosine transform: the square sharpens or softens attention."""
    mixing: float = 0.2
    """W starts as this times the identity and U as the rest: how much of a layer's first output is attention's."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """What layers compute in; parameters, losses and multipliers stay float32, or are float64 too, for which
    JAX_ENABLE_X64=1 must be set."""


@dataclasses.dataclass(frozen=True)
class DualConfig:
    """Projected ascent on the multipliers."""

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
    """Where multipliers start: one number, or one for each; under --constraints.scale, of the scaled constraints."""
    cap: float | None = None
    """Largest multiplier; none for no bound. Under --constraints.scale, of the scaled constraint."""
    frozen: tuple[int, ...] = ()
    """Layers whose multipliers stay where they start and weigh a fixed penalty; 0 is the bound on the input's loss."""
    freeze_after: int | None = None
    """Steps after which all multipliers stay as they are; none for never."""


@dataclasses.dataclass(frozen=True)
class ConstraintConfig:
    """What every layer must do."""

    alpha: tuple[float, ...] = (0.22,)
    """Share of the loss each layer must remove, in (0, 1): one number, or one a layer. The paper's UT has 0.22."""
    reference: float | None = 8.0
    """f_ref, bound on the loss at the embedded input, here the noisy input itself; none drops that constraint. The
    paper's UT has 5.5, below the input's loss on the built-in clips, which have more contrast than its videos."""
    resilience: float | None = None
    """beta, cost of slack; none keeps the constraints hard. Implied slacks decay multipliers by 1 / beta, which pi and
    nu_pi answer at once: too small a beta makes them swing for ever, and is refused."""
    slacks: Literal["implied", "explicit"] = "implied"
    """Under resilience. implied: multiplier / beta, which decays the multipliers; explicit: variables that descend
    beside the parameters."""
    slack_rate: float = 0.01
    """Rate of the descent of explicit slacks."""
    slack_restarts: bool = True
    """Set explicit slacks to 0 after every pass over the data, as the paper does."""
    bind: Literal["mean", "tail", "positive"] = "mean"
    """What of the samples a constraint binds. mean: their mean; tail: the mean over the worst share 1 - level (CVaR);
    positive: the mean of the violations above 0, so every sample. The last two are beyond the paper."""
    level: float = 0.7
    """Of tail, in [0, 1): 0 is the mean, towards 1 the worst sample."""
    leeway: float = 0.0
    """What the mean of positive may exceed 0 by, in units of the loss; without any, no model is strictly feasible."""
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


@dataclasses.dataclass(frozen=True)
class VideoConfig(RunConfig):
    """Denoise patch sequences of grey video with an unrolled transformer (Porras-Valenzuela et al., Section 4)."""

    method: Literal["erm", "constrained", "both"] = "constrained"
    """Plain risk, descent constraints, or one run of each and a report that compares them."""
    seed: int = 0
    """Seed of initialisation, batch order and noise."""
    steps: int = 1500
    """Training steps."""
    batch_size: int = 64
    """Sequences a step."""
    train_gamma: float = 0.15
    """Noise of training; gamma x the standard deviation of clean train pixels is the noise's variance."""
    test_gammas: tuple[float, ...] = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
    """Noise levels of the evaluation; the training level is added when missing."""
    validate_every: int = 250
    """Steps between validations; each writes a checkpoint."""
    on_collapse: Literal["stop", "warn"] = "stop"
    """What to do when two validations in a row show a collapsed model."""
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    primal: PrimalConfig = dataclasses.field(default_factory=PrimalConfig)
    dual: DualConfig = dataclasses.field(default_factory=DualConfig)
    constraints: ConstraintConfig = dataclasses.field(default_factory=ConstraintConfig)


def check_config(config: VideoConfig) -> None:
    """Checks every number against what the experiment allows.

    Raises:
      UserError: naming the field, its value and what is allowed.
    """
    alpha, warmup = config.constraints.alpha, config.constraints.warmup_steps
    rules = (
        *((name, "at least 1", value_of(config, name) is None or value_of(config, name) >= 1) for name in _COUNTS),
        *run_rules(config),
        *_dual_rules(config),
        ("constraints.alpha", "in (0, 1)", all(0.0 < a < 1.0 for a in alpha)),
        ("constraints.alpha", "one number, or one for each layer", len(alpha) in (1, config.model.num_layers)),
        ("test-gammas", "one number or more", len(config.test_gammas) > 0),
        ("test-gammas", "finite and at least 0", all(nonnegative(gamma) for gamma in config.test_gammas)),
        ("constraints.warmup-steps", f"at least 0 and below steps={config.steps}", 0 <= warmup < config.steps),
        ("seed", "a whole number in [0, 2**32)", 0 <= config.seed < 2**32),
        ("model.dtype", "float32 or bfloat16 unless JAX_ENABLE_X64=1 is set", _computable(config.model.dtype)),
        ("model.mixing", "in [0, 1]", 0.0 <= config.model.mixing <= 1.0),
        ("constraints.margin", "in [0, 1)", 0.0 <= config.constraints.margin < 1.0),
        ("constraints.first-margin", "in [0, 1)", 0.0 <= config.constraints.first_margin < 1.0),
        ("constraints.level", "in [0, 1)", 0.0 <= config.constraints.level < 1.0),
        ("primal.warmup-share", "in [0, 1)", 0.0 <= config.primal.warmup_share < 1.0),
        *((name, "positive and finite", positive(value_of(config, name))) for name in _POSITIVE),
        *((name, "finite and at least 0", nonnegative(value_of(config, name))) for name in _NONNEGATIVE),
    )
    check_fields(config, rules)
    for field, needed, used in _ONLY_WITH:
        if not used(config) and value_of(config, field) != value_of(VideoConfig(), field):
            raise UserError(f"--{field} {value_of(config, field)} has no effect without {needed}; leave it out")
    parse_profile(config.profile)
    if config.constraints.slacks == "explicit" and config.constraints.resilience is None:
        raise UserError("--constraints.slacks explicit needs a cost of slack; pass --constraints.resilience too")
    if config.train_gamma == 0.0 and config.method != "erm":
        raise UserError(
            "--train-gamma 0 leaves descent constraints nothing to lower; use --method erm, or a gamma above 0"
        )


def counted_steps(config: VideoConfig) -> int:
    """Steps in which multipliers may move: after the warm-up, before they are frozen."""
    frozen = config.dual.freeze_after
    last = config.steps if frozen is None else min(config.steps, frozen)
    return last - config.constraints.warmup_steps


def _dual_rules(config: VideoConfig) -> tuple[tuple[str, str, bool], ...]:
    dual, warmup, layers = config.dual, config.constraints.warmup_steps, config.model.num_layers
    first = 0 if config.constraints.reference is not None else 1
    count, frozen = layers + 1 - first, dual.freeze_after
    starts = dual.start * count if len(dual.start) == 1 else dual.start
    counted, still = counted_steps(config), config.method == "erm" or any(dual.start)
    return (
        (
            "dual.optimizer",
            f"one of {', '.join(DUAL_OPTIMIZERS)}, or MODULE:FACTORY",
            dual.optimizer in DUAL_OPTIMIZERS or ":" in dual.optimizer,
        ),
        *_swing_rules(config),
        ("dual.every", "at least 1, or epoch", dual.every == "epoch" or dual.every >= 1),
        (
            "dual.every",
            f"at most the {counted} steps in which multipliers may move, unless some start above 0",
            dual.every == "epoch" or still or dual.every <= max(counted, 1),
        ),
        ("dual.smoothing", "in [0, 1)", 0.0 <= dual.smoothing < 1.0),
        ("dual.nu", "in (-1, 1)", -1.0 < dual.nu < 1.0),
        ("dual.start", "finite and at least 0", all(nonnegative(value) for value in dual.start)),
        ("dual.start", f"one number, or one for each of {count} constraints", len(dual.start) in (1, count)),
        (
            "dual.start",
            f"at most dual.cap={dual.cap}, but for frozen layers",
            dual.cap is None or all(at <= dual.cap or first + i in dual.frozen for i, at in enumerate(starts)),
        ),
        ("dual.frozen", f"layers in {first}..{layers}", all(first <= layer <= layers for layer in dual.frozen)),
        ("dual.freeze-after", f"at least constraints.warmup-steps={warmup}", frozen is None or frozen >= warmup),
        (
            "dual.freeze-after",
            f"above constraints.warmup-steps={warmup}, unless some start above 0",
            still or frozen is None or frozen > warmup,
        ),
    )


def _swing_rules(config: VideoConfig) -> tuple[tuple[str, str, bool], ...]:
    """What keeps the loops of resilience from overshooting: of a multiplier and its decay, of a slack and its cost."""
    settings, least = config.constraints, _least_resilience(config.dual)
    beta = settings.resilience
    if config.method == "erm" or beta is None or beta <= 0.0:
        return ()
    implied = (
        "constraints.resilience",
        f"above {least:g} with these gains of --dual.optimizer {config.dual.optimizer}, or multipliers swing for ever; "
        "raise it, lower the gains, or pass --constraints.slacks explicit",
        settings.slacks == "explicit" or beta > least,
    )
    # Normalised, it is divided by 1 + sum of multipliers, which is 1 where they start.
    explicit = (
        "constraints.slack-rate",
        f"below 2 / constraints.resilience={2.0 / beta:g}, or slacks swing for ever",
        settings.slacks == "implied" or settings.slack_rate * beta < 2.0,
    )
    return implied, explicit


def _least_resilience(dual: DualConfig) -> float:
    """At or below it a root of the loop of a multiplier and its decay, `dual_ascent`'s resilience, is -1 or beyond."""
    if dual.optimizer not in ("sgd", "pi", "nu_pi"):
        # Adam's steps are no larger for a larger violation; of a factory's we know nothing.
        return 0.0
    lag = (1.0 - dual.nu) / (1.0 + dual.nu) if dual.optimizer == "nu_pi" and -1.0 < dual.nu < 1.0 else 1.0
    gain = dual.proportional_gain if dual.optimizer in ("pi", "nu_pi") else 0.0
    return 0.5 * dual.learning_rate + gain * lag


def _computable(dtype: str) -> bool:
    return dtype != "float64" or jax.config.read("jax_enable_x64")


# Options of one choice among several: field, that choice, whether it was made.
_ONLY_WITH: tuple[tuple[str, str, Callable[[VideoConfig], bool]], ...] = (
    ("dual.nu", "--dual.optimizer nu_pi", lambda config: config.dual.optimizer == "nu_pi"),
    (
        "dual.proportional-gain",
        "--dual.optimizer pi or nu_pi",
        lambda config: config.dual.optimizer in ("pi", "nu_pi"),
    ),
    ("constraints.level", "--constraints.bind tail", lambda config: config.constraints.bind == "tail"),
    ("constraints.leeway", "--constraints.bind positive", lambda config: config.constraints.bind == "positive"),
    *(
        (name, "--constraints.slacks explicit", lambda config: config.constraints.slacks == "explicit")
        for name in ("constraints.slack-rate", "constraints.slack-restarts")
    ),
)
_COUNTS = ("model.num-layers", "model.rank", "steps", "batch-size", "validate-every")
_POSITIVE = (
    "model.attention-scale",
    "primal.learning-rate",
    "primal.clip-norm",
    "dual.learning-rate",
    "dual.cap",
    "constraints.reference",
    "constraints.resilience",
    "constraints.slack-rate",
)
_NONNEGATIVE = ("train-gamma", "constraints.tolerance", "constraints.leeway", "dual.proportional-gain")
