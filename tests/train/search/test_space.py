"""What is searched over: ranges and choices, their way into configurations, tables and the picture."""

import dataclasses
import itertools
import shlex

import numpy as np
import pytest

from unroll_jax.train.__main__ import main
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.config.fields import value_of
from unroll_jax.train.config.video import VideoConfig
from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.search.results import Outcome, as_table, parallel_coordinates, ranked
from unroll_jax.train.search.space import as_options, configured, grid, read_space

TUNABLES = VideoConfig().tunables()


def _read(**given):
    return read_space({name.replace("_", "-"): text for name, text in given.items()}, TUNABLES, grid=False)


def test_a_range_keeps_its_ends_and_a_count_spaces_values_as_numpy_does():
    plain, spaced, linear = (
        _read(primal_rate="1e-4:1e-2")[0],
        *_read(dual_rate="1e-4:1e-2:5"),
        *_read(alpha="0.1:0.3:3"),
    )
    assert (plain.low, plain.high, plain.choices) == (1e-4, 1e-2, ())
    np.testing.assert_allclose(spaced.choices, np.logspace(-4, -2, 5), rtol=1e-5)
    np.testing.assert_allclose(linear.choices, [0.1, 0.2, 0.3])
    assert _read(resilience="none,1,50")[0].choices == (None, 1.0, 50.0)


def test_a_grid_is_the_product_of_the_choices():
    parameters = _read(alpha="0.1,0.2", resilience="none,5", primal_rate="1e-4:1e-3:3")
    expected = itertools.product((0.1, 0.2), (None, 5.0), parameters[2].choices)
    assert [tuple(point.values()) for point in grid(parameters)] == list(expected)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"alpha": "0.3:0.1"}, "--over.alpha 0.3:0.1: 0.3 is not below 0.1"),
        ({"alpha": "0.1:0.1"}, "not below"),
        ({"alpha": "low:0.3"}, "--over.alpha low:0.3: 'low' is no number; must be LOW:HIGH"),
        ({"alpha": ""}, "'' is no number"),
        ({"alpha": "0.1:nan"}, "nan is not finite"),
        ({"alpha": "0.1:0.2:1"}, "COUNT from 2 to 1000"),
        ({"alpha": "0.1:0.2:2.5"}, "COUNT from 2 to 1000"),
        ({"alpha": "0.1:0.2:3:4"}, "COUNT from 2 to 1000"),
        ({"alpha": "0.2"}, "two values or more; a fixed one is --constraints.alpha 0.2"),
        ({"alpha": "0.2,0.3,0.20"}, "given twice"),
        ({"alpha": "none,0.3"}, "--constraints.alpha cannot be none"),
        ({"primal_rate": "0:1"}, "must lie above 0"),
        ({"dual_rate": "-1:1"}, "must lie above 0"),
    ],
)
def test_what_cannot_be_read_is_one_line_that_names_it(given, words):
    with pytest.raises(UserError) as caught:
        _read(**given)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_grid_over_a_range_is_refused_with_the_way_out():
    with pytest.raises(UserError, match=r"--over\.alpha 0\.1:0\.3: a grid needs values; .*0\.1:0\.3:3"):
        read_space({"alpha": "0.1:0.3"}, TUNABLES, grid=True)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_can_be_searched_without_saying_over_what(experiment):
    config = EXPERIMENTS[experiment].config
    tunables = config.tunables()
    parameters = read_space({}, tunables, grid=False)
    assert parameters
    for parameter in parameters:
        for value in parameter.ends:
            changed = configured(config, [parameter], {parameter.name: value})
            changed.check()
            assert changed != config or _is_set(config, tunables[parameter.name].field, value)


def _is_set(config, field, value):
    values = value_of(config, field)
    return value in (values if isinstance(values, tuple) else (values,))


def test_values_land_in_their_fields_and_nowhere_else():
    parameters = _read(f_ref="7:9", alpha="0.1:0.2", dual_rate="1e-3:1", primal_rate="1e-3:1", resilience="none,3")
    config = VideoConfig(constraints=dataclasses.replace(VideoConfig().constraints, alpha=(0.1, 0.2, 0.3)))
    values = {"f-ref": 7.5, "alpha": 0.15, "dual-rate": 0.25, "primal-rate": 0.125, "resilience": None}
    changed = configured(config, parameters, values)
    constraints = dataclasses.replace(config.constraints, reference=7.5, alpha=(0.15,), resilience=None)
    dual, primal = (
        dataclasses.replace(group, learning_rate=rate) for group, rate in ((config.dual, 0.25), (config.primal, 0.125))
    )
    assert changed == dataclasses.replace(config, constraints=constraints, dual=dual, primal=primal)


def test_options_make_the_configuration_again(monkeypatch):
    default = EXPERIMENTS["video-ut"].config
    config = VideoConfig(
        method="erm",
        test_gammas=(0.0, 0.3),
        remat="everything",
        average=0.9,
        data=dataclasses.replace(default.data, root="a folder"),
        model=dataclasses.replace(default.model, rank=3),
        constraints=dataclasses.replace(default.constraints, normalise=False, reference=None, alpha=(0.1, 0.2, 0.3)),
    )
    configs = []
    monkeypatch.setattr("unroll_jax.train.main.fit", lambda config, *, experiment: configs.append(config))
    assert main(["run", "video-ut", *shlex.split(as_options(config, default))]) == 0
    assert configs == [config]


def _outcomes():
    figures = [(True, -0.2, 2.0, 4), (True, 0.01, 1.5, 4), (False, 0.4, 1.0, 4), (None, None, None, None)]
    outcomes = []
    for number, trial_figures in enumerate(figures):
        values = {
            "alpha": 0.1 + 0.05 * number,
            "primal-rate": 10.0 ** -(number + 1),
            "resilience": (None, 1.0)[number % 2],
        }
        state = "finished" if trial_figures[-1] else "failed"
        outcomes.append(Outcome(number, values, *trial_figures, state, 1.0, ""))
    return ranked(outcomes, VideoConfig())


def _figure(outcomes):
    parameters = _read(alpha="0.1:0.3", primal_rate="1e-4:1e-1", resilience="none,1")
    return parallel_coordinates(outcomes, parameters, VideoConfig())


def test_the_table_ranks_and_says_what_is_feasible():
    table = as_table(_outcomes(), VideoConfig())
    assert [row[1] for row in table.rows] == ["1", "0", "2", "3"]
    place = table.header.index("feasible")
    assert [row[place] for row in table.rows] == ["yes", "yes", "no", "-"]
    assert "smaller is better" in table.note


def test_the_picture_tells_feasible_infeasible_and_failed_trials_apart():
    figure = _figure(_outcomes())
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["failed (1)", "not feasible (1)", "other feasible (1)", "best, trial 1 (feasible)"]
    lines = {line.get_label(): line for line in figure.axes[0].lines if not line.get_label().startswith("_")}
    styles = [lines[label].get_linestyle() for label in legend]
    assert styles == [":", "--", "-", "-"]
    assert len({lines[label].get_color() for label in legend}) == 4
    assert len(lines["failed (1)"].get_xdata()) == 4, "three values and the cross where results would begin"
    assert len(lines["not feasible (1)"].get_xdata()) == 5


def test_every_axis_has_its_name_scale_and_unit_and_lines_pass_at_their_values():
    figure = _figure(_outcomes())
    axes = figure.axes[0]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    for label, words in zip(
        labels,
        [
            ("alpha", "linear scale"),
            ("primal-rate", "log scale"),
            ("resilience", "values tried"),
            ("worst excess", "linear scale", "% of its bound"),
            ("validation loss", "half squared error per patch", "smaller is better"),
        ],
        strict=True,
    ):
        for word in words:
            assert word in label
    best = next(line for line in axes.lines if line.get_label().startswith("best"))
    alpha, rate, resilience = best.get_ydata()[:3]  # 0.15 of 0.1..0.3, 1e-2 of 1e-4..1e-1, the second of two
    np.testing.assert_allclose([alpha, rate, resilience], [0.25, 2 / 3, 1.0])


def test_a_collapsed_trial_does_not_squeeze_the_others_and_one_trial_is_a_picture():
    first = _outcomes()
    collapsed = first[2]._replace(feasible=False, worst_excess=1e18, metric=500.0)
    axes = _figure([*first[:2], collapsed]).axes[0]
    texts = [text.get_text() for text in axes.texts]
    assert "≥ 1000" in texts
    assert "log scale" in axes.get_xticklabels()[4].get_text()
    _figure(first[:1])
    _figure(first[3:])
