"""Figures draw the numbers of the runs, with axes, units and legends."""

import io

import numpy as np
from numpy.testing import assert_allclose

from tests.report.conftest import grouped
from unroll_jax.train.report import figures, tables
from unroll_jax.train.report.tables import make_tables


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
        assert_allclose(found, variant.scores().mean(0))
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


def test_early_exits_and_accepted_drafts_are_drawn_and_tabled(make_run):
    exits = {
        "curve": {"mean_depths": [3.0, 0.0, 2.0], "accuracies": [0.9, 0.2, 0.8]},
        "mean_depth": 2.0,
        "accuracy": 0.8,
        "full_accuracy": 0.9,
        "standard_error": 0.01,
    }
    shares = [[0.1, 0.5, 0.75, 1.0]] * 6  # at every gamma
    (setting,) = grouped(
        [make_run("plain", evaluation={"early_exit": exits, "acceptance": shares})]
    )
    (axes,) = drawn("early_exit", [setting])
    curve, chosen = (line.get_xydata().tolist() for line in axes.lines)
    assert curve == [[0.0, 0.2], [2.0, 0.8], [3.0, 0.9]]
    assert chosen == [[2.0, 0.8]]
    (axes,) = drawn("acceptance", [setting])
    assert heights(axes.lines[0]).tolist() == shares[0]
    (row,) = make_tables(tables.exits, [setting])[0].rows
    assert row[1:] == ("2.00 of 3", "80.00", "90.00", "-10.00 (1.00)")
    first, *_ = make_tables(tables.acceptance, [setting])[0].rows
    assert first == ("plain", "0", "10.0", "50.0", "75.0", "100.0")


def test_the_frontier_marks_variants_that_are_not_feasible(make_run):
    feasible = {0.1: True, 0.2: False, 0.3: True}
    settings = grouped([
        make_run("plain"),
        *(
            make_run(
                name=f"alpha-{alpha}",
                config={"constraints": {"alpha": alpha}},
                evaluation={"feasible": holds},
            )
            for alpha, holds in feasible.items()
        ),
    ])  # fmt: skip
    (axes,) = drawn("frontier", settings)
    faces = [line.get_markerfacecolor() for line in axes.lines[1:]]
    assert [face != "white" for face in faces] == [*feasible.values()]
    assert axes.lines[0].get_xydata().tolist() == [[17.5, 47.0]]


def test_a_confusion_matrix_shows_shares_and_names_as_they_are():
    names = ("$\\frac$", "costs $5, or $")  # no mathematics
    page = figures.confusion("$x^$", np.array([[3, 1], [0, 0]]), names)
    page.savefig(io.BytesIO())
    (axes,) = page.axes
    assert [text.get_text() for text in axes.get_xticklabels()] == [*names]
    assert_allclose(axes.images[0].get_array(), [[75.0, 25.0], [0.0, 0.0]])
    assert [text.get_text() for text in axes.texts] == ["75", "25", "0", "0"]


def test_rows_of_a_legend_are_of_equal_length():
    figure, axes = figures._panel("one")
    for number in range(4):
        axes.plot([0.0], label=f"{number}")
    figures._legend(figure, axes)
    assert figure.legends[0]._ncols == 2
