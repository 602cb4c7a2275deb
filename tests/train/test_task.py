"""Parameters, losses and arrays of a task that cannot be trained or kept: one error before the first step."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.errors import one_line
from tests.train.test_fit import TRAIN, layer_losses, linear
from unroll_jax.train.main import fit

X = jnp.ones(3)
PARAMETERS = {
    "none": ({}, "init must return parameters"),
    "names that clash when they are joined": ({"a.b": X, "a": {"b": 2 * X}}, "'a.b'"),
    "the name of a place": ({"a": [X, 2 * X], "a.0": X}, "'a.0'"),
    "no element": ({"w": X, "empty": jnp.zeros((0, 3))}, "empty"),
    "a key that is not UTF-8": ({"w\udc80": X}, "UTF-8"),
    "whole numbers": ({"w": X, "table": np.array([2**40])}, "table"),
    "complex numbers": ({"w": X * 1j}, "complex64"),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_that_no_checkpoint_would_give_back_leave_no_folder(name, tmp_path):
    params, words = PARAMETERS[name]
    task = linear(init=lambda key: params, losses=lambda params, batch: batch["noisy"][:, :2])
    with one_line(words):
        fit(task, out=tmp_path / "run", log=lambda line: None)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_losses_have_a_row_for_every_sample(accumulate, tmp_path):
    task = linear(losses=lambda params, batch: layer_losses(params, batch)[:3], accumulate=accumulate)
    with one_line("losses must have shape", f"({8 // accumulate}, 2)", "(3, 2)"):
        fit(task, out=tmp_path / "run", log=lambda line: None)
    assert not (tmp_path / "run" / "checkpoints").exists() or not any((tmp_path / "run" / "checkpoints").iterdir())


def test_whole_numbers_that_jax_would_cut_are_named():
    with one_line(r"train\['row'\]", "int64"):
        linear(train={**TRAIN, "row": np.arange(64) + 2**40})
