"""The report of every kind of task: which tables and figures it has."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..config.constraints import ConstrainedConfig
from ..config.errors import UserError
from ..config.images import SceneTaskConfig, SupervisedConfig
from ..config.run import RunConfig
from ..config.text import TextRunConfig
from ..config.video import VideoConfig
from . import constrained, write
from .supervised import Measure, supervised

ACCURACY = (Measure("accuracy", "accuracy %"),)
SEGMENTATION = (
    Measure("intersection_over_union", "mIoU %"),
    Measure("class_accuracy", "mAcc %"),
    Measure("accuracy", "aAcc %"),
)


def write_report(
    configs: Sequence[RunConfig], folders: Sequence[Path], out: Path, *, log: Callable[[str], None] = print
) -> dict[str, Any]:
    """Compares evaluated runs of one kind of task, by their configurations; writes a page and returns its summary.

    Of a task of any other make there is none: what its figures mean is its own.
    """
    families = [_family(config) for config in configs]
    for folder, family in zip(folders, families, strict=True):
        if family is not families[0]:
            raise UserError(f"{folders[0]} and {folder} are of different kinds of experiments; report them separately")
    return {} if families[0] is None else write(families[0], folders, out, log=log)


_images, _scenes = supervised(ACCURACY), supervised(SEGMENTATION, pictured=True)


def _family(config: RunConfig) -> Callable[..., Any] | None:
    if isinstance(config, SceneTaskConfig):
        return _scenes
    if isinstance(config, SupervisedConfig):
        return _images
    if isinstance(config, TextRunConfig):
        return constrained.text
    if isinstance(config, VideoConfig):
        return constrained.video
    return constrained.own if isinstance(config, ConstrainedConfig) else None
