"""The model card of an export: what it tells of a run, and that its Python runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from unroll_jax.train.exporting import export

pytestmark = [pytest.mark.xdist_group("video-runs"), pytest.mark.usefixtures("in_memory")]
ROOT = Path(__file__).resolve().parents[2]


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
    floors = evaluation["floors"]
    assert description["excess"] == description["validation"]["worst_excess"]
    excess = f"{abs(description['excess']):.1%} {'over' if description['excess'] > 0 else 'below'} its bound"
    sizes = ", ".join(f"{count:,} {split}" for split, count in description["found"]["sequences"].items())
    for words in (
        "# video-ut, step",
        "task: video, 1,152 parameters",
        f"data: photos: {sizes} sequences",
        f"feasible on the validation split (the layer furthest out is {excess})",
        f"RMSE {evaluation['rmse']['0.15']:.1f}",
        f"Without a model: RMSE at test gamma 0.15: noisy input {evaluation['noisy_rmse']['0.15']:.2f}, linear layer "
        f"{floors['linear layer']['0.15']:.2f}, total variation {floors['total variation']['0.15']:.2f}.",
        "Layers on held-out data, constrained",
        'frames = model.predict("clip.mp4")',
    ):
        assert words in card
    columns = (evaluation["noisy_rmse"], *floors.values(), evaluation["rmse"])
    for row in zip(*(column.values() for column in columns), strict=True):
        assert re.search(" " + " +".join(f"{value:.2f}" for value in row) + r"\n", card)


def test_the_model_card_tells_what_is_not_feasible_not_constrained_and_not_known(run, infeasible, both, tmp_path):
    steep = (export(infeasible[0], tmp_path / "steep", log=print) / "README.md").read_text()
    assert re.search(
        r"NOT feasible on the validation split \(the layer furthest out is [\d.]+% over its bound\)", steep
    )
    assert "- constraints: none\n" in (export(both / "erm", tmp_path / "plain", log=print) / "README.md").read_text()
    (run / "metrics.jsonl").write_text("")
    (run / "evaluation.json").unlink()
    log = []
    unknown = (export(run, log=log.append) / "README.md").read_text()
    assert "not known to be feasible" in unknown
    assert "test split: not evaluated" in unknown
    assert "Figures" not in unknown
    assert any("whether they are feasible is not known" in line for line in log)


def test_a_run_that_no_report_reads_is_exported_without_tables(run, tmp_path):
    (run / "status.json").write_text("{")
    log = []
    card = (export(run, tmp_path / "model", log=log.append) / "README.md").read_text()
    assert "RMSE" in card
    assert "Figures" not in card
    assert any(line.startswith("the model card has no tables: ") and "status.json is damaged" in line for line in log)


def snippet(folder):
    """The Python of a model card up to where it predicts, for its folder."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    return code.replace('"FOLDER"', repr(str(folder))).partition("frames =")[0]


def test_the_python_of_the_model_card_loads_the_model_in_a_clone(exported, config):
    names = {}
    exec(snippet(exported), names)
    assert names["model"].config == config


@pytest.mark.slow  # imports JAX and Orbax in a process of its own
def test_the_python_of_the_model_card_loads_the_model_where_it_is_installed(exported, tmp_path):
    package = tmp_path / "site" / "unroll_jax"
    package.mkdir(parents=True)
    for path in (ROOT / "train", *(ROOT / "unroll_jax").iterdir()):
        (package / path.name).symlink_to(path)
    code = snippet(exported) + "print(model.config.task, type(model).__module__)"
    paths = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, cwd=tmp_path, env=paths, capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (0, "video unroll_jax.train.loading\n"), process.stderr
