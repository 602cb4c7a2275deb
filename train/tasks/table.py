"""Tasks by their configurations, as the registry names them: on data, without data, and of a run."""

import dataclasses
from pathlib import Path

from ..config.run import RunConfig
from ..registry import functions_of, imported
from ..runs import check_first, read_config, require_checkpoints, require_place
from ..task import Log, Row, Task


def open_task(config: RunConfig, log: Log) -> Task:
    """The task of a configuration on its data, prepared on first use; what other tasks need is not imported."""
    return imported(functions_of(config).open)(config, log)


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
