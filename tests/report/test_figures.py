"""Figures draw the numbers of the runs, with axes, units and legends."""

import io

import numpy as np

from tests.report.conftest import GAMMAS, grouped
from unroll_jax.train.report import figures

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


def test_rows_of_a_legend_are_of_equal_length():
    figure, axes = figures._panel("one")
    for number in range(4):
        axes.plot([0.0], label=f"{number}")
    figures._legend(figure, axes)
    assert figure.legends[0]._ncols == 2
