"""What an evaluation says of a model's descent on held-out data; JSON values."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from train.constrained.bounds import Bounds
from train.constrained.config import ConstraintConfig
from train.metrics import numbers
from unroll_jax.constrained import feasibility_report

__all__ = ["RATIO_EDGES", "feasibility", "ratio_figures"]

# The last bin is open: it holds every ratio above 2.
RATIO_EDGES = np.append(np.round(np.linspace(0.0, 2.0, 81), 3), np.inf)


def feasibility(
    settings: ConstraintConfig, bounds: Bounds, sample_losses: np.ndarray, multipliers: Any
) -> dict[str, Any]:
    """Losses, bounds, violations, multipliers and slacks by layer, from the losses (N, L + 1) of samples.

    Lists over layers have null for layer 0 where there is no reference. Bounds and violations are those stated;
    complementary slackness is of the tightened ones, which the multipliers enforced.
    """
    report = feasibility_report(
        jnp.asarray(sample_losses),
        jnp.asarray(multipliers),
        bounds.stated,
        tolerance=settings.tolerance,
        resilience=settings.resilience,
    )
    enforced = bounds.tightened(report.layer_losses)
    report = report._replace(complementary_slackness=report.multipliers * (enforced - report.slacks))
    names = ("layer_losses", "bounds", "violations", "multipliers", "slacks", "complementary_slackness")
    return {
        **{name: numbers(getattr(report, name), length=len(report.layer_losses)) for name in names},
        "feasible": bool(report.feasible),
        "descend_share": numbers(report.descending),
        "mean_ratio": numbers(report.ratios),
    }


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
