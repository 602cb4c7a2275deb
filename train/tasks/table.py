"""Every task by its configuration."""

import dataclasses
from pathlib import Path

from ..config.errors import UserError
from ..config.images import SupervisedConfig
from ..config.run import RunConfig
from ..config.text import TextRunConfig
from ..config.video import VideoConfig
from ..runs import check_first, read_config, require_checkpoints, require_place
from ..task import Log, Row, Task


def open_task(config: RunConfig, log: Log) -> Task:
    """The task of a configuration on its data, prepared on first use; what other tasks need is not imported."""
    if isinstance(config, VideoConfig):
        from .video import open_video

        return open_video(config, log)
    if isinstance(config, SupervisedConfig):
        from .images import open_images

        return open_images(config, log)
    if isinstance(config, TextRunConfig):
        from .text import open_text

        return open_text(config, log)
    raise UserError("a task of your own is known to Python alone; pass the task itself")


def rebuild(config: RunConfig, facts: Row) -> Task:
    """The task that its ``facts`` describe, without its data: to predict with parameters that are at hand."""
    if isinstance(config, VideoConfig):
        from .video import video_of

        return video_of(config, facts)
    if isinstance(config, SupervisedConfig):
        from .images import images_of

        return images_of(config, facts)
    if isinstance(config, TextRunConfig):
        from .material import material_of
        from .text import TextTask

        return TextTask(config, material_of(facts))
    raise UserError("a task of your own is known to Python alone; pass the task itself")


def open_run(folder: Path, *, mesh: str | None = None, log: Log = print, writes: bool = False) -> tuple[str, Task]:
    """The experiment of a run that can be evaluated, and written to, and its task on its data, on a mesh of its own."""
    experiment, config = read_config(folder)
    if writes:
        require_place(folder)
    config = dataclasses.replace(config, mesh=mesh)
    check_first(config)
    require_checkpoints(folder, experiment)
    return experiment, open_task(config, log)
