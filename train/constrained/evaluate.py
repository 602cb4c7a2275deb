"""What an evaluation says of a model's descent on held-out data; JSON values."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from train.constrained.bounds import Bounds
from train.constrained.duals import enforced, reduction
from train.metrics import numbers
from unroll_jax.constrained import feasibility_report

__all__ = ["RATIO_EDGES", "feasibility", "feasibility_words", "noise_figures", "noise_levels", "ratio_figures"]

# The last bin is open: it holds every ratio above 2.
RATIO_EDGES = np.append(np.round(np.linspace(0.0, 2.0, 81), 3), np.inf)
# What "feasible on held-out data" is said of where constraints bind something else than means over samples.
BOUND = {"tail": " in the mean over the worst samples", "positive": " in every sample, but for the leeway"}


def noise_levels(config: Any) -> list[float]:
    """The noise levels of the evaluation in rising order, the training level among them."""
    return sorted({float(gamma) for gamma in (*config.test_gammas, config.train_gamma)})


def noise_figures(config: Any) -> dict[str, Any]:
    """The noise of training and that of the evaluation, which alone has to be the same for runs to compare."""
    return {"train_gamma": config.train_gamma, "test_gammas": sorted({float(gamma) for gamma in config.test_gammas})}


def feasibility(
    config: Any, bounds: Bounds, sample_losses: np.ndarray, multipliers: Any, slacks: Any = None
) -> dict[str, Any]:
    """Losses, bounds, violations, multipliers and slacks by layer, from the losses (N, L + 1) of samples.

    Lists over layers have null for layer 0 where there is no reference. Bounds and violations are those stated;
    complementary slackness is of the tightened ones, which the multipliers enforced. Multipliers and slacks are those
    of training, in plain units; None stands for the slacks that multipliers imply.
    """
    settings = config.constraints
    report = feasibility_report(
        jnp.asarray(sample_losses),
        jnp.asarray(multipliers),
        bounds.stated,
        tolerance=settings.tolerance,
        resilience=settings.resilience,
        reduction=reduction(config),
    )
    bound = report.layer_losses if reduction(config) is None else jnp.asarray(sample_losses)
    unmet = enforced(config, bounds)(bound)
    slacks = report.slacks if slacks is None else jnp.asarray(slacks)
    report = report._replace(slacks=slacks, complementary_slackness=report.multipliers * (unmet - slacks))
    names = ("layer_losses", "bounds", "violations", "multipliers", "slacks", "complementary_slackness")
    return {
        "tolerance": settings.tolerance,
        "bind": settings.bind,
        **{name: numbers(getattr(report, name), length=len(report.layer_losses)) for name in names},
        "feasible": bool(report.feasible),
        "descend_share": numbers(report.descending),
        "mean_ratio": numbers(report.ratios),
    }


def feasibility_words(found: dict[str, Any]) -> str:
    """What an evaluation says of feasibility, in words."""
    if found["method"] == "erm":
        return "unconstrained"
    words = "feasible on held-out data" if found["feasible"] else "NOT feasible on held-out data"
    return words + BOUND.get(found["bind"], "")


def ratio_figures(sample_losses: np.ndarray) -> dict[str, Any]:
    """Distribution of f_l / f_{l-1} over samples, layer by layer, and the share of steps that descend."""
    before, after = sample_losses[:, :-1], sample_losses[:, 1:]
    ratios = np.divide(after, before, out=np.full_like(after, np.nan), where=before > 0.0)
    counts = [np.histogram(column[np.isfinite(column)], RATIO_EDGES)[0].tolist() for column in ratios.T]
    known = ratios[np.isfinite(ratios)]
    return {
        "ratio_histogram": {"edges": numbers(RATIO_EDGES), "counts": counts},
        "share_descending": float(np.mean(after < before)),
        "mean_ratio_all": float(np.mean(known)) if known.size else None,
    }
