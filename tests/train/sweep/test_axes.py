"""Axes and cells from the words of a command, before anything is computed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.started import environment
from tests.train.commands import refused
from unroll_jax.train.sweep.axes import Sweep, grid, read_axes
from unroll_jax.train.tasks.video.options import VideoConfig


def cells_of(over):
    config = VideoConfig()
    return grid(Sweep("video-ut", Path("out"), config, read_axes(over, config, [])))


def test_every_combination_is_a_cell_in_order():
    cells = cells_of({"num-layers": "3,5", "train-gamma": "0.1,0.15", "seed": "0,1"})
    combinations = [
        (cell.config.model.num_layers, cell.config.train_gamma, cell.config.seed)
        for cell in cells
    ]
    assert combinations == [
        (layers, gamma, seed)
        for layers in (3, 5)
        for gamma in (0.1, 0.15)
        for seed in (0, 1)
    ]
    assert cells[0].name == "num-layers-3_train-gamma-0.1_seed-0"


def test_values_are_read_as_their_options_are():
    cell, other = cells_of(
        {
            "model.self-loops": "true,false",
            "constraints.alpha": "0.10",
            "method": "plain",
        }
    )
    assert (cell.config.model.self_loops, other.config.model.self_loops) == (
        True,
        False,
    )
    assert cell.config.constraints.alpha == (0.1,)
    assert cell.name == "self-loops-True_alpha-0.1_plain", (
        "one name however the value is typed"
    )


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("", "no experiment given"),
        ("video-ut", "needs an axis, as in `--over.seed 0,1,2`"),
        ("video-ut --over.seed", "--over.seed has no values"),
        ("video-ut --over. 3", "--over. names no option"),
        ("video-ut --over.seed=0,--help", "--help is an option, not a value"),
        ("video-ut --over.seed 0,,1", "--over.seed 0,,1: a value is empty"),
        ("video-ut --over.train-gamma 0.1,.10", "a value is there twice"),
        ("video-ut --over.seed 0 --over.seed 1", "--over.seed is given more than once"),
        ("video-ut --over.num-layers 3 --over.model.num-layers 5", "are one option; give it once"),
        ("video-ut --over.seed 0,x", "--over.seed x: "),
        ("video-ut --over.seed 0 --method all", "each cell is one run"),
        ("image-sets --over.train-gamma 0.1 --seeds 2", "each cell is one run"),
        ("video-ut --over.num-layer 3", "Unrecognized options: --num-layer (did you mean --model.num-layers?)"),
        ("video-ut --over.learning-rate 1", "may be primal.learning-rate or dual.learning-rate"),
        ("video-ut --over.out a,b", "--over.out: cells share data, tests and machine"),
        ("video-ut --over.seed 0,1 --seed 3", "--seed is an axis of the sweep"),
        ("video-ut --over.self-loops yes", "--over.self-loops must be true or false, got 'yes'"),
        ("video-ut --over.train-gamma 0.1,0", "--over.train-gamma 0.0: --train-gamma"),
        ("video-ut --over.seed 0,1 --overwrite", "--overwrite would delete every run of the sweep"),
        ("video-ut --over.seed 0,1 --trials 5", "a search has --trials and a range"),
        ("video-ut --over.train-gamma .1:.5", "a search has --trials and a range"),
        ("video-ut --over.train-gamma -5:.1 --trials 2", "--train-gamma must be"),
        ("video-ut --over.train-gamma .5:.1 --trials 2", "a range has its lower end first"),
        ("video-ut --over.train-gamma .1:.5 --trials -1", "--trials must be from 0 to 1000"),
        (f"video-ut --over.seed {','.join(map(str, range(10_001)))}", "10001 cells, more than 10000"),
        ("text-encoder --over.model.pretrained a/b,a+b --method plain", "two cells would share the folder"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_it(capsys, monkeypatch, words, named):
    monkeypatch.setattr(
        "unroll_jax.train.sweep.compute.run", lambda *_, **__: pytest.fail("computes")
    )
    assert named in refused(capsys, "sweep", *words.split())


def test_mistakes_are_found_without_importing_jax():
    """Warnings are errors."""
    program = """\
import sys
from unroll_jax.train.__main__ import main
assert main(["sweep", "video-ut", "--over.seed", "x"]) == 2
assert not {"jax", "matplotlib"} & set(sys.modules)
assert main(["run", "video-ut", "--constraints.alpha", "2"]) == 2
assert main(["list"]) == 0
import unroll_jax.train.core.loop, unroll_jax.train.tasks.video.data
assert not {"tensorflow", "matplotlib"} & set(sys.modules)
"""
    subprocess.run(
        [sys.executable, "-W", "error", "-c", program], env=environment(), check=True
    )
