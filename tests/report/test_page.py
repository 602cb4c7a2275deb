"""The page is self-contained, the summary strict JSON, and the verdict agrees with
the tables."""

import base64
import html
import json
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from tests.report.conftest import GAMMAS, grouped
from unroll_jax.constrained import column_sums, held_out_report, level_constraints
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.report import layered_report, write
from unroll_jax.train.report.page import Report, write_files
from unroll_jax.train.report.records import read_runs
from unroll_jax.train.report.tables import (
    comparison,
    constraints,
    differences,
    disturbed,
    layers,
    make_tables,
    scores,
)
from unroll_jax.train.report.words import verdict, warnings

FIGURES = {"layer_losses", "multipliers", "violations", "score_curve", "ratios"}
FLOORS = {
    "floors": {
        "linear layer": dict.fromkeys(GAMMAS, 18.0),
        "total variation": dict.fromkeys(GAMMAS, 15.0),
    }
}


METHODS = ("plain", "constrained")
# By method and seed, at each gamma.
SCORES = {
    (method, seed): [(10 + n) * (1 + 0.1 * seed**power) for n in range(6)]
    for seed in range(3)
    for power, method in enumerate(METHODS)
}


def reported(folders):
    return layered_report(read_runs(folders))


def rmse(values):
    return {"rmse": dict(zip(GAMMAS, values, strict=True))}


@pytest.fixture
def coarse(monkeypatch):
    """Pictures of few pixels, drawn in a tenth of the time."""
    monkeypatch.setattr("unroll_jax.train.report.page.DPI", 30)


def test_every_constrained_run_has_the_report_of_the_library(make_run):
    stated = level_constraints(1.0, num_layers=12)
    sums = column_sums(stated, np.arange(13.0), None)
    made = held_out_report(stated, sums, dict.fromkeys(stated, 0.5))
    lines = {"constraint_report": str(made).splitlines()}
    folders = [make_run(method, evaluation=lines) for method in METHODS]
    (table,) = make_tables(constraints, grouped(folders))
    assert table.header[:3] == ("constraint", "kind", "status")
    assert [row[0] for row in table.rows] == list(stated)
    assert table.note == made.verdict


@pytest.mark.usefixtures("coarse")
def test_the_page_holds_figures_and_warnings_and_nothing_from_elsewhere(
    make_run, tmp_path
):
    status = {"messages": ["wind up <at layer 2>; see /home/somebody/runs/x"]}
    out = tmp_path / "a" / "out"
    report = reported([make_run(method, status=status) for method in METHODS])
    summary = write(report, out, log=lambda line: None)
    pictures = {path.stem: path.read_bytes() for path in out.glob("*.png")}
    assert set(pictures) == FIGURES
    text = (out / "index.html").read_text(encoding="utf-8")
    fetched = r"<(script|link|iframe|object)|https?:|url\(|@import"
    assert not re.search(fetched, text)
    sources = re.findall(r'(?:src|href|srcset)="data:image/png;base64,([^"]*)"', text)
    assert {base64.b64decode(one) for one in sources} == {*pictures.values()}
    assert "<at layer 2>" not in text
    shown = html.unescape(text)
    words = "wind up <at layer 2>", *summary["verdict"]
    assert [one for one in words if one not in shown] == []
    assert json.loads((out / "summary.json").read_text()) == summary
    assert "/home/somebody" not in text
    assert str(tmp_path) not in text + json.dumps(summary)


@pytest.mark.usefixtures("without_drawing")
def test_numbers_that_are_not_finite_are_null(make_run, tmp_path):
    nothing = {"layer_losses": [4.7, None, None, 0.6], "rmse": dict.fromkeys(GAMMAS)}
    folders = [make_run("plain", evaluation=nothing), make_run("constrained")]
    write_files(tmp_path, reported(folders))
    text = (tmp_path / "summary.json").read_text()
    summary = json.loads(text, parse_constant=pytest.fail)
    run = summary["runs"][0]
    assert run["layer_losses"] == [4.7, None, None, 0.6]
    assert run["rmse"]["0.15"] is None
    table = next(table for table in summary["tables"] if "loss" in table["header"])
    assert [row[1] for row in table["rows"]] == ["4.700", "-", "-", "0.600"]


@pytest.mark.usefixtures("coarse")
def test_a_report_survives_runs_without_metrics_and_figures_without_numbers(
    make_run, tmp_path
):
    nothing = {
        "layer_losses": [None] * 4,
        "bounds": [None] * 4,
        "rmse": dict.fromkeys(["0.0", "0.15"]),
    }
    nothing["noisy_rmse"] = {"0.0": 0.0, "0.15": 48.8}
    folder = make_run("constrained", steps=0, evaluation=nothing)
    write_files(tmp_path, reported([folder]))
    drawn = {path.stem for path in tmp_path.glob("*.png")}
    assert drawn == {"score_curve", "layer_losses", "ratios"}


def test_a_report_replaces_only_files_of_a_report(tmp_path):
    report = Report("one", [])
    for _ in range(2):
        write(report, tmp_path / "new", log=lambda _: None)
    page = tmp_path / "index.html"
    page.write_text("mine")
    with pytest.raises(UserError, match="files of something else"):
        write(report, tmp_path)
    assert page.read_text() == "mine"


@pytest.mark.usefixtures("without_drawing")
def test_aggregates_over_seeds_equal_numpy(make_run):
    folders = [
        make_run(method, seed=seed, evaluation=FLOORS | rmse(SCORES[method, seed]))
        for method, seed in SCORES
    ]
    report = reported(folders)
    assert report.title == "video-ut: plain against constrained training"
    (setting,) = grouped(folders)
    (of_scores,) = make_tables(scores, [setting])
    assert of_scores.header[1:4] == ("noisy input", "linear layer", "total variation")
    plain, constrained = np.array([*SCORES.values()]).reshape(3, 2, 6).swapaxes(0, 1)
    for method, values in zip(METHODS, (plain, constrained), strict=True):
        column = of_scores.header.index(method)
        shown = [
            f"{np.mean(each):.2f} [{min(each):.2f}, {max(each):.2f}]"
            for each in values.T
        ]
        assert [row[column] for row in of_scores.rows[:6]] == shown

    gaps = differences(setting, *setting.pairs()[0])
    ratios = constrained[:, 5] / plain[:, 5]
    assert_allclose(gaps[:, 2], 100 * (ratios - 1))
    (table,) = make_tables(comparison, [setting])
    low, high = stats.ttest_1samp(gaps[:, 2], 0.0).confidence_interval(0.95)
    assert f"[{low:+.1f}, {high:+.1f}]" in table.rows[0][-1]
    # plain runs of seeds 0 and 2, constrained ones of 1 and 2
    (unlike,) = grouped([folders[place] for place in (0, 4, 3, 5)])
    paired = differences(unlike, *unlike.pairs()[0])
    assert_allclose(paired, gaps[2:])


def test_layers_and_disturbances_have_tables(make_run):
    others = {"lost_layer_rmse": {"1": 20.0, "2": 30.0}, "disturbed_rmse": {"b": 9.5}}
    losses = [4.7, 3.0, 2.0, 0.7]
    shares = {"layer_losses": losses, "descend_share": [0.25, 0.5, 1.0]}
    (setting,) = grouped([make_run("plain", evaluation=others | shares)])
    (table,) = make_tables(layers, [setting])
    cells = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    assert [row["loss"] for row in cells] == [f"{loss:.3f}" for loss in losses]
    assert [row["descends %"] for row in cells] == ["-", "25.0", "50.0", "100.0"]
    (table,) = make_tables(disturbed, [setting])
    assert [row[-1] for row in table.rows] == ["25", "30", "9.5"]


@pytest.mark.parametrize(("score", "best"), [(14.0, "constrained"), (21.0, "plain")])
def test_the_verdict_names_the_best_method_and_feasibility(make_run, score, best):
    layers = {
        "layer_losses": [4.7, 3.0, 2.9, 0.7],
        "bounds": [5.5, 3.67, 2.34, 2.26],
        "feasible": False,
        "constraint_report": ["", "Violated: f_0 by 25.00%. Binding: layer 1."],
    }
    ours = make_run("constrained", evaluation=layers | rmse([score] * 6))
    (setting,) = grouped([make_run("plain", evaluation=rmse([17.5] * 6)), ours])
    sentence = verdict(setting)
    assert sentence.startswith(
        f"3 layers, training gamma 0.15: RMSE at gamma 0.15, best first: {best}"
    )
    assert (
        f"constrained {score:.2f} (NOT feasible on the test split: 0 of 1 runs,"
        " violated: f_0 (the loss of the input) by 25.00%" in sentence
    )
    # no plain run shows what is in reach
    assert "Constrained: not all bounds are met: train" in warnings(grouped([ours]))[0]


def test_a_verdict_on_a_run_that_trains_is_not_final(make_run):
    running = make_run("constrained", status={"state": "running"})
    (setting,) = grouped([make_run("plain"), running])
    sentence = verdict(setting)
    assert re.search(r"constrained [\d.]+ \([^)]*not final", sentence)
    assert sentence.count("not final") == 1


def test_what_weakens_a_comparison_is_listed(make_run):
    stopped = {"state": "interrupted", "steps": 40}
    usual = {"primal": {"learning_rate": 0.1}, "constraints": {"alpha": 0.5}}
    plain = make_run("plain", seed=1, config={"primal": {"learning_rate": 0.001}})
    enforced = make_run("constrained", status=stopped, config=usual)
    listed = " ".join(warnings(grouped([plain, enforced])))
    assert "onstrained-L3-s0 is not finished (state: interrupted, 40 steps)" in listed
    assert "differ in steps, seeds, primal.learning_rate." in listed
    assert "alpha" not in listed, "options of bounds are of one method only"


@pytest.mark.usefixtures("without_drawing")
@pytest.mark.parametrize(
    ("task", "trained", "loss", "overfits"),
    [
        ("video", 0.7, 0.7, False),
        ("video", 0.7, 1.4, True),
        ("text-encoder", 0.3, 0.7, True),
        ("text-encoder", 0.01, 0.02, False),  # 99% are right
    ],
)
def test_a_loss_far_above_that_of_training_is_a_warning(
    make_run, task, trained, loss, overfits
):
    losses = [4.7, 3.0, 2.0, trained]
    evaluation = {"layer_losses": losses, "accuracy": dict.fromkeys(GAMMAS, 0.9)}
    folder = make_run("plain", config={"task": task}, evaluation=evaluation)
    path = folder / "evaluation.json"
    evaluated = path.read_text().replace(f"{losses}", f"{[*losses[:-1], loss]}")
    path.write_text(evaluated)
    lines = reported([folder]).warnings
    assert [line.partition(":")[0] for line in lines] == ["Plain overfits"] * overfits
