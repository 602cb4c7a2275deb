"""Video experiments, as the commands see them."""

from pathlib import Path
from typing import Any

from train.constrained import feasibility_words, judgement, plain_slacks, tunables, variants
from train.data import VideoData, load
from train.data.clips import SPLITS
from train.recipe import Kind
from train.report import write_report
from train.tuning import Tunable, Tuning
from train.video.config import VideoConfig, check_config
from train.video.evaluate import evaluate_video
from train.video.recipe import video_recipe
from train.video.task import video_task

__all__ = ["VIDEO"]


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
    rmse, noisy, words = found["rmse"][gamma], found["noisy_rmse"][gamma], feasibility_words(found)
    return f"RMSE {rmse:.1f} against {noisy:.1f} of its input at gamma {found['train_gamma']}, {words}"


def _report(folders: Any, out: Path, log: Any) -> None:
    write_report(folders, out, log=log)


def _tunables(config: VideoConfig) -> dict[str, Tunable]:
    return tunables(
        config, primal_rate="1e-4:5e-3", dual_rate="5e-4:5e-2", alpha="0.05:0.3", unit="half squared error per patch"
    )


VIDEO = Kind(
    config=VideoConfig,
    check=check_config,
    variants=variants,
    label=_label,
    describe=lambda config: f"{config.method}, {config.model.num_layers} layers, {config.steps} steps",
    load=lambda config, log: load(config.data, log=log),
    found=_found,
    recipe=lambda config, data: video_recipe(config, video_task(config, data), data),
    evaluate=_evaluate,
    verdict=_verdict,
    report=_report,
    tuning=Tuning(_tunables, "validation loss (half squared error per patch)", larger_is_better=False, judge=judgement),
)
