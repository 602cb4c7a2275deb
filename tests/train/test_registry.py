"""The registry of tasks: every row names what is there, and reading it costs nothing."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from unroll_jax.train.config.constrained import OwnConfig
from unroll_jax.train.config.data import MODULES
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.registry import TASKS, functions_of, imported

ROOT = Path(__file__).resolve().parents[2]
PARAMETERS = {"open": ["config", "log"], "rebuild": ["config", "spec"]}


@pytest.mark.parametrize("name", TASKS)
def test_a_row_goes_by_the_name_of_its_options(name):
    assert TASKS[name].config.task == name


@pytest.mark.parametrize("name", [name for name, row in TASKS.items() if row.functions])
def test_a_row_names_a_class_that_is_there(name):
    functions = TASKS[name].functions
    assert functions is not None
    for field, parameters in PARAMETERS.items():
        assert list(inspect.signature(getattr(imported(functions.task), field)).parameters) == parameters


@pytest.mark.parametrize("module", sorted(set(MODULES.values())))
def test_every_kind_of_data_can_be_prepared(module):
    assert list(inspect.signature(imported(f"data.{module}:prepare")).parameters) == ["config", "log"]


def test_every_task_but_your_own_has_an_experiment():
    trained = {experiment.config.task for experiment in EXPERIMENTS.values()}
    assert trained == {name for name, row in TASKS.items() if row.functions}


def test_a_task_of_your_own_has_no_functions():
    with pytest.raises(
        UserError, match=r"known to Python alone; pass the task itself from Python: fit\(task, out=FOLDER\)"
    ):
        functions_of(OwnConfig())


def test_reading_the_registry_imports_nothing_that_takes_time():
    code = "import sys, train.registry; print({'jax', 'flax', 'matplotlib', 'orbax', 'tensorflow'} & set(sys.modules))"
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "set()"
