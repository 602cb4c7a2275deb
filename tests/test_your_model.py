"""The examples around models of other libraries run, and do what they say."""

import re
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow
TEXT = (Path(__file__).resolve().parents[1] / "docs" / "your_model.md").read_text()


@pytest.fixture(scope="module")
def names():
    """What the examples define."""
    names = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(block, "docs/your_model.md", "exec"), names)
    return names


@pytest.mark.parametrize("library", ["linen", "nnx", "eqx"])
def test_a_model_of_any_library_is_trained_until_every_layer_descends(names, library):
    report = names[f"{library}_report"]
    assert report.feasible
    losses = [report.groups[0].bound / 0.9, *(group.value for group in report.groups)]  # f_0 from the first bound
    assert np.all(np.diff(losses) < 0.0)
