"""Video experiments, as the commands see them."""

import dataclasses
from pathlib import Path
from typing import Any

from train.data import VideoData, load
from train.data.clips import SPLITS
from train.recipe import Kind
from train.report import write_report
from train.tuning import Judgement, Tunable, Tuning
from train.video.config import VideoConfig, check_config
from train.video.evaluate import evaluate_video
from train.video.recipe import video_recipe
from train.video.state import plain_slacks
from train.video.task import video_task

__all__ = ["VIDEO"]


BOUND = {"tail": " in the mean over the worst samples", "positive": " in every sample, but for the leeway"}


def _variants(config: VideoConfig) -> list[tuple[str, VideoConfig]]:
    if config.method != "both":
        return [("", config)]
    return [(method, dataclasses.replace(config, method=method)) for method in ("erm", "constrained")]


def _label(config: VideoConfig) -> str:
    depth = f"L{config.model.num_layers}"
    return "-".join((config.data.source, config.method, depth, f"gamma{config.train_gamma}", f"seed{config.seed}"))


def _found(data: VideoData) -> dict[str, Any]:
    return {"pixel_std": data.pixel_std, "sequences": {split: data.num_sequences(split) for split in SPLITS}}


def _evaluate(config: VideoConfig, data: VideoData, state: Any, folder: Path) -> dict[str, Any]:
    del folder  # the report draws
    task, slacks = video_task(config, data), plain_slacks(config, state)
    return evaluate_video(config, task, data, state.evaluated, state.multipliers, slacks)


def _verdict(found: dict[str, Any]) -> str:
    gamma = str(float(found["train_gamma"]))
    words = "feasible on held-out data" if found["feasible"] else "NOT feasible on held-out data"
    if found["bind"] != "mean":
        words += BOUND[found["bind"]]
    if found["method"] == "erm":
        words = "unconstrained"
    rmse, noisy = found["rmse"][gamma], found["noisy_rmse"][gamma]
    return f"RMSE {rmse:.1f} against {noisy:.1f} of its input at gamma {found['train_gamma']}, {words}"


def _report(folders: Any, out: Path, log: Any) -> None:
    write_report(folders, out, log=log)


def _tunables(config: VideoConfig) -> dict[str, Tunable]:
    rate = Tunable("primal.learning_rate", "1e-4:5e-3", log=True)
    if config.method == "erm":
        return {"primal-rate": rate}
    reference, unit = config.constraints.reference, "half squared error per patch"
    return {
        # From where it is: a lower one may be below the loss of the noisy input, which nothing can meet.
        "f-ref": Tunable(
            "constraints.reference",
            None if reference is None else f"{reference:g}:{1.5 * reference:g}",
            optional=True,
            unit=unit,
        ),
        "alpha": Tunable("constraints.alpha", "0.05:0.3"),
        "dual-rate": Tunable("dual.learning_rate", "5e-4:5e-2", log=True),
        "primal-rate": rate,
        "resilience": Tunable("constraints.resilience", "none,3,10,100", log=True, optional=True),
    }


def _judge(config: VideoConfig, row: dict[str, Any]) -> Judgement:
    loss = row["layer_losses"][-1]
    return (
        Judgement(True, None, loss) if config.method == "erm" else Judgement(row["feasible"], row["worst_excess"], loss)
    )


VIDEO = Kind(
    config=VideoConfig,
    check=check_config,
    variants=_variants,
    label=_label,
    describe=lambda config: f"{config.method}, {config.model.num_layers} layers, {config.steps} steps",
    load=lambda config, log: load(config.data, log=log),
    found=_found,
    recipe=lambda config, data: video_recipe(config, video_task(config, data), data),
    evaluate=_evaluate,
    verdict=_verdict,
    report=_report,
    tuning=Tuning(_tunables, "validation loss (half squared error per patch)", larger_is_better=False, judge=_judge),
)
