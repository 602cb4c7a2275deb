"""Tasks by their configurations, as the registry names them: on data, without data, and of a run."""

import dataclasses
from pathlib import Path
from typing import Any

from ..config.errors import UserError
from ..config.run import RunConfig
from ..registry import functions_of, imported
from ..runs import check_first, read_config, require_checkpoints, require_place
from ..task import Log, Row, Task


def open_task(config: RunConfig, log: Log) -> Task:
    """The task of a configuration on its data, prepared on first use; what other tasks need is not imported."""
    return imported(functions_of(config).open)(config, log)


def prepare_data(config: RunConfig, log: Log) -> None:
    """Prepares the data of a configuration, unless that is done: on no device, and without the task."""
    imported(functions_of(config).prepare)(vars(config)["data"], log=log)


def rebuild(config: RunConfig, facts: Row) -> Task:
    """The task that its ``facts`` describe, without its data: to predict with parameters that are at hand."""
    return imported(functions_of(config).rebuild)(config, facts)


def open_run(folder: Path, *, mesh: str | None = None, log: Log = print, writes: bool = False) -> tuple[str, Task]:
    """The experiment of a run that can be evaluated, and written to, and its task on its data, on a mesh of its own."""
    experiment, config = read_config(folder)
    if writes:
        require_place(folder)
    config = dataclasses.replace(config, mesh=mesh)
    check_first(config)
    require_checkpoints(folder, experiment)
    return experiment, open_task(config, log)


def options_of(task: Any) -> type[RunConfig] | None:
    """The class of the options of a task that was passed, None for None; what is no task is refused."""
    config = None if isinstance(task, type) else getattr(task, "config", None)
    if isinstance(config, RunConfig) and hasattr(task, "training"):
        return type(config)
    if task is None:
        return None
    given = f"the class {task.__name__}" if isinstance(task, type) else f"{task!r:.60} of type {type(task).__name__}"
    raise UserError(
        "task must be the task that was trained (as OwnTask(init, layer_losses, train=..., validation=...)), got "
        f"{' '.join(given.split())}; pass that task"
    )


def by_config(task: Task, config: RunConfig, *, mesh: str | None = None) -> Task:
    """A task that was passed, by the configuration that a folder holds, on a mesh of its own or that of the task."""
    config = dataclasses.replace(config, mesh=mesh or task.config.mesh)
    return task if task.config == config else task.with_config(config)
