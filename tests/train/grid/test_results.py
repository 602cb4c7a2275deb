"""Rows, differences and counts of tables, from runs whose figures are known."""

import numpy as np
import pytest

from tests.report.conftest import GAMMAS, write_run
from unroll_jax.train.config.video import VideoConfig
from unroll_jax.train.grid.axes import Base, Plan, make_cells
from unroll_jax.train.grid.cells import CELLS, LEFT, State
from unroll_jax.train.grid.results import (
    differences,
    figures,
    floor_table,
    main_table,
    over_bounds,
    read_lines,
    wins,
    wins_words,
)
from unroll_jax.train.report.read import read_runs

# By depth, method and seed: RMSE at every gamma of GAMMAS is this much above 10.
OFFSETS = {
    (3, "erm", 0): 2.0,
    (3, "erm", 1): 4.0,
    (3, "constrained", 0): 1.0,
    (3, "constrained", 1): 5.0,
    (5, "erm", 0): 8.0,
    (5, "constrained", 0): 3.0,
    (5, "constrained", 1): 0.0,  # without a plain run of its seed
}
STRONGER = [float(gamma) > 0.15 for gamma in GAMMAS]


def rmse_of(key):
    """Twice as far above 10 out of distribution."""
    return np.array([10.0 + OFFSETS[key] * (2.0 if beyond else 1.0) for beyond in STRONGER])


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    over = {"num-layers": "3,5", "method": "erm,constrained", "seed": "0,1"}
    cells, states = make_cells([Base("video-ut", VideoConfig(), VideoConfig())], over, []), {}
    for cell in cells:
        key = (int(cell.values["num-layers"]), cell.values["method"], int(cell.values["seed"]))
        states[cell.name] = State("finished") if key in OFFSETS else LEFT
        if key in OFFSETS:
            rmse = dict(zip(GAMMAS, rmse_of(key).tolist(), strict=True))
            evaluation = {"rmse": rmse, "feasible": key != (3, "constrained", 1)}
            layers, method, seed = key
            write_run(folder / CELLS / cell.name, method, layers, seed, 6, evaluation=evaluation)
    plan = Plan("depths", folder, cells, over, ["video-ut"])
    return plan, read_lines(plan, states)


def test_a_row_holds_the_runs_that_differ_in_method_and_seed_alone(table):
    _, lines = table
    assert [(line.experiment, line.values) for line in lines] == [
        ("video-ut", {"num-layers": "3"}),
        ("video-ut", {"num-layers": "5"}),
    ]
    counts = [{method: len(variant.runs) for method, variant in line.variants.items()} for line in lines]
    assert counts == [{"erm": 2, "constrained": 2}, {"erm": 1, "constrained": 2}]


def test_means_are_over_the_test_gammas_that_of_training_and_those_above(table):
    _, lines = table
    actual = figures(lines[0].variants["erm"].runs)
    expected = [rmse_of((3, "erm", seed)) for seed in (0, 1)]
    np.testing.assert_allclose(actual.mean, [each.mean() for each in expected])
    np.testing.assert_allclose(actual.training, [each[GAMMAS.index("0.15")] for each in expected])
    np.testing.assert_allclose(actual.stronger, [each[STRONGER].mean() for each in expected])


def test_differences_are_paired_by_seed(table):
    _, lines = table
    change, gain = differences(lines[0])
    np.testing.assert_allclose(change.training, [-1.0, 1.0])
    np.testing.assert_allclose(gain.stronger, [1 - 12 / 14, 1 - 20 / 18])
    alone, _ = differences(lines[1])
    np.testing.assert_allclose(alone.training, [-5.0], err_msg="seed 1 has no plain run")


def test_wins_are_counted_by_row(table):
    _, lines = table
    gains = {3: np.mean([1 - 12 / 14, 1 - 20 / 18]), 5: 1 - 16 / 26}
    tally = wins(lines)["stronger"]
    assert (tally.better, tally.rows) == (sum(gain > 0 for gain in gains.values()), 2)
    assert tally.median == pytest.approx(np.median(list(gains.values())))
    training = [np.mean([1 - 11 / 12, 1 - 15 / 14]), 1 - 13 / 18]
    assert wins_words(lines) == (
        "Constrained better out of distribution (test gamma above training) in 2 of 2 rows, by "
        f"{tally.median:.1%} in the median; at the training noise in 2 of 2 rows, by {np.median(training):.1%} in the "
        "median."
    )
    assert wins_words([]) == "No row has runs of both methods with one seed, plain and constrained."


def test_the_table_has_means_spread_seeds_and_marks_what_is_not_feasible(table):
    plan, lines = table
    shown = main_table(plan, lines)
    assert shown.header == (
        "experiment", "num-layers", "seeds", "plain", "constrained", "difference", "stronger noise %",
    )  # fmt: skip
    means = [rmse_of((3, "erm", seed)).mean() for seed in (0, 1)]
    assert shown.rows[0][3] == f"{np.mean(means):.2f} [{min(means):.2f}, {max(means):.2f}]"
    assert [("†1/2" in row[4], row[2]) for row in shown.rows] == [(True, "2"), (False, "1/2")]
    assert shown.rows[1][-1] == "+38.5"


def test_what_needs_no_network_stands_once_in_the_table(table):
    _, lines = table
    shown = floor_table(lines)
    assert shown is not None
    assert shown.header == ("training gamma", "noisy input", "experiments")
    noisy = lines[0].variants["erm"].runs[0].values("noisy_rmse").mean()
    assert shown.rows == (("0.15", f"{noisy:.2f}", "video-ut"),)


def test_the_layers_over_their_bounds_are_named_with_their_excess(tmp_path):
    losses, bounds = [4.0, 3.0, 2.4, 2.0], [5.5, 3.12, 2.0, 1.95]
    changed = {"layer_losses": losses, "bounds": bounds, "tolerance": 0.05, "feasible": False}
    (run,) = read_runs([write_run(tmp_path / "run", "constrained", 3, 0, 6, evaluation=changed)])
    assert over_bounds(run) == ["layer 2: 20.0%"], "layer 3 is within the tolerance"
