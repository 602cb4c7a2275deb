"""Model cards of exported runs: their figures, and their Python."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.started import environment
from unroll_jax.train.exporting import export
from unroll_jax.train.weights import read_export

pytestmark = [pytest.mark.xdist_group("video-runs"), pytest.mark.usefixtures("in_memory")]


@pytest.fixture
def run(finished):
    """A copy of a small constrained run."""
    return finished


@pytest.fixture
def exported(run):
    return export(run, log=lambda _: None)


def test_the_model_card_tells_task_data_constraints_and_figures(run, exported):
    description, card = json.loads((exported / "config.json").read_text()), (exported / "README.md").read_text()
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert description["excess"] == description["validation"]["worst_excess"]
    excess = f"{abs(description['excess']):.1%} {'over' if description['excess'] > 0 else 'below'} its bound"
    sizes = ", ".join(f"{count:,} {split}" for split, count in description["found"]["sequences"].items())
    for words in (
        "# video-ut, step",
        "task: video, 1,152 parameters",
        f"data: photos: {sizes} sequences",
        f"feasible on the validation split (the layer furthest out is {excess})",
        f"RMSE {evaluation['rmse']['0.15']:.1f}",
        'frames = model.predict("clip.mp4")',
    ):
        assert words in card


def test_the_model_card_tells_what_is_not_feasible_not_constrained_and_not_known(run, infeasible, both, tmp_path):
    log = []
    out = export(infeasible[0], tmp_path / "steep", log=log.append)
    assert read_export(out).card["feasible"] is False
    assert any("NOT feasible" in line for line in log)
    steep = (out / "README.md").read_text()
    assert re.search(
        r"NOT feasible on the validation split \(the layer furthest out is [\d.]+% over its bound\)", steep
    )
    out = export(both / "plain", tmp_path / "plain", log=print)
    assert "- constraints: none\n" in (out / "README.md").read_text()
    assert (read_export(out).card["feasible"], read_export(out).card["multipliers"]) == (None, None)
    (run / "metrics.jsonl").write_text("")
    (run / "evaluation.json").unlink()
    log = []
    unknown = (export(run, log=log.append) / "README.md").read_text()
    assert "not known to be feasible" in unknown
    assert "test split: not evaluated" in unknown
    assert any("whether they are feasible is not known" in line for line in log)


@pytest.fixture
def card_python(exported):
    """The Python of a model card up to where it predicts, for its folder."""
    (code,) = re.findall(r"```python\n(.*?)```", (exported / "README.md").read_text(), re.DOTALL)
    return code.replace('"FOLDER"', repr(str(exported))).partition("frames =")[0]


def test_the_python_of_the_model_card_loads_the_model(card_python, config):
    names = {}
    exec(card_python, names)
    assert names["model"].config == config


@pytest.mark.slow
def test_the_python_of_the_model_card_runs_from_an_installed_package(card_python, tmp_path):
    """What the wheel holds, away from the checkout: `train` is a folder of the package there, and not on the path."""
    root, folder = Path(__file__).resolve().parents[2], tmp_path / "installed"
    shutil.copytree(root / "unroll_jax", folder / "unroll_jax", ignore=shutil.ignore_patterns("__pycache__"))
    code = f"{card_python}\nimport unroll_jax\nprint(unroll_jax.__file__, model.card['experiment'])"
    printed = subprocess.check_output(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(PYTHONPATH=str(folder)), text=True
    )
    assert printed.splitlines()[-1] == f"{folder / 'unroll_jax' / '__init__.py'} video-ut"
