"""Searches of a cell, with a function of the options in place of training."""

import json
import math

import pytest

from unroll_jax.train.config.errors import UserError
from unroll_jax.train.registry import EXPERIMENTS
from unroll_jax.train.sweep.axes import Sweep, grid, read_axes
from unroll_jax.train.tasks.video.options import VideoConfig

pytest.importorskip("optuna")

from unroll_jax.train.sweep.search import best_cell, search

OVER = {"primal.learning-rate": "1e-4:1e-1", "num-layers": "2:9", "seed": "0,1"}


def by_rate(cell):
    loss = abs(math.log(cell.config.primal.learning_rate / 3e-3))
    return {"layer_losses": [9.0, loss], "feasible": loss < 2, "worst_excess": loss}


class Trained(list):
    """Trains by a formula: the list has the runs in order, and ``tested`` those tested."""

    def __init__(self, sweep, row=by_rate):
        super().__init__()
        self.folder = sweep.folder
        self.row = row
        self.tested = []

    def __call__(self, cell, tested):
        if tested:
            self.tested.append(cell.name)
            return ""
        self.append(cell)
        path = self.folder / cell.name / "metrics.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        row = {"kind": "validation", "step": 1, **self.row(cell)}
        path.write_text(json.dumps(row) + "\n")
        return ""

    @property
    def rates(self):
        return [cell.config.primal.learning_rate for cell in self]


def made(folder, over=OVER, trials=5, config=None):
    config = VideoConfig(method="constrained") if config is None else config
    sweep = Sweep("video-ut", folder, config, read_axes(over, config, []), trials)
    folder.mkdir(exist_ok=True)
    return sweep, grid(sweep)


def test_the_best_of_the_trials_is_tested_alone(
    tmp_path,
):
    sweep, cells = made(tmp_path / "sweep")
    assert [cell.name for cell in cells] == ["seed-0", "seed-1"]
    trained = Trained(sweep)
    assert search(sweep, cells[1], trained) == ""
    assert [cell.name for cell in trained] == [f"seed-1/trial-{n}" for n in range(5)]
    assert len(set(trained.rates)) == 5
    assert all(1e-4 <= rate <= 1e-1 for rate in trained.rates)
    assert {type(cell.config.model.num_layers) for cell in trained} == {int}
    assert {cell.config.seed for cell in trained} == {1}
    costs = [abs(math.log(rate / 3e-3)) for rate in trained.rates]
    best = f"seed-1/trial-{costs.index(min(costs))}"
    assert trained.tested == [best]
    assert best_cell(sweep, cells[1]).name == best
    assert best_cell(sweep, cells[0]) == cells[0]
    again = Trained(sweep)
    search(sweep, cells[1], again)
    assert (again, again.tested) == ([], [best])


def test_whole_numbers_keep_their_digits(
    tmp_path,
):
    over = {"steps": "10000:99999", "constraints.alpha": "0.1:0.3"}
    sweep, (cell,) = made(tmp_path / "sweep", over)
    trained = Trained(sweep)
    search(sweep, cell, trained)
    assert len({cell.config.steps for cell in trained}) == 5
    for cell in trained:
        assert 10_000 <= cell.config.steps <= 99_999
        assert str(cell.config.steps) == cell.values["steps"]
        assert 0.1 <= cell.config.constraints.alpha[0] <= 0.3


def test_more_trials_extend_a_search_and_other_options_are_refused(tmp_path):
    sweep, (cell, _) = made(tmp_path / "sweep", trials=2)
    search(sweep, cell, Trained(sweep))
    sweep, (cell, _) = made(tmp_path / "sweep", trials=3)
    trained = Trained(sweep)
    search(sweep, cell, trained)
    assert [cell.name for cell in trained] == ["seed-0/trial-2"]
    other, (cell, _) = made(tmp_path / "sweep", OVER | {"num-layers": "2:8"})
    with pytest.raises(UserError, match=r"trials of another search.*another --out"):
        search(other, cell, Trained(other))


def test_an_interrupted_search_goes_on_with_its_values(tmp_path):
    whole, (cell, _) = made(tmp_path / "whole")
    expected = Trained(whole)
    search(whole, cell, expected)

    sweep, (cell, _) = made(tmp_path / "sweep")
    trained = Trained(sweep)

    def killed(cell, tested):
        if len(trained) == 2:
            raise KeyboardInterrupt
        return trained(cell, tested)

    with pytest.raises(KeyboardInterrupt):
        search(sweep, cell, killed)
    search(sweep, cell, trained)
    assert trained.rates == expected.rates
    assert [cell.name for cell in trained] == [cell.name for cell in expected]
    assert trained.tested == expected.tested


def test_processes_share_the_trials_and_the_last_one_tests(tmp_path):
    sweep, (cell, _) = made(tmp_path / "sweep")
    other = Trained(sweep)
    mine = Trained(sweep)

    def beside(cell_of_trial, tested):
        if not tested and not other:
            search(sweep, cell, other)
        return mine(cell_of_trial, tested)

    search(sweep, cell, beside)
    assert [cell.name for cell in mine] == ["seed-0/trial-0"]
    assert [cell.name for cell in other] == [f"seed-0/trial-{n}" for n in range(1, 5)]
    assert not other.tested
    assert len(mine.tested) == 1


def test_a_trial_that_fails_counts(tmp_path):
    sweep, cells = made(tmp_path / "sweep", trials=3)
    trained = Trained(sweep)

    def fails(cell, tested):
        trained(cell, tested)
        return "the loss is not finite" if len(trained) == 1 else ""

    assert search(sweep, cells[0], fails) == ""
    assert len(trained) == 3
    assert trained.tested != ["seed-0/trial-0"]
    message = search(sweep, cells[1], lambda *_: "the loss is not finite")
    assert message == "every trial failed: the loss is not finite"


def test_of_images_the_highest_share_is_the_best(tmp_path):
    over = {"optimizer.learning-rate": "1e-4:1e-1"}
    config = EXPERIMENTS["image-dnn"].config
    sweep, (cell,) = made(tmp_path / "sweep", over, config=config)
    shares = iter([0.0, 0.4, 0.8, 0.2, 0.6])
    trained = Trained(sweep, lambda cell: {"loss": 1.0, "accuracy": next(shares)})
    search(sweep, cell, trained)
    assert best_cell(sweep, cell).name == "search/trial-2"
