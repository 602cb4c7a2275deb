"""Figures draw the numbers of the runs, with axes, units and legends."""

import numpy as np
import pytest
from matplotlib.patches import StepPatch

from tests.report.conftest import GAMMAS
from unroll_jax.train.report import figures
from unroll_jax.train.report.groups import group
from unroll_jax.train.report.records import METHODS, check_layered, read_runs

FLOORS = {"linear layer": (9.0, 10.0, 18.0, 19.0, 21.0, 30.0), "total variation": (0.0, 10.0, 15.0, 16.0, 17.0, 20.0)}
WITH_FLOORS = {
    "floors": {name: dict(zip(GAMMAS, scores, strict=True)) for name, scores in FLOORS.items()},
    "floor_shares": {"linear layer": 1.0, "total variation": 0.25},
}


def grouped(folders):
    return group(check_layered(read_runs(folders)))


@pytest.fixture
def settings(make_run):
    """Two depths, two methods, two seeds."""
    methods = ("erm", "constrained")
    return grouped([make_run(m, num_layers=n, seed=s) for n in (3, 7) for s in (0, 1) for m in methods])


def lines(axes):
    return {line.get_label(): line for line in axes.lines}


def heights(line):
    return np.asarray(line.get_ydata(), float)


def test_the_score_curve_draws_methods_floors_and_the_training_gamma(make_run):
    folders = [make_run("erm"), make_run("constrained", evaluation=WITH_FLOORS)]
    (axes,) = figures.score_curve(grouped(folders)).axes
    drawn = lines(axes)
    assert set(drawn) == {"noisy input", "linear layer", "total variation", "plain", "constrained", "training gamma"}
    for name, scores in FLOORS.items():
        np.testing.assert_allclose(heights(drawn[name]), scores)
        assert drawn[name].get_linestyle() == "--"
    assert len({line.get_color() for line in drawn.values()}) == len(drawn)
    assert axes.get_ylabel() == "RMSE (0-255 scale)"
    assert axes.get_ylim()[1] < 88.9, "the noisy input may lie beyond the axis"


def test_bands_are_means_and_ranges_over_the_seeds(settings):
    figure = figures.score_curve(settings)
    for axes, setting in zip(figure.axes, settings, strict=True):
        for variant in setting.variants:
            line = lines(axes)[variant.title]
            np.testing.assert_allclose(heights(line), variant.scores().mean(0))
            assert line.get_color() == figures.COLOURS[variant.method]
        assert len(axes.collections) == 2


def test_the_frontier_has_a_point_a_variant_where_a_method_has_several(make_run):
    folders = [make_run(method, seed=seed) for method in METHODS for seed in (0, 1)]
    assert figures.frontier(grouped(folders)) is None
    other = make_run("constrained", name="other", config={"constraints": {"alpha": 0.3}})
    settings = grouped([*folders, other])
    (axes,) = figures.frontier(settings).axes
    points = {tuple(np.round(line.get_xydata()[0], 6)) for line in axes.lines if line.get_marker() in ("o", "s", "^")}
    scores = [variant.scores().mean(0) for variant in settings[0].variants]
    assert points == {(round(score[2], 6), round(score[5], 6)) for score in scores}


def test_layer_losses_are_drawn_with_the_bounds_of_constrained_runs_alone(make_run, settings):
    figure = figures.layer_losses(settings)
    for axes, setting in zip(figure.axes, settings, strict=True):
        (constrained,) = setting.of("constrained")
        drawn = [heights(line) for line in axes.lines]
        for key in ("bounds", "layer_losses"):
            assert any(np.array_equal(values, constrained.mean(key)) for values in drawn)
        assert axes.get_yscale() == "log"
    for method, there in (("erm", False), ("constrained", True)):
        (legend,) = figures.layer_losses(grouped([make_run(method, name=method)])).legends
        assert ("bound (constrained)" in [text.get_text() for text in legend.get_texts()]) == there


def test_multipliers_have_a_curve_per_bound_and_a_line_at_zero(make_run, settings):
    left, right = figures.multipliers(settings).axes[2:]
    curves = [run.curves["multipliers"] for run in settings[1].of("constrained")[0].runs]
    for layer in range(8):
        np.testing.assert_allclose(heights(left.lines[layer]), np.mean(curves, axis=0)[:, layer])
    for axes in (left, right):
        assert len(axes.lines) == 9
        assert list(heights(axes.lines[8])) == [0.0, 0.0]
    unbounded = make_run("constrained", name="no-reference", evaluation={"bounds": [None, 3.6, 1.5, 0.8]})
    (legend,) = [axes.get_legend() for axes in figures.multipliers(grouped([unbounded])).axes if axes.get_legend()]
    assert [text.get_text() for text in legend.get_texts()] == ["layer 1", "layer 2", "layer 3"]


def test_ratios_are_shares_and_name_mean_and_descent(make_run, settings):
    axes = figures.ratios(settings).axes[0]
    labels = axes.get_legend_handles_labels()[1]
    for variant in settings[0].variants:
        share, mean = variant.mean("share_descending"), variant.mean("mean_ratio_all")
        assert f"{variant.title}: mean {mean:.2f},\n{share:.1%} of steps descend" in labels
    steps = [patch.get_data() for patch in axes.patches if isinstance(patch, StepPatch)]
    assert [np.sum(values) for values, _, _ in steps] == pytest.approx([100] * 4)
    open_ended = {"ratio_histogram": {"edges": [0.0, 0.5, 1.0, None], "counts": [[1, 2, 3]] * 3}}
    (axes,) = figures.ratios(grouped([make_run("constrained", name="open", evaluation=open_ended)])).axes
    (first, *_) = [patch.get_data() for patch in axes.patches if isinstance(patch, StepPatch)]
    assert list(first[1]) == [0.0, 0.5, 1.0, 1.5]


def test_figures_are_left_out_where_there_is_nothing_to_draw(make_run):
    settings = grouped([make_run("erm", steps=0)])
    for name in ("error_rates", "acceptance", "early_exit", "multipliers", "frontier"):
        assert getattr(figures, name)(settings) is None


def test_layers_have_the_numbers_that_they_have_in_the_model(make_run):
    numbers = [0, 10, 20, 30]
    settings = grouped([make_run("constrained", evaluation={"layers": numbers})])
    assert settings[0].title.startswith("3 of 30 layers")
    (axes,) = figures.layer_losses(settings).axes
    assert {tuple(line.get_xdata()) for line in axes.lines if len(line.get_xdata())} == {tuple(numbers)}
    (legend,) = [axes.get_legend() for axes in figures.multipliers(settings).axes if axes.get_legend()]
    assert [text.get_text() for text in legend.get_texts()] == [f"layer {number}" for number in numbers]


def test_multipliers_have_the_steps_that_all_seeds_logged(make_run):
    settings = grouped([make_run("constrained", seed=seed, steps=steps) for seed, steps in ((0, 60), (1, 40))])
    left, _ = figures.multipliers(settings).axes
    assert max(left.lines[0].get_xdata()) == 40
