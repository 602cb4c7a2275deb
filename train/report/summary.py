"""Every figure of a report as one strict-JSON object."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from train.report.groups import Setting, Variant, headline
from train.report.read import Run

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


def summarise(
    settings: Sequence[Setting], runs: Sequence[Run], more: Callable[[Variant], dict[str, Any]] = lambda variant: {}
) -> dict[str, Any]:
    """The summary: the headline comparison first, then every group and every run.

    ``methods`` and ``noisy_input`` describe the headline setting (see `groups.headline`), each number a mean over the
    seeds of a variant: the first constrained one, and the plain one it is compared with. ``groups`` holds every setting
    and variant, ``runs`` every run. What ``more`` says of a variant goes with it.

    Returns:
      Plain Python values, ready for strict JSON: a number that is not finite is None.
    """
    main = headline(settings)
    chosen = {variant.method: variant for variant in reversed(main.pairs()[0]) if variant}
    summary = {
        "experiment": runs[0].evaluation["experiment"],
        "train_gamma": main.train_gamma,
        "num_layers": main.num_layers,
        runs[0].score.tested: runs[0].evaluation[runs[0].score.tested],
        **_noisy_input(main),
        "methods": {method: {**_variant(variant), **more(variant)} for method, variant in chosen.items()},
        "groups": [_setting(setting, more) for setting in settings],
        "runs": [_run(run) for run in runs],
    }
    return _plain(summary)


def _variant(variant: Variant) -> dict[str, Any]:
    scores, name = variant.scores(), variant.runs[0].score_name
    return {
        "label": variant.label,
        "runs": [run.name for run in variant.runs],
        "seeds": [run.evaluation["seed"] for run in variant.runs],
        name: _by_gamma(variant.gammas, scores.mean(0)),
        f"{name}_min": _by_gamma(variant.gammas, scores.min(0)),
        f"{name}_max": _by_gamma(variant.gammas, scores.max(0)),
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


def _setting(setting: Setting, more: Callable[[Variant], dict[str, Any]]) -> dict[str, Any]:
    return {
        "num_layers": setting.num_layers,
        "train_gamma": setting.train_gamma,
        **_noisy_input(setting),
        "variants": [{"method": variant.method, **_variant(variant), **more(variant)} for variant in setting.variants],
    }


def _noisy_input(setting: Setting) -> dict[str, Any]:
    """The scores of the input itself, where there are any."""
    run = setting.variants[0].runs[0]
    if run.score.baseline is None:
        return {}
    return {"noisy_input": {run.score_name: _by_gamma(setting.gammas, setting.noisy_rmse())}}


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
