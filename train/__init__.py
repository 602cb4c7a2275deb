"""The training application: `unroll-jax`; and from Python `fit`, `load`, and tasks of your own.

Names are imported when they are asked for: the command line answers before JAX is there.

Example:
  >>> from unroll_jax.train import EXPERIMENTS
  >>> EXPERIMENTS["demo"].config.task  # `fit("demo")` trains it
  'sparse-coding'
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config.constraints import ConstraintConfig, DualConfig
    from .config.own import OwnConfig
    from .config.run import PrimalConfig
    from .experiments import EXPERIMENTS
    from .exporting import export
    from .loading import Model, load
    from .loop import Callbacks
    from .main import fit
    from .task import Task
    from .tasks.own import OwnTask

_PLACES = {
    "Callbacks": "loop",
    "EXPERIMENTS": "experiments",
    "ConstraintConfig": "config.constraints",
    "DualConfig": "config.constraints",
    "Model": "loading",
    "OwnConfig": "config.own",
    "OwnTask": "tasks.own",
    "PrimalConfig": "config.run",
    "Task": "task",
    "export": "exporting",
    "fit": "main",
    "load": "loading",
}

__all__ = [
    "EXPERIMENTS",
    "Callbacks",
    "ConstraintConfig",
    "DualConfig",
    "Model",
    "OwnConfig",
    "OwnTask",
    "PrimalConfig",
    "Task",
    "export",
    "fit",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)
