"""Every figure of a report as one strict-JSON object."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from train.report.groups import Setting, Variant, headline
from train.report.read import METHODS, Run

__all__ = ["summarise"]

MEANS = (
    "layer_losses",
    "bounds",
    "violations",
    "multipliers",
    "slacks",
    "complementary_slackness",
    "descend_share",
    "mean_ratio",
)


def summarise(settings: Sequence[Setting], runs: Sequence[Run]) -> dict[str, Any]:
    """The summary: the headline comparison first, then every group and every run.

    ``methods`` and ``noisy_input`` describe the headline setting (see `groups.headline`), each number a mean over the
    seeds of the first variant of each method; ``groups`` holds every setting and variant, ``runs`` every run.

    Returns:
      Plain Python values, ready for strict JSON: a number that is not finite is None.
    """
    main = headline(settings)
    chosen = {method: main.of(method)[0] for method in METHODS if main.of(method)}
    summary = {
        "experiment": runs[0].evaluation["experiment"],
        "train_gamma": main.train_gamma,
        "num_layers": main.num_layers,
        "num_sequences": runs[0].evaluation["num_sequences"],
        "noisy_input": {"rmse": _by_gamma(main.gammas, main.noisy_rmse())},
        "methods": {method: _variant(variant) for method, variant in chosen.items()},
        "groups": [_setting(setting) for setting in settings],
        "runs": [_run(run) for run in runs],
    }
    return _plain(summary)


def _variant(variant: Variant) -> dict[str, Any]:
    rmse = variant.rmse()
    return {
        "label": variant.label,
        "runs": [run.name for run in variant.runs],
        "seeds": [run.evaluation["seed"] for run in variant.runs],
        "rmse": _by_gamma(variant.gammas, rmse.mean(0)),
        "rmse_min": _by_gamma(variant.gammas, rmse.min(0)),
        "rmse_max": _by_gamma(variant.gammas, rmse.max(0)),
        **{key: variant.mean(key) for key in MEANS},
        "feasible": variant.feasible,
        "feasible_runs": variant.feasible_runs,
        "worst_margin": variant.worst()[2],
        "tolerance": variant.scalar("tolerance"),
        "monotone": bool(np.all(np.diff(variant.stack("layer_losses"), axis=1) < 0)),
        "share_descending": variant.scalar("share_descending"),
        "mean_ratio_all": variant.scalar("mean_ratio_all"),
        "train_seconds": variant.scalar("train_seconds"),
        "steps": [run.status.get("steps") for run in variant.runs],
        "parameters": variant.runs[0].evaluation.get("parameters"),
    }


def _setting(setting: Setting) -> dict[str, Any]:
    return {
        "num_layers": setting.num_layers,
        "train_gamma": setting.train_gamma,
        "noisy_input": {"rmse": _by_gamma(setting.gammas, setting.noisy_rmse())},
        "variants": [{"method": variant.method, **_variant(variant)} for variant in setting.variants],
    }


def _run(run: Run) -> dict[str, Any]:
    status = {key: run.status.get(key) for key in ("state", "steps", "compile_seconds", "messages")}
    return {"run": run.name, **status, **run.evaluation}


def _by_gamma(gammas: Sequence[str], values: np.ndarray) -> dict[str, float]:
    return dict(zip(gammas, values.tolist(), strict=True))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
