"""Notebooks are committed executed, small, and without a machine's details; `make test-rest` executes them."""

import base64
import io
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LARGEST = 200_000  # bytes: GitHub shows larger ones slowly, and each version stays in the history
MACHINE = re.compile(r"/(?:home|root|tmp|work|Users|usr)/|site-packages")


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return request.param


def code_cells(path):
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def test_every_cell_was_executed_in_order_and_some_show_pictures(notebook):
    assert len(NOTEBOOKS) == 16
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]


def test_it_opens_with_the_picture_of_its_result(notebook):
    """The picture, pixel for pixel as in the cell with the tag "result"."""
    opening = json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]["source"]
    assert opening[0].startswith("# ")
    target = re.fullmatch(r"!\[[^]]+\]\((.+)\)\n", opening[2])[1]
    (cell,) = (cell for cell in code_cells(notebook) if "result" in cell["metadata"].get("tags", []))
    (picture,) = (o["data"]["image/png"] for o in cell["outputs"] if "image/png" in o.get("data", {}))
    assert (notebook.parent / target).read_bytes() == base64.b64decode(picture)


def test_it_is_small_and_names_no_place_of_a_machine(notebook):
    assert notebook.stat().st_size <= LARGEST
    texts = ["".join(cell["source"]) for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]]
    for cell in code_cells(notebook):
        for output in cell["outputs"]:
            texts += ["".join(output.get("text", [])), "".join(output.get("data", {}).get("text/plain", []))]
    assert not [text for text in texts if MACHINE.search(text)]


def test_it_installs_the_library_only_where_that_is_missing(notebook):
    """By one extra; no notebook needs a clone."""
    first, *others = ["".join(cell["source"]) for cell in code_cells(notebook)]
    assert first.startswith("try:\n    import unroll_jax")
    assert "except ImportError:" in first
    (extra,) = re.findall(r'%pip install --quiet "unroll_jax\[(\w+)\]"$', first)
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert extra in project["optional-dependencies"]
    assert not re.search(r"^(?:from|import) (?:benchmarks|docs|papers|tests|train)\b", "\n".join(others), re.MULTILINE)


def test_a_notebook_that_was_run_is_made_fit_for_a_commit(tmp_path):
    path, file = tmp_path / "run.ipynb", io.BytesIO()
    figure = Figure()
    figure.subplots().plot(np.sin(np.linspace(0.0, 9.0)))
    figure.savefig(file, format="png")
    picture = np.asarray(Image.open(file).convert("RGB"), np.int32)
    output = {"output_type": "display_data", "data": {"image/png": base64.b64encode(file.getvalue()).decode()}}
    cell = {"cell_type": "code", "metadata": {"execution": {}, "tags": ["a"]}, "source": ["1"], "outputs": [output]}
    path.write_text(json.dumps({"cells": [cell, {"cell_type": "markdown", "metadata": {}, "source": ["é"]}]}))
    subprocess.run([sys.executable, str(FOLDER.parent / "docs" / "tidy_notebooks.py"), str(path)], check=True)
    tidied = json.loads(path.read_text(encoding="utf-8"))
    assert tidied["cells"][0]["metadata"] == {"tags": ["a"]}
    assert "é" in path.read_text(encoding="utf-8")
    smaller = base64.b64decode(tidied["cells"][0]["outputs"][0]["data"]["image/png"])
    assert len(smaller) < len(file.getvalue())
    assert np.abs(np.asarray(Image.open(io.BytesIO(smaller)).convert("RGB"), np.int32) - picture).mean() <= 2.0
