"""Supervised experiments, as the commands see them: classification of images, and labelling of scenes."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from train.data import images, scenes
from train.data.splits import SPLITS
from train.errors import UserError
from train.recipe import Kind
from train.supervised.config import (
    ImageFeedForwardConfig,
    ImageMonConfig,
    ImageOdeConfig,
    ImageOptEqConfig,
    SceneFcnConfig,
    SceneOptEqConfig,
    check_supervised,
)
from train.supervised.evaluate import evaluate_supervised
from train.supervised.pictures import predict, write_predictions
from train.supervised.recipe import supervised_recipe
from train.supervised.report import Measure, write_supervised_report
from train.supervised.task import supervised_task
from train.tuning import Judgement, Tunable, Tuning

__all__ = ["IMAGE_FEEDFORWARD", "IMAGE_MON", "IMAGE_ODE", "IMAGE_OPTEQ", "SCENE_FCN", "SCENE_OPTEQ"]

ACCURACY = (Measure("accuracy", "accuracy %"),)
SEGMENTATION = (
    Measure("intersection_over_union", "mIoU %"),
    Measure("class_accuracy", "mAcc %"),
    Measure("accuracy", "aAcc %"),
)


# Named otherwise, or what a run may go on with another value of.
_UNNAMED = ("seed", "mesh", "accumulate", "remat", "profile", "out", "data")


def _label(config: Any) -> str:
    """The source, and every option of the run that is not the experiment's own, shortened."""
    changed = [f"{name}{value}" for name, value in _changes(config, type(config)())]
    return "-".join([config.data.source, *changed, f"seed{config.seed}"]).replace("/", "_")


def _changes(config: Any, usual: Any) -> list[tuple[str, Any]]:
    found = []
    for field in dataclasses.fields(config):
        value, default = getattr(config, field.name), getattr(usual, field.name)
        if field.name in _UNNAMED or value == default:
            continue
        if dataclasses.is_dataclass(value):
            found += _changes(value, default)
        else:
            found.append((field.name, "x".join(map(str, value)) if isinstance(value, tuple) else value))
    return found


def _report_by(measures: tuple[Measure, ...], *, pictured: bool = False) -> Callable[..., None]:
    def report(folders: Any, out: Path, log: Any) -> None:
        write_supervised_report(folders, out, measures=measures, pictured=pictured, log=log)

    return report


def _found(data: Any) -> dict[str, Any]:
    sizes = {split: data.num_examples(split) for split in SPLITS}
    return {"examples": sizes, "mean": [float(value) for value in data.mean]}


def _kind(config: type, source: Any, measures: tuple[Measure, ...], report: Callable[..., None]) -> Kind:
    def load(config: Any, log: Callable[[str], None]) -> Any:
        data = source.load(config.data, log=log)
        if config.train_examples is not None:
            try:
                data.keep("train", config.train_examples)
            except ValueError as error:
                raise UserError(f"--train-examples does not fit the data: {error}") from error
        return data

    def task(config: Any, data: Any) -> Any:
        return supervised_task(config, data, _augment_scenes if source is scenes else _augment_images)

    def evaluate(config: Any, data: Any, state: Any, folder: Path) -> dict[str, Any]:
        built = task(config, data)
        if source is scenes:
            write_predictions(folder, predict(built, data, state.evaluated))
        return evaluate_supervised(config, built, data, state.evaluated)

    def verdict(found: dict[str, Any]) -> str:
        return ", ".join(f"{measure.title.removesuffix(' %')} {found[measure.name]:.2%}" for measure in measures)

    def judge(config: Any, row: dict[str, Any]) -> Judgement:
        return Judgement(True, None, 100.0 * row[measures[0].name])

    return Kind(
        config=config,
        check=check_supervised,
        variants=lambda config: [("", config)],
        label=_label,
        describe=lambda config: f"{type(config.network).__name__.removesuffix('Config')}, {config.epochs} epochs",
        load=load,
        found=_found,
        recipe=lambda config, data: supervised_recipe(config, task(config, data), data, best_by=measures[0].name),
        evaluate=evaluate,
        verdict=verdict,
        report=report,
        tuning=Tuning(_tunables, f"validation {measures[0].title}", larger_is_better=True, judge=judge),
    )


def _tunables(config: Any) -> dict[str, Tunable]:
    rate = config.optimizer.learning_rate
    return {"primal-rate": Tunable("optimizer.learning_rate", f"{rate / 10:g}:{rate * 10:g}", log=True)}


def _augment_images(key: Any, pictures: Any, labels: Any) -> tuple[Any, Any]:
    return images.augment(key, pictures), labels


def _augment_scenes(key: Any, pictures: Any, labels: Any) -> tuple[Any, Any]:
    return scenes.augment(key, pictures, labels)


_REPORT_IMAGES, _REPORT_SCENES = _report_by(ACCURACY), _report_by(SEGMENTATION, pictured=True)
IMAGE_OPTEQ = _kind(ImageOptEqConfig, images, ACCURACY, _REPORT_IMAGES)
IMAGE_MON = _kind(ImageMonConfig, images, ACCURACY, _REPORT_IMAGES)
IMAGE_ODE = _kind(ImageOdeConfig, images, ACCURACY, _REPORT_IMAGES)
IMAGE_FEEDFORWARD = _kind(ImageFeedForwardConfig, images, ACCURACY, _REPORT_IMAGES)
SCENE_OPTEQ = _kind(SceneOptEqConfig, scenes, SEGMENTATION, _REPORT_SCENES)
SCENE_FCN = _kind(SceneFcnConfig, scenes, SEGMENTATION, _REPORT_SCENES)
