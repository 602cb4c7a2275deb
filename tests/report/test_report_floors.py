"""What needs no network stands beside the models: in the figure, the table, the words and the summary."""

import numpy as np
import pytest

from tests.report.conftest import GAMMAS
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.report import write
from unroll_jax.train.report.constrained import summarise, video
from unroll_jax.train.report.figures import score_curve
from unroll_jax.train.report.groups import group
from unroll_jax.train.report.read import read_runs
from unroll_jax.train.report.tables import score_table
from unroll_jax.train.report.words import compare, floor

LINEAR, TOTAL = (9.0, 10.0, 18.0, 19.0, 21.0, 30.0), (0.0, 10.0, 15.0, 16.0, 17.0, 20.0)
FLOORS = {
    "floors": {
        "linear layer": dict(zip(GAMMAS, LINEAR, strict=True)),
        "total variation": dict(zip(GAMMAS, TOTAL, strict=True)),
    },
    "floor_shares": {"linear layer": 1.0, "total variation": 0.25},
}


@pytest.fixture
def settings(make_run):
    """Runs of both methods, one of them evaluated before there were floors."""
    return group(read_runs([make_run("erm"), make_run("constrained", evaluation=FLOORS)]))


def test_the_figure_draws_every_floor_dashed(settings):
    (axes,) = score_curve(settings).axes
    lines = {line.get_label(): line for line in axes.lines}
    for name, scores in (("linear layer", LINEAR), ("total variation", TOTAL)):
        np.testing.assert_allclose(np.asarray(lines[name].get_ydata(), float), scores)
        assert lines[name].get_linestyle() == "--"
    assert len({line.get_color() for line in lines.values()}) == len(lines)


def test_the_table_has_the_floors_beside_the_noisy_input(settings):
    table = score_table(settings[0])
    assert table.header == ("test gamma", "noisy input", "linear layer", "total variation", "plain", "constrained")
    assert [row[2:4] for row in table.rows] == [(f"{a:.2f}", f"{b:.2f}") for a, b in zip(LINEAR, TOTAL, strict=True)]
    assert "linear layer: least squares on a frame's patch and the temporal mean" in table.note
    assert "told the variance of each noise (of 25% of the test pixels)." in table.note


def test_the_words_judge_models_by_the_floors(settings):
    plain, constrained = (one.scores()[0, 2] for one in settings[0].variants)
    assert 15.0 < plain < 18.0 < constrained
    words = "RMSE linear layer 18.0 (better: plain); total variation 15.0 (no model here is better)."
    assert f"Without a network, at gamma 0.15: {words}" in compare(settings[0])
    assert floor(settings[0]).endswith("of the noisy input itself; 18.0 of linear layer; 15.0 of total variation.")


def test_the_summary_holds_the_floors(settings):
    summary = summarise(settings, settings[0].variants[0].runs)
    assert (summary["floors"], summary["floor_shares"]) == (FLOORS["floors"], FLOORS["floor_shares"])


def test_without_floors_nothing_is_said_of_them(make_run):
    (setting,) = group(read_runs([make_run("erm")]))
    assert setting.floors() == {}
    assert "Without a network" not in compare(setting)
    assert score_table(setting).header == ("test gamma", "noisy input", "plain")


@pytest.mark.usefixtures("without_drawing")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"floors": {"linear layer": {"0.15": 3.0}}}, "the floor 'linear layer' must hold the test gammas of rmse"),
        ({"floors": [1.0]}, "is damaged"),
        ({"floors": {"linear layer": dict.fromkeys(GAMMAS, "low")}}, "could not convert"),
        ({"floor_shares": {}}, "missing 'linear layer'"),
    ],
)
def test_floors_of_the_wrong_form_are_named(make_run, tmp_path, changes, words):
    with pytest.raises(UserError, match=r"evaluation\.json is damaged") as caught:
        write(video, [make_run(evaluation=FLOORS | changes)], tmp_path / "out", log=lambda _: None)
    assert words in str(caught.value)


def test_the_axis_ends_above_what_cleans_the_input_and_not_at_the_input(make_run):
    (setting,) = group(read_runs([make_run("erm", evaluation={"rmse": dict.fromkeys(GAMMAS, 9.0)})]))
    (axes,) = score_curve([setting]).axes
    assert axes.get_ylim() == (0.0, pytest.approx(1.3 * 9.0))
