"""Rules for the numbers of training under descent constraints."""

import dataclasses
from collections.abc import Callable
from typing import Any

from .constraints import ConstrainedConfig, DualConfig, PerturbedConfig
from .disturbances import BLUR, DROPPED, SALT_AND_PEPPER, disturbance_rules
from .errors import UserError
from .fields import Rule, check_fields, check_used, nonnegative, positive, value_of
from .run import parse_profile, run_rules

DUAL_OPTIMIZERS = ("adam", "nu_pi", "pi", "sgd")  # those of unroll_jax.constrained, which importing would load JAX for


def check_training(config: ConstrainedConfig, *rules: Rule) -> None:
    """Checks what all such runs share (noise, steps, rates, constraints), then rules of the task's own.

    What depends on the depth is left to `check_depth`.
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
        *_layer_rules(config),
        ("test-gammas", "one number or more", len(config.test_gammas) > 0),
        ("test-gammas", "finite and at least 0", all(map(nonnegative, config.test_gammas))),
        *_warmup_rules(config),
        *((name, "in [0, 1)", 0.0 <= value_of(config, name) < 1.0) for name in _SHARES),
        *((name, "positive and finite", positive(value_of(config, name))) for name in _POSITIVE),
        *((name, "finite and at least 0", nonnegative(value_of(config, name))) for name in _NONNEGATIVE),
    )
    check_fields(config, (*rules, *shared))
    check_used(config, _defaults(config), ((field, needed, used(config)) for field, needed, used in _ONLY_WITH))
    parse_profile(config.profile, num_steps=config.steps)
    if constraints.slacks == "explicit" and constraints.resilience is None:
        raise UserError("--constraints.slacks explicit needs a cost of slack; pass --constraints.resilience too")


def perturbation_rules(config: PerturbedConfig) -> tuple[Rule, ...]:
    """Returns the rules for disturbed layers and inputs."""
    levels = config.test_layer_noises
    return (
        ("layer-noise", "finite and at least 0", nonnegative(config.layer_noise)),
        ("test-layer-noises", "positive and finite, each once", all(map(positive, levels)) and _distinct(levels)),
        *disturbance_rules(config.test_disturbances, (SALT_AND_PEPPER, BLUR, DROPPED)),
    )


def check_depth(config: ConstrainedConfig, num_layers: int) -> None:
    """Checks what is given for each layer or constraint against the number of layers."""
    dual, alpha, cap = config.dual, config.constraints.alpha, config.dual.cap
    first = 0 if config.constraints.reference is not None else 1
    count = num_layers + 1 - first
    starts = dual.start * count if len(dual.start) == 1 else dual.start
    each = f"one number, or one for each layer, of which there are {num_layers}"
    before = f"one number, or one for each layer before the last, of which there are {num_layers - 1}"
    rules = (
        ("layer-weights", before, len(config.layer_weights) in (1, num_layers - 1)),
        ("method", "another for one layer, which has none before it", num_layers > 1 or not config.supervises),
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


def check_epochs(config: ConstrainedConfig, steps_an_epoch: int) -> None:
    """Checks that what moves, or starts anew, once an epoch moves at all."""
    counted, settings = counted_steps(config), config.constraints
    if config.enforces and settings.slacks == "explicit" and settings.slack_restarts and steps_an_epoch == 1:
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


def counted_steps(config: ConstrainedConfig) -> int:
    """Steps in which multipliers may move: after the warm-up, before they are frozen."""
    frozen = config.dual.freeze_after
    last = config.steps if frozen is None else min(config.steps, frozen)
    return last - config.constraints.warmup_steps


def _defaults(config: ConstrainedConfig) -> ConstrainedConfig:
    weights = {"layer_weights": ConstrainedConfig.layer_weights, "rising_weights": False}
    return dataclasses.replace(config, dual=type(config.dual)(), constraints=type(config.constraints)(), **weights)


def _distinct(levels: tuple[float, ...]) -> bool:
    return len(set(levels)) == len(levels)


def _may_stand_still(config: ConstrainedConfig) -> bool:
    """Returns whether a run makes sense although no multiplier ever moves."""
    return not config.enforces or any(config.dual.start)


def _layer_rules(config: ConstrainedConfig) -> tuple[Rule, ...]:
    """Returns the rules for the constraints of layers and for their weights."""
    constraints, weights = config.constraints, config.layer_weights
    first = constraints.first_alpha
    return (
        (
            "constraints.scale",
            "left out with --constraints.form ratio or log_ratio, which have no size",
            not constraints.scale or constraints.form == "difference",
        ),
        ("constraints.alpha", "one number or more", len(constraints.alpha) > 0),
        ("constraints.alpha", "in (0, 1)", all(0.0 < alpha < 1.0 for alpha in constraints.alpha)),
        ("constraints.first-alpha", "in (0, 1), or None", first is None or 0.0 < first < 1.0),
        (
            "constraints.first-alpha",
            "None where --constraints.alpha has a number a layer; pass --constraints.first-alpha None too",
            first is None or len(constraints.alpha) == 1,
        ),
        ("layer-weights", "one number or more", len(weights) > 0),
        ("layer-weights", "finite and at least 0", all(map(nonnegative, weights))),
        (
            "layer-weights",
            "one number with --rising-weights, which makes it one for each layer",
            len(weights) == 1 or not config.rising_weights,
        ),
        ("layer-weights", "above 0 for a layer, or it is --method erm", not config.supervises or any(weights)),
    )


def _warmup_rules(config: ConstrainedConfig) -> tuple[Rule, ...]:
    warmup, name = config.constraints.warmup_steps, "constraints.warmup-steps"
    needed = f"below --steps {config.steps}, or constraints never count; lower it, or raise --steps"
    return ((name, needed, not config.enforces or warmup < config.steps),)


def _swing_rules(config: ConstrainedConfig) -> tuple[Rule, ...]:
    """Returns the rules against oscillation under resilience: of a multiplier and its decay, a slack and its cost."""
    settings, least = config.constraints, _least_resilience(config.dual)
    beta = settings.resilience
    if not config.enforces or beta is None or beta <= 0.0:
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


# Options of one choice among several: field, that choice, whether it was made.
_ONLY_WITH: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("dual.nu", "--dual.optimizer nu_pi", lambda config: config.dual.optimizer == "nu_pi"),
    (
        "dual.proportional-gain",
        "--dual.optimizer pi or nu_pi",
        lambda config: config.dual.optimizer in ("pi", "nu_pi"),
    ),
    ("layer-weights", "--method deep_supervision", lambda config: config.supervises),
    ("rising-weights", "--method deep_supervision", lambda config: config.supervises),
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
