"""Tables of tasks: every row names things that exist, and a missing extra is named."""

import inspect
import subprocess
import sys
from pathlib import Path

from tests.errors import one_line
from tests.started import environment
from unroll_jax.train.config.errors import require_extra
from unroll_jax.train.registry import (
    EXPERIMENTS,
    MODULES,
    TASKS,
    functions_of,
    imported,
)
from unroll_jax.train.tasks.own.options import OwnConfig

ROOT = Path(__file__).resolve().parents[2]
NAMES = "open_task", "rebuild"


def test_a_row_names_what_exists_and_has_an_experiment():
    for name, (config, functions) in TASKS.items():
        assert config.task == name
        if functions:
            where = imported(functions.task)
            for function in NAMES:
                assert len(inspect.signature(getattr(where, function)).parameters) == 2
    trained = {experiment.config.task for experiment in EXPERIMENTS.values()}
    assert trained == {name for name, row in TASKS.items() if row.functions}
    for module in MODULES.values():
        prepare = imported(module).prepare
        assert list(inspect.signature(prepare).parameters) == ["config", "log"]
    with one_line(
        r"known to Python alone; pass the task itself from Python: fit\(task,"
        r" out=FOLDER\)"
    ):
        functions_of(OwnConfig())


WITHOUT_TYRO = """\
import sys
sys.modules["tyro"] = None
from unroll_jax.train.__main__ import main
raise SystemExit(main(["run", "video-ut", "--steps", "1"]))
"""


def test_a_missing_package_is_named_with_its_command(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "skimage", None)
    with one_line("^skimage must be installed first: pip install 'unroll_jax.video.'"):
        require_extra("video")
    run = {
        "cwd": tmp_path,
        "env": environment(PYTHONPATH=str(ROOT)),
        "capture_output": True,
        "text": True,
    }
    process = subprocess.run([sys.executable, "-c", WITHOUT_TYRO], **run)
    assert process.returncode == 2, process.stderr
    assert (
        process.stderr
        == "error: tyro must be installed first: pip install 'unroll_jax[train]'\n"
    )
    assert list(tmp_path.iterdir()) == []
