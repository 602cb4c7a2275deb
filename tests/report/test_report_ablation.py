"""The ablation figure plots what numpy makes of the runs that differ in one number of the config."""

import json

import numpy as np
import pytest

from unroll_jax.train.report import write
from unroll_jax.train.report.constrained import video
from unroll_jax.train.report.figures import ablation
from unroll_jax.train.report.groups import find_ablations, group
from unroll_jax.train.report.read import read_runs

GAMMAS = np.array([0.0, 0.09, 0.15, 0.2, 0.3, 0.5])


def _alpha(make_run, alpha, *, seed=0, rate=0.005, **more):
    constraints = {"alpha": [alpha], "reference": 5.5, "normalise": True}
    config = {"constraints": constraints, "dual": {"learning_rate": rate}} | more.pop("config", {})
    name = "-".join(map(str, ("a", alpha, rate, seed, *more.values())))
    return make_run("constrained", seed=seed, name=name, config=config, **more)


def _evaluations(folders):
    return [json.loads((folder / "evaluation.json").read_text()) for folder in folders]


def _settings(folders):
    return group(read_runs(folders))


def _rows(settings):
    """Field, and the axis values and labels of the series, for every ablation."""
    return [(a.field, [(s.values.tolist(), s.label) for s in a.series]) for a in find_ablations(settings)]


def _curves(axes):
    return {line.get_label(): (line.get_xdata(), line.get_ydata()) for line in axes.lines}


def test_points_and_bars_are_mean_and_range_over_the_seeds(make_run):
    alphas, seeds = (0.1, 0.2, 0.3), (0, 1, 2)
    folders = {alpha: [_alpha(make_run, alpha, seed=seed) for seed in seeds] for alpha in alphas}
    figure = ablation(_settings([folder for alpha in (0.3, 0.1, 0.2) for folder in folders[alpha]]))
    assert figure is not None
    left, right = figure.axes
    cells = [_evaluations(folders[alpha]) for alpha in alphas]
    rmse = np.array([[list(evaluation["rmse"].values()) for evaluation in cell] for cell in cells])
    excess = np.array([[max(np.divide(e["violations"], e["bounds"])) for e in cell] for cell in cells])
    stronger = rmse[:, :, GAMMAS > 0.15].mean(-1)
    for axes, label, scores in (
        (left, "test gamma 0.15 (training)", rmse[:, :, 2]),
        (left, "mean over 0.2 to 0.5", stronger),
        (right, "worst layer", 100 * excess),
    ):
        x, y = _curves(axes)[label]
        np.testing.assert_array_equal(x, alphas)
        np.testing.assert_allclose(y, scores.mean(1), rtol=1e-12)
        bars = [np.asarray(bar) for collection in axes.collections for bar in collection.get_segments()]
        for alpha, low, high in zip(alphas, scores.min(1), scores.max(1), strict=True):
            assert any(np.allclose(bar, [[alpha, low], [alpha, high]], rtol=1e-12) for bar in bars)


def test_excess_is_drawn_with_the_bound_and_the_tolerance(make_run):
    figure = ablation(_settings([_alpha(make_run, alpha) for alpha in (0.1, 0.2)]))
    assert figure is not None
    curves = _curves(figure.axes[1])
    assert list(curves["bound"][1]) == [0.0, 0.0]
    assert list(curves["tolerance 5%"][1]) == [5.0, 5.0]
    assert figure.axes[0].get_xlabel() == "constraints.alpha"


def test_every_setting_and_field_has_its_row(make_run):
    folders = [_alpha(make_run, alpha) for alpha in (0.1, 0.2, 0.3)]
    folders += [_alpha(make_run, 0.1, rate=rate) for rate in (0.001, 0.1)]
    folders += [_alpha(make_run, alpha, num_layers=5) for alpha in (0.1, 0.2)]
    settings = _settings(folders)
    assert _rows(settings) == [
        ("constraints.alpha", [([0.1, 0.2, 0.3], "")]),
        ("dual.learning_rate", [([0.001, 0.005, 0.1], "")]),
        ("constraints.alpha", [([0.1, 0.2], "")]),
    ]
    figure = ablation(settings)
    assert figure is not None
    assert [axes.get_xscale() for axes in figure.axes] == ["linear"] * 2 + ["log"] * 2 + ["linear"] * 2


def test_a_grid_of_two_fields_is_drawn_as_one_series_per_value_of_the_other(make_run):
    folders = [_alpha(make_run, alpha, rate=rate) for alpha in (0.1, 0.2) for rate in (0.001, 0.01)]
    assert _rows(_settings(folders)) == [
        ("constraints.alpha", [([0.1, 0.2], "learning_rate 0.001"), ([0.1, 0.2], "learning_rate 0.01")]),
        ("dual.learning_rate", [([0.001, 0.01], "alpha 0.1"), ([0.001, 0.01], "alpha 0.2")]),
    ]


def test_a_grid_of_two_fields_labels_its_curves_apart(make_run):
    folders = [_alpha(make_run, alpha, rate=rate) for alpha in (0.1, 0.2) for rate in (0.001, 0.01)]
    figure = ablation(_settings(folders))
    assert figure is not None
    assert {"worst layer; learning_rate 0.001", "worst layer; learning_rate 0.01"} < set(_curves(figure.axes[1]))


@pytest.mark.parametrize(
    "others",
    [
        [{"dual": {"learning_rate": 0.1}, "constraints": {"alpha": [0.3]}}],  # two fields at once
        [{"constraints": {"alpha": [0.1, 0.2, 0.3], "reference": 5.5, "normalise": True}}],  # a list of several
        [{"constraints": {"alpha": [0.1], "reference": None, "normalise": True}}],  # not a number
        [{"constraints": {"alpha": [0.1], "reference": 5.5, "normalise": False}}],  # true and false are no numbers
        [{"dual": {"learning_rate": 0.005, "optimizer": "adam"}}],
        [{"seed": 7, "data": {"source": "photos", "prepared": "/elsewhere"}}],
        [],
    ],
)
def test_other_differences_are_no_ablation(make_run, others):
    folders = [_alpha(make_run, 0.1)]
    folders += [_alpha(make_run, 0.1, seed=1, steps=60, config=config) for config in others]
    settings = _settings(folders)
    assert find_ablations(settings) == []
    assert ablation(settings) is None


def test_plain_runs_are_no_ablation(make_run):
    folders = [make_run("erm", name=f"e{steps}", config={"steps": steps}) for steps in (100, 200)]
    assert ablation(_settings(folders)) is None


def test_ablation_without_bounds_or_numbers_still_draws(make_run):
    nothing = {"bounds": [None] * 4, "violations": [None] * 4}
    folders = [_alpha(make_run, 0.1, evaluation=nothing), _alpha(make_run, 0.2)]
    figure = ablation(_settings(folders))
    assert figure is not None
    assert np.isnan(_curves(figure.axes[1])["worst layer"][1]).tolist() == [True, False]


def test_figures_have_room_for_the_legend_of_many_variants(make_run, monkeypatch, tmp_path):
    monkeypatch.setattr("unroll_jax.train.report.panels.DPI", 40)
    folders = [_alpha(make_run, alpha, rate=rate, steps=0) for alpha in (0.1, 0.2, 0.3, 0.4) for rate in (0.001, 0.01)]
    write(video, folders, tmp_path / "out", log=lambda _: None)  # matplotlib warns where there is none: an error here
    assert (tmp_path / "out" / "ablation.png").read_bytes().startswith(b"\x89PNG")


def test_page_shows_the_ablation_only_where_there_is_one(make_run, monkeypatch, tmp_path):
    monkeypatch.setattr("unroll_jax.train.report.png", lambda figure: b"")
    folders = [_alpha(make_run, alpha, steps=0) for alpha in (0.1, 0.2)]
    for count, there in ((1, False), (2, True)):
        out = tmp_path / f"out{count}"
        write(video, folders[:count], out, log=lambda _: None)
        assert (out / "ablation.png").exists() == there
        assert ("What a setting changes" in (out / "index.html").read_text(encoding="utf-8")) == there
