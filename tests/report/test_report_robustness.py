"""Paired differences of methods over seeds against SciPy, and the frontier of settings."""

import json

import numpy as np
import pytest
from scipy import stats

from unroll_jax.train.report.groups import group
from unroll_jax.train.report.panels import COLOURS
from unroll_jax.train.report.read import METHODS, read_runs
from unroll_jax.train.report.robustness import frontier, paired_table

GAMMAS = ("0.0", "0.09", "0.15", "0.2", "0.3", "0.5")
PLAIN = np.array([[6.0, 7.0, 8.0, 9.0, 10.0, 16.0], [6.2, 7.1, 8.1, 9.2, 10.1, 17.0], [6.1, 7.2, 8.3, 9.1, 10.3, 15.0]])
OWN = PLAIN * np.array(
    [[1.1, 1.05, 1.02, 1.0, 0.95, 0.8], [1.1, 1.04, 1.01, 1.0, 0.96, 0.85], [1.1, 1.0, 1.03, 1.0, 0.9, 0.9]]
)


@pytest.fixture
def settings(make_run):
    """Of ``seeds``: the runs of two methods, in the order of the seeds; ``others`` are further folders."""

    def build(seeds=(0, 1, 2), enforced=(0, 1, 2), others=()):
        rmse = lambda row: dict(zip(GAMMAS, row.tolist(), strict=True))  # noqa: E731
        plain = [make_run("erm", seed=seed, evaluation={"rmse": rmse(PLAIN[seed])}) for seed in seeds]
        constrained = [make_run("constrained", seed=seed, evaluation={"rmse": rmse(OWN[seed])}) for seed in enforced]
        return group(read_runs([*plain, *reversed(constrained), *others]))

    return build


def test_differences_are_paired_by_seed_with_the_interval_of_a_paired_t_test(settings):
    (table,) = paired_table(settings())
    ((_, constrained, other, seeds, *cells),) = table.rows
    assert (constrained, other, seeds) == ("constrained", "plain", "3")
    ratios = 100 * (OWN / PLAIN - 1)
    for cell, values in zip(cells, (ratios[:, 2], ratios[:, 3:].mean(axis=1), ratios[:, 5]), strict=True):
        low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
        assert cell == f"{values.mean():+.1f} [{low:+.1f}, {high:+.1f}]"


def test_only_seeds_that_both_have_are_compared(settings):
    (table,) = paired_table(settings(seeds=(0, 1), enforced=(1, 2)))
    assert table.rows[0][3] == "1"
    assert "[" not in table.rows[0][4]


def test_runs_that_share_no_seed_are_not_compared(settings):
    assert paired_table(settings(seeds=(0,), enforced=(1,))) == []


def test_deep_supervision_is_compared_too(settings, make_run):
    (table,) = paired_table(settings(others=[make_run("deep_supervision", seed=seed) for seed in range(3)]))
    assert [row[2] for row in table.rows] == ["plain", "deep supervision"]


def test_the_frontier_has_a_point_a_variant_in_the_colour_of_its_method(make_run):
    folders = [make_run(method, seed=seed) for method in METHODS for seed in (0, 1)]
    assert frontier(group(read_runs(folders[:4]))) is None, "two variants are no frontier"
    figure = frontier(group(read_runs(folders)))
    assert figure is not None
    points = {line.get_color(): line.get_xydata()[0] for line in figure.axes[0].lines if line.get_marker() in "os^"}
    for method, folder in zip(METHODS, zip(folders[::2], folders[1::2], strict=True), strict=True):
        rmse = [json.loads((one / "evaluation.json").read_text())["rmse"] for one in folder]
        expected = [np.mean([one[gamma] for one in rmse]) for gamma in ("0.15", "0.5")]
        np.testing.assert_allclose(points[COLOURS[method]], expected)
