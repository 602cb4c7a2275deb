"""Notebooks are committed as a reader wants them: executed, small, without what only one machine has.

`make test-rest` executes them.
"""

import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LARGEST = 200_000  # bytes: GitHub shows larger ones slowly, and each version stays in the history
MACHINE = re.compile(r"/(?:home|root|tmp|work|Users|usr)/|site-packages")


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return request.param


def code_cells(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_there_are_ten():
    assert len(NOTEBOOKS) == 10


def test_every_cell_was_executed_in_order_and_some_show_pictures(notebook):
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]


def test_it_is_small(notebook):
    assert notebook.stat().st_size <= LARGEST


def test_it_names_no_place_of_a_machine(notebook):
    content = json.loads(notebook.read_text(encoding="utf-8"))
    texts = ["".join(cell["source"]) for cell in content["cells"]]
    for cell in code_cells(notebook):
        for output in cell["outputs"]:
            texts += ["".join(output.get("text", [])), "".join(output.get("data", {}).get("text/plain", []))]
    assert not [text for text in texts if MACHINE.search(text)]


def test_it_installs_the_library_only_where_that_is_missing(notebook):
    first = "".join(code_cells(notebook)[0]["source"])
    assert first.startswith("try:\n    import unroll_jax")
    assert "except ImportError:" in first
    assert "%pip install" in first
