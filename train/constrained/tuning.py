"""The two methods as runs of one command, and what a search may vary of them."""

import dataclasses
from typing import Any

from train.tuning import Judgement, Tunable

__all__ = ["judgement", "tunables", "variants"]


def variants(config: Any) -> list[tuple[str, Any]]:
    """The runs of a configuration: one, or with method "both" one of each."""
    if config.method != "both":
        return [("", config)]
    return [(method, dataclasses.replace(config, method=method)) for method in ("erm", "constrained")]


def tunables(config: Any, *, primal_rate: str, dual_rate: str, alpha: str, unit: str) -> dict[str, Tunable]:
    """Rates, bounds and the cost of slack; plain risk has but the rate of the parameters.

    Args:
      config: of a run.
      primal_rate: range of the parameters' rate.
      dual_rate: range of the multipliers' rate.
      alpha: range of the share of the loss that each layer must remove.
      unit: of losses.
    """
    rate = Tunable("primal.learning_rate", primal_rate, log=True)
    if config.method == "erm":
        return {"primal-rate": rate}
    reference = config.constraints.reference
    # From where it is: a lower one may be below a loss that nothing can lower.
    bounds = None if reference is None else f"{reference:g}:{1.5 * reference:g}"
    return {
        "f-ref": Tunable("constraints.reference", bounds, optional=True, unit=unit),
        "alpha": Tunable("constraints.alpha", alpha),
        "dual-rate": Tunable("dual.learning_rate", dual_rate, log=True),
        "primal-rate": rate,
        "resilience": Tunable("constraints.resilience", "none,3,10,100", log=True, optional=True),
    }


def judgement(config: Any, row: dict[str, Any]) -> Judgement:
    """What a validation says of a run of either method; the metric is the loss of the last layer."""
    loss = row["layer_losses"][-1]
    if config.method == "erm":
        return Judgement(True, None, loss)
    return Judgement(row["feasible"], row["worst_excess"], loss, row.get("relaxed_loss"))
