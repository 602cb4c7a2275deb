"""Figures draw the numbers of the runs, with axes, units and legends."""

import io

import numpy as np

from tests.report.conftest import grouped
from unroll_jax.train.report import figures


def drawn(name, settings):
    made = figures.pictures(name, settings)
    assert all(one.caption for one in made)
    return [one.figure.axes[0] for one in made]


def heights(line):
    return np.asarray(line.get_ydata(), float)


def test_curves_are_means_over_seeds_and_constrained_runs_have_bounds(make_run):
    methods = ("plain", "constrained")
    settings = grouped(
        [make_run(method, seed=seed) for seed in (0, 1) for method in methods]
    )
    (of_scores,) = drawn("score_curve", settings)
    labelled = {line.get_label(): line for line in of_scores.lines}
    for variant in settings[0].variants:
        found = heights(labelled[variant.title])
        np.testing.assert_allclose(found, variant.scores().mean(0))
    (axes,) = drawn("layer_losses", settings)
    curves = [heights(line) for line in axes.lines]
    assert len(curves) == 3
    (constrained,) = settings[0].of("constrained")
    for key in ("bounds", "layer_losses"):
        assert any(np.array_equal(values, constrained.mean(key)) for values in curves)


def test_layers_have_the_numbers_that_they_have_in_the_model(make_run):
    numbers = [0, 10, 20, 30]
    settings = grouped([make_run(evaluation={"layers": numbers})])
    assert settings[0].title.startswith("3 of 30 layers")
    (axes,) = drawn("layer_losses", settings)
    assert [line.get_xdata().tolist() for line in axes.lines] == [numbers] * 2
    (axes,) = drawn("multipliers", settings)
    labels = axes.get_legend_handles_labels()[1]
    assert labels == [f"layer {number}" for number in numbers]


def test_a_dollar_in_a_name_is_no_mathematics():
    names = ("$\\frac$", "costs $5, or $")
    page = figures.confusion("$x^$", np.eye(2, dtype=int), names)
    page.savefig(io.BytesIO())
    assert [text.get_text() for text in page.axes[0].get_xticklabels()] == [*names]


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
