"""Notebooks are committed executed, small, and without a machine's details.
`make test-rest` executes them."""

import json
import re
import tomllib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
# bytes: GitHub shows larger ones slowly, and each version stays in the history
LARGEST = 200_000
MACHINE = re.compile(r"/(?:home|root|tmp|work|Users|usr)/|site-packages")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_executed_small_and_needs_no_clone(path):
    assert len(NOTEBOOKS) == 18
    assert path.stat().st_size <= LARGEST
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [
        output
        for output in outputs
        if output["output_type"] == "error" or output.get("name") == "stderr"
    ]
    printed = [
        output.get("text", output.get("data", {}).get("text/plain", []))
        for output in outputs
    ]
    assert not [
        text
        for text in (*(cell["source"] for cell in cells), *printed)
        if MACHINE.search("".join(text))
    ]
    first, *others = ["".join(cell["source"]) for cell in code]
    assert first.startswith("try:\n    import unroll_jax")
    assert "except ImportError:" in first
    (extra,) = re.findall(r'%pip install --quiet "unroll_jax\[(\w+)\]"$', first)
    project = tomllib.loads(
        (FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8")
    )["project"]
    assert extra in project["optional-dependencies"]
    assert not re.search(
        r"^(?:from|import) (?:benchmarks|docs|papers|tests|train)\b",
        "\n".join(others),
        re.MULTILINE,
    )
