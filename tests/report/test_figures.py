"""Figures draw the numbers of the runs, with axes, units and legends."""

import itertools

import numpy as np
import pytest
from matplotlib.patches import StepPatch

from tests.report.conftest import GAMMAS, grouped
from unroll_jax.train.report import figures
from unroll_jax.train.report.records import METHODS

FLOORS = {"linear layer": (9.0, 10.0, 18.0, 19.0, 21.0, 30.0), "total variation": (0.0, 10.0, 15.0, 16.0, 17.0, 20.0)}
WITH_FLOORS = {"floors": {name: dict(zip(GAMMAS, scores, strict=True)) for name, scores in FLOORS.items()}}


@pytest.fixture
def settings(make_run):
    methods = ("plain", "constrained")
    return grouped([make_run(m, num_layers=n, seed=s) for n in (3, 7) for s in (0, 1) for m in methods])


def drawn(name, settings):
    made = figures.pictures(name, settings)
    assert all(one.caption for one in made)
    return [one.figure.axes[0] for one in made]


def lines(axes):
    return {line.get_label(): line for line in axes.lines}


def heights(line):
    return np.asarray(line.get_ydata(), float)


def test_the_score_curve_draws_methods_floors_and_the_training_gamma(make_run):
    (axes,) = drawn("score_curve", grouped([make_run("plain"), make_run("constrained", evaluation=WITH_FLOORS)]))
    curves = lines(axes)
    assert set(curves) == {"noisy input", "linear layer", "total variation", "plain", "constrained", "training gamma"}
    for name, scores in FLOORS.items():
        np.testing.assert_allclose(heights(curves[name]), scores)
        assert curves[name].get_linestyle() == "--"
    assert len({line.get_color() for line in curves.values()}) == len(curves)
    assert axes.get_ylabel() == "RMSE (0-255 scale)"
    assert axes.get_ylim()[1] < 88.9, "the noisy input may lie beyond the axis"


def test_bands_are_means_and_ranges_over_the_seeds(settings):
    for axes, setting in zip(drawn("score_curve", settings), settings, strict=True):
        for variant in setting.variants:
            line = lines(axes)[variant.title]
            np.testing.assert_allclose(heights(line), variant.scores().mean(0))
            assert line.get_color() == figures.COLOURS[variant.method]
        assert len(axes.collections) == 2


def test_the_frontier_has_a_point_a_variant_where_a_method_has_several(make_run):
    folders = [make_run(method, seed=seed) for method in METHODS for seed in (0, 1)]
    assert figures.pictures("frontier", grouped(folders)) == []
    settings = grouped([*folders, make_run("constrained", name="other", config={"constraints": {"alpha": 0.3}})])
    (axes,) = drawn("frontier", settings)
    points = {tuple(np.round(line.get_xydata()[0], 6)) for line in axes.lines}
    scores = [variant.scores().mean(0) for variant in settings[0].variants]
    assert points == {(round(score[2], 6), round(score[5], 6)) for score in scores}


def test_layer_losses_have_the_bounds_of_constrained_runs_alone_and_the_numbers_of_layers(make_run, settings):
    for axes, setting in zip(drawn("layer_losses", settings), settings, strict=True):
        (constrained,) = setting.of("constrained")
        curves = [heights(line) for line in axes.lines]
        assert len(curves) == 3
        for key in ("bounds", "layer_losses"):
            assert any(np.array_equal(values, constrained.mean(key)) for values in curves)
        assert axes.get_yscale() == "log"
    numbered = grouped([make_run("constrained", name="numbered", evaluation={"layers": [0, 10, 20, 30]})])
    assert numbered[0].title.startswith("3 of 30 layers")
    (axes,) = drawn("layer_losses", numbered)
    assert {tuple(line.get_xdata()) for line in axes.lines} == {(0, 10, 20, 30)}


@pytest.mark.parametrize("name", ["multipliers", "violations"])
def test_multipliers_and_violations_have_a_curve_per_bound_and_a_line_at_zero(make_run, name):
    settings = grouped([make_run("constrained", evaluation={"bounds": [None, 3.6, 1.5, 0.8]})])
    (axes,) = drawn(name, settings)
    curves = settings[0].variants[0].runs[0].curves[name]
    for line, curve in zip(axes.lines, [*curves.T[1:], [0.0, 0.0]], strict=True):
        np.testing.assert_allclose(heights(line), curve)
    (legend,) = axes.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["layer 1", "layer 2", "layer 3"]


def test_ratios_are_shares_and_name_mean_and_descent(make_run, settings):
    axes = drawn("ratios", settings)[0]
    labels = axes.get_legend_handles_labels()[1]
    for variant in settings[0].variants:
        share, mean = variant.mean("share_descending"), variant.mean("mean_ratio_all")
        assert f"{variant.title}: mean {mean:.2f},\n{share:.1%} of steps descend" in labels
    steps = [patch.get_data() for patch in axes.patches if isinstance(patch, StepPatch)]
    assert [np.sum(values) for values, _, _ in steps] == pytest.approx([100] * 4)
    open_ended = {"ratio_histogram": {"edges": [0.0, 0.5, 1.0, None], "counts": [[1, 2, 3]] * 3}}
    (axes,) = drawn("ratios", grouped([make_run("constrained", name="open", evaluation=open_ended)]))
    (first, *_) = [patch.get_data() for patch in axes.patches if isinstance(patch, StepPatch)]
    assert list(first[1]) == [0.0, 0.5, 1.0, 1.5]


def test_figures_are_left_out_where_there_is_nothing_to_draw(make_run):
    settings = grouped([make_run("plain", steps=0)])
    for name in ("acceptance", "early_exit", "multipliers", "violations", "frontier"):
        assert figures.pictures(name, settings) == []


def test_captions_are_those_of_the_configurations_and_of_the_seeds(make_run):
    made = itertools.count()

    def caption(name, method="constrained", seeds=(0,), **constraints):
        config = {"constraints": constraints}
        folders = [make_run(method, seed=seed, name=f"run{next(made)}", config=config) for seed in seeds]
        return figures.pictures(name, grouped(folders))[0].caption

    stepwise = caption("layer_losses", bounds="stepwise", first_alpha=0.8, alpha=[0.3])
    assert "loss of layer l − 1" in stepwise
    assert "α is 0.8, 0.3" in stepwise
    assert "product" not in stepwise
    cumulative = caption("layer_losses", bounds="cumulative", alpha=[0.26], reference=1.85, floor=0.4)
    for words in ("1.85 times the product of (1 − α)", "or 0.4 where that is larger", "α is 0.26"):
        assert words in cumulative
    assert "bound of the last layer is 0.5" in caption("layer_losses", last=0.5, alpha=[0.3])
    assert "bound" not in caption("layer_losses", "plain")
    for is_told, seeds, margin in ((False, (0,), 0.0), (True, (0, 1), 0.05)):
        assert ("2 seeds" in caption("layer_losses", seeds=seeds)) == is_told
        assert ("tighter" in caption("violations", alpha=0.2, margin=margin)) == is_told


def test_a_confusion_matrix_shows_shares_of_each_class():
    (axes,) = figures.confusion("net", np.array([[3, 1], [0, 0]]), ("left", "right")).axes
    np.testing.assert_allclose(axes.images[0].get_array(), [[75.0, 25.0], [0.0, 0.0]])
    assert [text.get_text() for text in axes.texts] == ["75", "25", "0", "0"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["left", "right"]
    (axes,) = figures.confusion("net", np.eye(200), [f"class {place}" for place in range(200)]).axes
    assert (len(axes.get_xticklabels()), len(axes.texts)) == (20, 0)
