"""What training under descent constraints is configured by, in every experiment that has them."""

import dataclasses
from typing import Any, Literal

from train.config import nonnegative, positive, value_of

__all__ = ["ConstraintConfig", "DualConfig", "training_rules"]


@dataclasses.dataclass(frozen=True)
class DualConfig:
    """Projected ascent on the multipliers."""

    optimizer: Literal["pi", "adam", "sgd"] = "pi"
    """sgd: rate x violation a step; pi: sgd plus a part proportional to the violation, which damps swings; adam: about
    its learning rate a step, whatever the violation (the paper's)."""
    learning_rate: float = 5e-3
    """Rate of the ascent; for pi, the integral gain."""
    proportional_gain: float = 1.0
    """Multiplier per unit of violation, for pi alone."""


@dataclasses.dataclass(frozen=True)
class ConstraintConfig:
    """What every layer must do."""

    alpha: tuple[float, ...] = (0.22,)
    """Share of the loss each layer must remove, in (0, 1): one number, or one a layer."""
    reference: float | None = 8.0
    """f_ref, bound on the loss at the embedded input; none drops that constraint."""
    resilience: float | None = None
    """beta, cost of slack (decays the multipliers); none keeps the constraints hard."""
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


def training_rules(config: Any) -> list[tuple[str, str, bool]]:
    """Rules for `train.config.check_fields` on what all such experiments share: noise, steps, rates and constraints."""
    alpha, warmup = config.constraints.alpha, config.constraints.warmup_steps
    return [
        *((name, "at least 1", value_of(config, name) >= 1) for name in _COUNTS),
        ("constraints.alpha", "one number or more", len(alpha) > 0),
        ("constraints.alpha", "in (0, 1)", all(0.0 < a < 1.0 for a in alpha)),
        ("test-gammas", "one number or more", len(config.test_gammas) > 0),
        ("test-gammas", "finite and at least 0", all(nonnegative(gamma) for gamma in config.test_gammas)),
        ("constraints.warmup-steps", f"at least 0 and below steps={config.steps}", 0 <= warmup < config.steps),
        ("seed", "a whole number in [0, 2**32)", 0 <= config.seed < 2**32),
        ("constraints.margin", "in [0, 1)", 0.0 <= config.constraints.margin < 1.0),
        ("constraints.first-margin", "in [0, 1)", 0.0 <= config.constraints.first_margin < 1.0),
        ("primal.warmup-share", "in [0, 1)", 0.0 <= config.primal.warmup_share < 1.0),
        *((name, "positive and finite", positive(value_of(config, name))) for name in _POSITIVE),
        *((name, "finite and at least 0", nonnegative(value_of(config, name))) for name in _NONNEGATIVE),
    ]


_COUNTS = ("steps", "batch-size", "validate-every")
_POSITIVE = (
    "primal.learning-rate",
    "primal.clip-norm",
    "dual.learning-rate",
    "constraints.reference",
    "constraints.resilience",
)
_NONNEGATIVE = ("train-gamma", "constraints.tolerance", "dual.proportional-gain")
