"""What training under descent constraints is configured by, in every experiment that has them."""

import dataclasses
from typing import Any, Literal

from train.config import Rule, check_fields, nonnegative, positive, run_rules, value_of
from train.errors import UserError
from train.profile import parse_profile

__all__ = ["ConstraintConfig", "DualConfig", "check_depth", "check_epochs", "check_training"]


@dataclasses.dataclass(frozen=True)
class DualConfig:
    """Projected ascent on the multipliers."""

    optimizer: Literal["pi", "nu_pi", "adam", "sgd"] = "pi"
    """sgd: rate x violation a step; pi: sgd plus a part proportional to the violation, which damps swings; nu_pi: the
    same on a moving average; adam: about its learning rate a step, whatever the violation (the paper's)."""
    learning_rate: float = 5e-3
    """Rate of the ascent; for pi and nu_pi, the integral gain."""
    proportional_gain: float = 1.0
    """Multiplier per unit of violation, for pi and nu_pi alone."""
    nu: float = 0.0
    """Decay in (-1, 1) of the moving average of nu_pi."""
    every: int | Literal["epoch"] = 1
    """Batches whose violations are averaged for one step of the multipliers; epoch: those of a pass over the data."""
    smoothing: float = 0.0
    """Decay in [0, 1) of a moving average that takes the place of the violations; 0 for none."""
    start: tuple[float, ...] = (0.0,)
    """Where multipliers start: one number, or one for each constraint."""
    cap: float | None = None
    """Largest multiplier; none for no bound."""
    frozen: tuple[int, ...] = ()
    """Layers whose multipliers stay where they start and weigh a fixed penalty; 0 is the bound on the input's loss."""
    freeze_after: int | None = None
    """Steps after which all multipliers stay as they are; none for never."""


@dataclasses.dataclass(frozen=True)
class ConstraintConfig:
    """What every layer must do."""

    alpha: tuple[float, ...] = (0.22,)
    """Share of the loss each layer must remove, in (0, 1): one number, or one a layer."""
    reference: float | None = 8.0
    """f_ref, bound on the loss at the embedded input; none drops that constraint."""
    resilience: float | None = None
    """beta, cost of slack; none keeps the constraints hard."""
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
    slacks, too, a share of that. What is reported stays in plain units."""
    margin: float = 0.05
    """Share by which training tightens the bounds of layers 2 and on, so that the stated ones hold on held-out data."""
    first_margin: float = 0.2
    """The same for layer 1, whose loss carries over to held-out data least well."""
    warmup_steps: int = 0
    """Steps of plain risk before the constraints count."""
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
    constraints, frozen = config.constraints, config.dual.freeze_after
    warmup, left = constraints.warmup_steps, config.steps - constraints.warmup_steps
    every = 1 if config.dual.every == "epoch" else config.dual.every
    shared = (
        *((name, "at least 1", value_of(config, name) >= 1) for name in _COUNTS),
        *run_rules(config),
        ("dual.every", "at least 1, or epoch", every >= 1),
        (
            "dual.every",
            f"at most the {left} steps in which the constraints count",
            config.method == "erm" or every <= max(left, 1),
        ),
        ("dual.smoothing", "in [0, 1)", 0.0 <= config.dual.smoothing < 1.0),
        ("dual.nu", "in (-1, 1)", -1.0 < config.dual.nu < 1.0),
        ("dual.start", "finite and at least 0", all(map(nonnegative, config.dual.start))),
        ("dual.freeze-after", f"at least constraints.warmup-steps={warmup}", frozen is None or frozen >= warmup),
        ("constraints.alpha", "one number or more", len(constraints.alpha) > 0),
        ("constraints.alpha", "in (0, 1)", all(0.0 < alpha < 1.0 for alpha in constraints.alpha)),
        ("test-gammas", "one number or more", len(config.test_gammas) > 0),
        ("test-gammas", "finite and at least 0", all(map(nonnegative, config.test_gammas))),
        ("constraints.warmup-steps", f"at least 0 and below steps={config.steps}", 0 <= warmup < config.steps),
        ("seed", "a whole number in [0, 2**32)", 0 <= config.seed < 2**32),
        *((name, "in [0, 1)", 0.0 <= value_of(config, name) < 1.0) for name in _SHARES),
        *((name, "positive and finite", positive(value_of(config, name))) for name in _POSITIVE),
        *((name, "finite and at least 0", nonnegative(value_of(config, name))) for name in _NONNEGATIVE),
    )
    check_fields(config, (*rules, *shared))
    parse_profile(config.profile)
    if constraints.slacks == "explicit" and constraints.resilience is None:
        raise UserError("--constraints.slacks explicit needs a cost of slack; pass --constraints.resilience too")


def check_depth(config: Any, num_layers: int) -> None:
    """Checks what is given for each layer or constraint against the number of layers.

    Raises:
      UserError: naming the field, its value and what is allowed.
    """
    dual, alpha = config.dual, config.constraints.alpha
    first = 0 if config.constraints.reference is not None else 1
    count = num_layers + 1 - first
    each = f"one number, or one for each layer, of which there are {num_layers}"
    rules = (
        ("constraints.alpha", each, len(alpha) in (1, num_layers)),
        ("dual.start", f"one number, or one for each of {count} constraints", len(dual.start) in (1, count)),
        ("dual.frozen", f"layers in {first}..{num_layers}", all(first <= layer <= num_layers for layer in dual.frozen)),
    )
    check_fields(config, rules)


def check_epochs(config: Any, steps_an_epoch: int) -> None:
    """Checks that multipliers which move once an epoch move at all.

    Raises:
      UserError: if the run has no epoch in which the constraints count.
    """
    counted = config.steps - config.constraints.warmup_steps
    if config.method != "erm" and config.dual.every == "epoch" and counted < steps_an_epoch:
        raise UserError(
            f"--dual.every epoch moves no multiplier: an epoch has {steps_an_epoch} steps, the constraints count in "
            f"{counted} (--steps, --constraints.warmup-steps); raise --steps, or pass a number of batches"
        )


_COUNTS = ("steps", "batch-size", "validate-every")
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
