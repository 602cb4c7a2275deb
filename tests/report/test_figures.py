"""Figures draw the numbers of the runs, with axes, units and legends."""

import io

import numpy as np
import pytest
from matplotlib.patches import StepPatch

from tests.report.conftest import GAMMAS, grouped
from unroll_jax.train.report import figures
from unroll_jax.train.report.records import METHODS

FLOORS = {
    "linear layer": (9.0, 10.0, 18.0, 19.0, 21.0, 30.0),
    "total variation": (0.0, 10.0, 15.0, 16.0, 17.0, 20.0),
}
WITH_FLOORS = {
    "floors": {
        name: dict(zip(GAMMAS, scores, strict=True)) for name, scores in FLOORS.items()
    }
}


def drawn(name, settings):
    made = figures.pictures(name, settings)
    assert all(one.caption for one in made)
    return [one.figure.axes[0] for one in made]


def lines(axes):
    return {line.get_label(): line for line in axes.lines}


def heights(line):
    return np.asarray(line.get_ydata(), float)


def test_the_score_curve_draws_methods_floors_and_the_training_gamma(make_run):
    (axes,) = drawn(
        "score_curve",
        grouped(
            [make_run(one, evaluation=WITH_FLOORS) for one in ("plain", "constrained")]
        ),
    )
    curves = lines(axes)
    assert set(curves) == {
        "noisy input",
        "linear layer",
        "total variation",
        "plain",
        "constrained",
        "training gamma",
    }
    for name, scores in FLOORS.items():
        np.testing.assert_allclose(heights(curves[name]), scores)


def test_the_frontier_has_a_point_a_variant_where_a_method_has_several(make_run):
    folders = [make_run(method, seed=seed) for method in METHODS for seed in (0, 1)]
    assert figures.pictures("frontier", grouped(folders)) == []
    settings = grouped(
        [
            *folders,
            make_run(
                "constrained", name="other", config={"constraints": {"alpha": 0.3}}
            ),
        ]
    )
    (axes,) = drawn("frontier", settings)
    points = {tuple(np.round(line.get_xydata()[0], 6)) for line in axes.lines}
    scores = [variant.scores().mean(0) for variant in settings[0].variants]
    assert points == {(round(score[2], 6), round(score[5], 6)) for score in scores}


def test_curves_are_means_over_the_seeds_and_constrained_runs_have_bounds(make_run):
    settings = grouped(
        [
            make_run(method, seed=seed)
            for seed in (0, 1)
            for method in ("plain", "constrained")
        ]
    )
    ((axes,), (of_scores,)) = (
        drawn("layer_losses", settings),
        drawn("score_curve", settings),
    )
    for variant in settings[0].variants:
        np.testing.assert_allclose(
            heights(lines(of_scores)[variant.title]), variant.scores().mean(0)
        )
    (constrained,) = settings[0].of("constrained")
    curves = [heights(line) for line in axes.lines]
    assert len(curves) == 3
    for key in ("bounds", "layer_losses"):
        assert any(np.array_equal(values, constrained.mean(key)) for values in curves)
    numbered = grouped(
        [
            make_run(
                "constrained", name="numbered", evaluation={"layers": [0, 10, 20, 30]}
            )
        ]
    )
    (axes,) = drawn("layer_losses", numbered)
    assert {tuple(line.get_xdata()) for line in axes.lines} == {(0, 10, 20, 30)}


@pytest.mark.parametrize("name", ["multipliers", "violations"])
def test_multipliers_and_violations_have_a_curve_per_bound_and_a_line_at_zero(
    make_run, name
):
    settings = grouped(
        [make_run("constrained", evaluation={"bounds": [None, 3.6, 1.5, 0.8]})]
    )
    (axes,) = drawn(name, settings)
    curves = settings[0].variants[0].runs[0].by_layer("train", name)
    for line, curve in zip(axes.lines, [*curves.T[1:], [0.0, 0.0]], strict=True):
        np.testing.assert_allclose(heights(line), curve)


def test_ratios_are_shares_and_their_last_bin_may_be_open(make_run):
    (axes,) = drawn("ratios", grouped([make_run("plain"), make_run("constrained")]))
    steps = [patch.get_data() for patch in axes.patches if isinstance(patch, StepPatch)]
    assert [np.sum(values) for values, _, _ in steps] == pytest.approx([100] * 4)
    open_ended = {
        "ratio_histogram": {"edges": [0.0, 0.5, 1.0, None], "counts": [[1, 2, 3]] * 3}
    }
    (axes,) = drawn(
        "ratios", grouped([make_run("constrained", name="open", evaluation=open_ended)])
    )
    (first, *_) = [
        patch.get_data() for patch in axes.patches if isinstance(patch, StepPatch)
    ]
    assert list(first[1]) == [0.0, 0.5, 1.0, 1.5]


def test_figures_are_left_out_where_there_is_nothing_to_draw(make_run):
    settings = grouped([make_run("plain", steps=0)])
    for name in ("acceptance", "early_exit", "multipliers", "violations", "frontier"):
        assert figures.pictures(name, settings) == []


def test_captions_state_the_bounds_of_the_configurations(make_run):
    constraints = {"bounds": "cumulative", "alpha": [0.26], "reference": 1.85}
    settings = grouped(
        [
            make_run("plain"),
            make_run("constrained", config={"constraints": constraints}),
        ]
    )
    (picture,) = figures.pictures("layer_losses", settings)
    assert "Bounds (cumulative): alpha 0.26, reference 1.85." in picture.caption


def test_a_dollar_in_a_name_is_no_mathematics(make_run):
    names = ("$\\frac$", "costs $5, or $")
    page = figures.confusion("$x^$", np.eye(2, dtype=int), names)
    page.savefig(io.BytesIO())
    assert [text.get_text() for text in page.axes[0].get_xticklabels()] == [*names]
    configs = [{"primal": {"name": f"${name}$"}} for name in ("\\a", "\\b")]
    settings = grouped(
        [
            make_run("plain", name=str(place), config=config)
            for place, config in enumerate(configs)
        ]
    )
    for picture in figures.pictures("layer_losses", settings):
        picture.figure.savefig(io.BytesIO())


def test_a_confusion_matrix_shows_shares_of_each_class():
    (axes,) = figures.confusion(
        "net", np.array([[3, 1], [0, 0]]), ("left", "right")
    ).axes
    np.testing.assert_allclose(axes.images[0].get_array(), [[75.0, 25.0], [0.0, 0.0]])
    assert [text.get_text() for text in axes.texts] == ["75", "25", "0", "0"]
