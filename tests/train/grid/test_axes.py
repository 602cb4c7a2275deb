"""Axes and cells from words, before anything is computed."""

import subprocess
import sys

import pytest

from tests.started import environment
from tests.train.commands import refused
from unroll_jax.train.config.video import VideoConfig
from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.experiments.grids import GRIDS
from unroll_jax.train.grid.axes import Base, make_cells, split_over

BASE = Base("video-ut", VideoConfig(), VideoConfig())


def cells_of(over, *options, base=BASE):
    return make_cells([base], over, options)


def test_every_combination_is_a_cell_and_the_last_axis_changes_fastest():
    cells = cells_of({"num-layers": "3,5", "train-gamma": "0.1,0.15", "seed": "0,1"})
    combinations = [(cell.config.model.num_layers, cell.config.train_gamma, cell.config.seed) for cell in cells]
    assert combinations == [(layers, gamma, seed) for layers in (3, 5) for gamma in (0.1, 0.15) for seed in (0, 1)]
    assert cells[0].name == "video-ut_num-layers-3_train-gamma-0.1_seed-0"
    assert len({cell.name for cell in cells}) == len(cells)


def test_values_are_read_as_their_options_are():
    (cell, other) = cells_of({"model.self-loops": "true,false", "constraints.alpha": "0.1", "method": "erm"})
    assert (cell.config.model.self_loops, other.config.model.self_loops) == (True, False)
    assert cell.config.constraints.alpha == (0.1,)
    (short, long) = cells_of({"steps": "100,2000"}, base=BASE._replace(config=VideoConfig(seed=3)))
    assert (short.config.steps, long.config.steps, long.config.seed) == (100, 2000, 3)


def test_a_value_has_one_name_however_it_is_typed():
    assert [cell.name for cell in cells_of({"train-gamma": "0.10"})] == ["video-ut_train-gamma-0.1"]


def test_a_cell_that_cannot_be_says_why_and_the_others_stay():
    cells = cells_of({"train-gamma": "0,0.15", "method": "erm,constrained"})
    assert [cell.refusal is None for cell in cells] == [True, False, True, True]
    assert "leaves descent constraints nothing to lower" in str(cells[1].refusal)


def test_words_of_axes_are_told_from_the_others():
    over, rest = split_over(["--over.seed", "0,1", "--steps", "3", "--over.num_layers=3,5", "--gallery"])
    assert over == {"seed": "0,1", "num-layers": "3,5"}
    assert rest == ["--steps", "3", "--gallery"]


@pytest.mark.slow
@pytest.mark.parametrize("name", GRIDS)
def test_a_named_grid_names_experiments_that_have_its_axes(name):
    grid = GRIDS[name]
    for experiments in (grid.experiments, grid.rooted):
        bases = [Base(one, EXPERIMENTS[one].config, EXPERIMENTS[one].config) for one in experiments]
        cells = make_cells(bases, grid.over, [])
        assert {cell.experiment for cell in cells if cell.refusal is None} == set(experiments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["no experiment given; choose from video, demo"]),
        (["vidoe"], ["unknown experiment 'vidoe' (did you mean video?)"]),
        (["--steps", "3", "video-ut"], ["table has its experiments first, as in `table video-ut --steps ...`"]),
        (["image-dnn"], ["image-dnn has none of", "video, text or sparse coding"]),
        (["video-ut"], ["a table needs an axis or several experiments, as in `--over.seed 0,1,2`"]),
        (["video-ut", "video-ut"], ["video-ut is in the table twice"]),
        (["video", "video-ut"], ["video-ut is in the table twice"]),
        (["video-ut", "--over.seed"], ["--over.seed has no values"]),
        (["video-ut", "--over.seed", "--steps", "3"], ["--over.seed has no values"]),
        (["video-ut", "--over.", "3"], ["--over. names no option"]),
        (["video-ut", "--over.seed=-h"], ["--over.seed -h: -h is an option, not a value"]),
        (["video-ut", "--over.seed=0,--help"], ["--over.seed --help: --help is an option, not a value"]),
        (["video-ut", "--over.seed", "0 --steps 5,1"], ["--over.seed 0 --steps 5: --steps is an option, not a value"]),
        (["video-ut", "--over.seed", "0,,1"], ["--over.seed 0,,1: a value is empty"]),
        (["video-ut", "--over.seed", "0,0"], ["--over.seed 0,0: 0 is there twice"]),
        (["video-ut", "--over.seed", "0", "--over.seed", "1"], ["--over.seed is given more than once"]),
        (["video-ut", "--over.num-layers", "3", "--over.model.num-layers", "5"], ["are one option; give it once"]),
        (["video-ut", "--over.seed", "0,x"], ["--over.seed x: --seed must be a whole number", "got 'x'"]),
        (["video-ut", "--over.method", "erm,ermm"], ["--over.method ermm: --method must be one of", "mean erm?"]),
        (["video-ut", "--over.method", "erm,both"], ["--method both is several", "`--over.method erm,constrained`"]),
        (["video-ut", "--over.seed", "0", "--method", "all"], ["--method all is several"]),
        (["video-ut", "--over.depth", "3"], ["--over.depth: video-ut has no option depth"]),
        (["video-ut", "--over.num-layer", "3"], ["has no option num-layer (did you mean num-layers?)"]),
        (["video-ut", "--over.learning-rate", "1"], ["may be primal.learning-rate or dual.learning-rate"]),
        (["video-ut", "--over.out", "a,b"], ["--over.out does not change what is trained"]),
        (["video-ut", "--over.mesh", "data=1"], ["--over.mesh does not change what is trained"]),
        (["video-ut", "--over.data.root", "a"], ["--over.data.root: cells are compared on the same test"]),
        (["video-ut", "--over.test-gammas", "0"], ["--over.test-gammas: cells are compared on the same test"]),
        (["video-ut", "--over.seed", "0,1", "--seed", "3"], ["--seed is an axis of the table, --over.seed"]),
        (["video-ut", "--over.self-loops", "yes"], ["--over.self-loops must be true or false", "got 'yes'"]),
        (["video-ut", "--over.train-gamma", "0,0.1"], ["--over.train-gamma 0.0: --train-gamma 0 leaves descent"]),
        (["video-ut", "--over.seed", "0,-1"], ["--over.seed -1: --seed must be a whole number from 0"]),
        (["video-ut", "--over.seed", "0,1", "--steps", "0"], ["--steps must be a whole number from 1"]),
        (["video-ut", "--over.seed", "0,1", "--stesp", "3"], ["--stesp", "(did you mean --steps?)"]),
        (["video-ut", "--over.seed", "0,1", "--jobs", "0"], ["--jobs must be from 1 to 256, got 0"]),
        (["video-ut", "--over.seed", "0,1", "--cells", "0"], ["--cells must be at least 1"]),
        (["video-ut", "--over.seed", "0,1", "--budget-minutes", "0"], ["--budget-minutes must be positive"]),
        (["video-ut", "--over.seed", "0,1", "--only", "x"], ["--only x is no cell", "the first is video-ut_seed-0"]),
        (["video-ut", "--over.seed", "0,1", "--overwrite"], ["--overwrite would delete every run of a table"]),
        (["video-ut", "sparse-coding", "--over.seed", "0"], ["video-ut and sparse-coding are scored differently"]),
        (["demo", "sparse-coding", "--over.self-loops", "true"], ["--over.self-loops: demo has no option"]),
        (["video-ut", "--over.seed", ",".join(map(str, range(10_001)))], ["10001 cells, of which 10000 may be"]),
        (["video-vit", "--over.model.pretrained", "a/b,a+b", "--method", "erm"], ["two cells would share the folder"]),
    ],
)
def test_a_mistake_is_one_line_that_names_it(capsys, monkeypatch, arguments, words):
    monkeypatch.setattr("unroll_jax.train.grid.run.make_table", lambda *_: pytest.fail("computes"))
    line = refused(capsys, "table", *arguments)
    assert all(word in line for word in words), line


def test_what_is_wrong_with_words_is_refused_without_importing_jax():
    program = """\
import sys
from unroll_jax.train.__main__ import main
for words in (["video-ut"], ["video", "--over.seed", "x"], ["video-ut", "--over.train-gamma", "0"]):
    assert main(["table", *words]) == 2
print([name for name in ("jax", "matplotlib") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
