"""What training under descent constraints is configured by, in every experiment that has them."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from train.config import Rule, check_fields, check_used, nonnegative, positive, run_rules, value_of
from train.errors import UserError
from train.limits import count_rules, size_rules
from train.profile import parse_profile
from unroll_jax.constrained import DUAL_OPTIMIZERS

__all__ = ["ConstraintConfig", "DualConfig", "check_depth", "check_epochs", "check_training", "counted_steps"]


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
    """Largest multiplier; None for no bound. Under --constraints.scale, of the scaled constraint."""
    frozen: tuple[int, ...] = ()
    """Layers whose multipliers stay where they start and weigh a fixed penalty; 0 is the bound on the input's loss."""
    freeze_after: int | None = None
    """Steps after which all multipliers stay as they are; None for never."""


@dataclasses.dataclass(frozen=True)
class ConstraintConfig:
    """What every layer must do."""

    alpha: tuple[float, ...] = (0.22,)
    """Share of the loss each layer must remove, in (0, 1): one number, or one a layer."""
    reference: float | None = 8.0
    """f_ref, bound on the loss at the embedded input; None drops that constraint."""
    resilience: float | None = None
    """beta, cost of slack; None keeps the constraints hard. Implied slacks decay multipliers by 1 / beta, which pi and
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


def check_training(config: Any, *rules: Rule) -> None:
    """Checks what all such experiments share (noise, steps, rates, constraints), then rules of the experiment's own.

    What depends on the depth is left to `check_depth`.

    Raises:
      UserError: naming the field, its value and what is allowed.
    """
    constraints, dual, frozen = config.constraints, config.dual, config.dual.freeze_after
    warmup, counted = constraints.warmup_steps, counted_steps(config)
    every, still = 1 if dual.every == "epoch" else dual.every, _may_stand_still(config)
    shared = (
        *run_rules(config),
        (
            "dual.optimizer",
            f"one of {', '.join(DUAL_OPTIMIZERS)}, or MODULE:FACTORY",
            dual.optimizer in DUAL_OPTIMIZERS or ":" in dual.optimizer,
        ),
        *_swing_rules(config),
        (
            "dual.every",
            f"at most the {counted} steps in which multipliers may move, unless some start above 0",
            still or every <= max(counted, 1),
        ),
        ("dual.smoothing", "in [0, 1)", 0.0 <= dual.smoothing < 1.0),
        ("dual.nu", "in (-1, 1)", -1.0 < dual.nu < 1.0),
        ("dual.start", "finite and at least 0", all(map(nonnegative, dual.start))),
        ("dual.freeze-after", f"at least --constraints.warmup-steps {warmup}", frozen is None or frozen >= warmup),
        (
            "dual.freeze-after",
            f"above --constraints.warmup-steps {warmup}, unless some start above 0",
            still or frozen is None or frozen > warmup,
        ),
        ("constraints.alpha", "one number or more", len(constraints.alpha) > 0),
        ("constraints.alpha", "in (0, 1)", all(0.0 < alpha < 1.0 for alpha in constraints.alpha)),
        ("test-gammas", "one number or more", len(config.test_gammas) > 0),
        ("test-gammas", "finite and at least 0", all(map(nonnegative, config.test_gammas))),
        *_warmup_rules(config),
        *((name, "in [0, 1)", 0.0 <= value_of(config, name) < 1.0) for name in _SHARES),
        *((name, "positive and finite", positive(value_of(config, name))) for name in _POSITIVE),
        *((name, "finite and at least 0", nonnegative(value_of(config, name))) for name in _NONNEGATIVE),
    )
    check_fields(config, (*count_rules(config), *rules, *shared, *size_rules(config)))
    check_used(config, _Defaults(), ((field, needed, used(config)) for field, needed, used in _ONLY_WITH))
    parse_profile(config.profile, num_steps=config.steps)
    if constraints.slacks == "explicit" and constraints.resilience is None:
        raise UserError("--constraints.slacks explicit needs a cost of slack; pass --constraints.resilience too")


def check_depth(config: Any, num_layers: int) -> None:
    """Checks what is given for each layer or constraint against the number of layers.

    Raises:
      UserError: naming the field, its value and what is allowed.
    """
    dual, alpha, cap = config.dual, config.constraints.alpha, config.dual.cap
    first = 0 if config.constraints.reference is not None else 1
    count = num_layers + 1 - first
    starts = dual.start * count if len(dual.start) == 1 else dual.start
    each = f"one number, or one for each layer, of which there are {num_layers}"
    rules = (
        ("constraints.alpha", each, len(alpha) in (1, num_layers)),
        ("dual.start", f"one number, or one for each of {count} constraints", len(dual.start) in (1, count)),
        (
            "dual.start",
            f"at most --dual.cap {cap}, but for frozen layers",
            cap is None or all(at <= cap or first + place in dual.frozen for place, at in enumerate(starts)),
        ),
        ("dual.frozen", f"layers in {first}..{num_layers}", all(first <= layer <= num_layers for layer in dual.frozen)),
    )
    check_fields(config, rules)


def check_epochs(config: Any, steps_an_epoch: int) -> None:
    """Checks that what moves, or starts anew, once an epoch moves at all.

    Raises:
      UserError: if multipliers move once an epoch and the run has none; if slacks start anew in every step.
    """
    counted, settings = counted_steps(config), config.constraints
    if config.method != "erm" and settings.slacks == "explicit" and settings.slack_restarts and steps_an_epoch == 1:
        raise UserError(
            "--constraints.slack-restarts sets explicit slacks to 0 in every step: the train split is one batch; pass "
            "--constraints.no-slack-restarts, or a smaller --batch-size"
        )
    if config.dual.every == "epoch" and counted < steps_an_epoch and not _may_stand_still(config):
        raise UserError(
            f"--dual.every epoch moves no multiplier: an epoch has {steps_an_epoch} steps, multipliers may move in "
            f"{counted} (--steps, --constraints.warmup-steps, --dual.freeze-after); raise --steps or "
            "--dual.freeze-after, or pass a number of batches"
        )


def counted_steps(config: Any) -> int:
    """Steps in which multipliers may move: after the warm-up, before they are frozen."""
    frozen = config.dual.freeze_after
    last = config.steps if frozen is None else min(config.steps, frozen)
    return last - config.constraints.warmup_steps


def _may_stand_still(config: Any) -> bool:
    """Whether a run makes sense where no multiplier ever moves."""
    return config.method == "erm" or any(config.dual.start)


def _warmup_rules(config: Any) -> tuple[Rule, ...]:
    warmup, name = config.constraints.warmup_steps, "constraints.warmup-steps"
    needed = f"below --steps {config.steps}, or constraints never count; lower it, or raise --steps"
    return ((name, needed, config.method == "erm" or warmup < config.steps),)


def _swing_rules(config: Any) -> tuple[Rule, ...]:
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
        f"below {2.0 / beta:g}, which is 2 / --constraints.resilience, or slacks swing for ever",
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


class _Defaults(NamedTuple):
    dual: DualConfig = DualConfig()
    constraints: ConstraintConfig = ConstraintConfig()


# Options of one choice among several: field, that choice, whether it was made.
_ONLY_WITH: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
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


_SHARES = ("constraints.margin", "constraints.first-margin", "constraints.level", "primal.warmup-share")
_POSITIVE = (
    "primal.learning-rate",
    "primal.clip-norm",
    "dual.learning-rate",
    "dual.cap",
    "constraints.reference",
    "constraints.resilience",
    "constraints.slack-rate",
)
_NONNEGATIVE = ("train-gamma", "constraints.tolerance", "constraints.leeway", "dual.proportional-gain")
