"""The page is self-contained, the summary strict JSON, and the verdict agrees with
the tables."""

import base64
import errno
import html
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from tests.report.conftest import GAMMAS, grouped
from unroll_jax.constrained import column_sums, held_out_report, level_constraints
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.report import layered_report, make_report, write
from unroll_jax.train.report.page import Picture, Report, write_files
from unroll_jax.train.report.records import read_runs
from unroll_jax.train.report.tables import (
    comparison,
    constraints,
    differences,
    disturbed,
    make_tables,
    scores,
)
from unroll_jax.train.report.words import verdict, warnings
from unroll_jax.train.tasks.video.options import VideoConfig

FIGURES = {"layer_losses", "multipliers", "violations", "score_curve", "ratios"}
FLOORS = {
    "floors": {
        "linear layer": dict.fromkeys(GAMMAS, 18.0),
        "total variation": dict.fromkeys(GAMMAS, 15.0),
    }
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
    methods = ("plain", "constrained")
    folders = [make_run(method, evaluation=lines) for method in methods]
    (table,) = make_tables(constraints, grouped(folders))
    assert table.header[:3] == ("constraint", "kind", "status")
    assert [row[0] for row in table.rows] == list(stated)
    assert table.note == made.verdict


@pytest.mark.usefixtures("coarse")
def test_the_page_holds_figures_tables_and_warnings_and_nothing_from_elsewhere(
    make_run, tmp_path
):
    status = {
        "messages": ["multipliers wind up <at layer 2>; see /home/somebody/runs/x"]
    }
    lines, out = [], tmp_path / "a" / "out"
    report = reported(
        [make_run(method, status=status) for method in ("plain", "constrained")]
    )
    summary = write(report, out, log=lines.append)
    (verdict_of_both,) = summary["verdict"]
    assert {path.name for path in out.iterdir()} == {
        *(f"{name}.png" for name in FIGURES),
        "index.html",
        "summary.json",
    }
    text = (out / "index.html").read_text(encoding="utf-8")
    assert not re.search(
        r"<(script|link|iframe|object)|https?:|url\(|@import|\$\w", text
    )
    sources = re.findall(r'(?:src|href|srcset)="([^"]*)"', text)
    pictures = {path.read_bytes() for path in out.glob("*.png")}
    assert {
        base64.b64decode(one.removeprefix("data:image/png;base64,")) for one in sources
    } == pictures
    assert "<at layer 2>" not in text
    for words in (
        "video-ut: plain against constrained training",
        "multipliers wind up <at layer 2>",
        verdict_of_both,
    ):
        assert words in html.unescape(text)
    assert json.loads((out / "summary.json").read_text()) == summary
    assert "/home/somebody" not in text
    assert str(tmp_path) not in text + json.dumps(summary)
    assert verdict_of_both in lines


@pytest.mark.usefixtures("without_drawing")
def test_numbers_that_are_not_finite_are_null(make_run, tmp_path):
    nothing = {"layer_losses": [4.7, None, None, 0.6], "rmse": dict.fromkeys(GAMMAS)}
    write_files(
        tmp_path / "out",
        reported([make_run("plain", evaluation=nothing), make_run("constrained")]),
    )
    summary = json.loads(
        (tmp_path / "out" / "summary.json").read_text(), parse_constant=pytest.fail
    )
    assert summary["runs"][0]["layer_losses"] == [4.7, None, None, 0.6]
    assert summary["runs"][0]["rmse"]["0.15"] is None
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
    folder = make_run(
        "constrained",
        steps=0,
        evaluation=nothing | {"noisy_rmse": {"0.0": 0.0, "0.15": 48.8}},
    )
    write_files(tmp_path / "out", reported([folder]))
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == {
        "score_curve",
        "layer_losses",
        "ratios",
    }


def test_a_report_replaces_no_other_files_than_those_of_a_report(tmp_path):
    report = Report("one", [])
    for _ in range(2):
        write(report, tmp_path / "new", log=lambda _: None)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("mine")
    with pytest.raises(UserError, match="files of something else"):
        write(report, tmp_path / "site")
    assert (tmp_path / "site" / "index.html").read_text() == "mine"


def test_a_report_is_written_whole_or_not_at_all(monkeypatch, tmp_path):
    out, write, picture = (
        tmp_path / "out",
        Path.write_bytes,
        Picture("dot", "A dot.", Figure(figsize=(0.1, 0.1))),
    )
    one, two = (Report(title, [("", [picture])]) for title in ("one", "two"))
    write_files(out, one)
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def full(path, content):  # the disk is full once the pictures are there
        if "summary" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    for folder in (out, tmp_path / "new" / "out"):
        with pytest.raises(OSError, match="No space left"):
            write_files(folder, two)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("without_drawing")
def test_aggregates_over_seeds_equal_numpy(make_run):
    folders = [
        make_run(
            method,
            seed=seed,
            evaluation=FLOORS
            | rmse([(10 + n) * (1 + 0.1 * seed**power) for n in range(6)]),
        )
        for seed in range(3)
        for power, method in enumerate(("plain", "constrained"))
    ]
    (setting,) = grouped(folders)
    evaluations = [
        json.loads((folder / "evaluation.json").read_text()) for folder in folders
    ]
    report = reported(folders)
    assert report.title == "video-ut: plain against constrained training"
    by_title = {table.title.partition(",")[0]: table for table in report.tables}
    of_scores = by_title["RMSE against test gamma (variance / data std)"]
    assert of_scores.header[1:4] == ("noisy input", "linear layer", "total variation")
    for method in ("plain", "constrained"):
        members = [one for one in evaluations if one["method"] == method]
        column = of_scores.header.index(method)
        for row, gamma in zip(of_scores.rows, GAMMAS, strict=False):
            values = [member["rmse"][gamma] for member in members]
            shown = f"{np.mean(values):.2f} [{min(values):.2f}, {max(values):.2f}]"
            assert row[column] == shown
        tables = [table for table in report.tables if f"split, {method}" in table.title]
        header = tables[0].header
        for key, title, digits in (
            ("layer_losses", "loss", 3),
            ("bounds", "bound", 3),
            ("multipliers", "multiplier", 3),
        ):
            means = np.mean([member[key] for member in members], axis=0)
            shown = [f"{mean:.{digits}f}" for mean in means]
            if means.any():
                assert [row[header.index(title)] for row in tables[0].rows] == shown
            else:
                assert title not in header
        count = sum(member["feasible"] for member in members)
        assert tables[0].note.startswith(f"{count} of 3 runs feasible")
    gaps = differences(setting, *setting.pairs()[0])
    largest = {
        method: [one["rmse"]["0.5"] for one in evaluations if one["method"] == method]
        for method in ("plain", "constrained")
    }
    ratios = np.array(largest["constrained"]) / np.array(largest["plain"])
    np.testing.assert_allclose(gaps[:, 2], 100 * (ratios - 1))
    (table,) = make_tables(comparison, [setting])
    low, high = stats.ttest_1samp(gaps[:, 2], 0.0).confidence_interval(0.95)
    assert f"[{low:+.1f}, {high:+.1f}]" in table.rows[0][-1]
    shared = grouped([*folders[:2], folders[5]])
    assert [len(differences(shared[0], *pair)) for pair in shared[0].pairs()] == [1]


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


PLAIN = {"layer_losses": [4.7, 13.0, 10.0, 0.6]}
FALLING = {
    "layer_losses": [4.7, 2.6, 10.1, 0.66],
    "bounds": [5.5, 3.67, 11.0, 7.9],
    "feasible": True,
}


@pytest.mark.usefixtures("without_drawing")
@pytest.mark.parametrize(
    ("plain", "ours", "rises"),
    [
        (None, 4.0, []),
        (4.0, 4.0, []),
        (4.0, 30.0, ["Constrained: f_0 rose from 4 to 30"]),
        (30.0, 30.0, []),
    ],
)
def test_f_0_rises_above_the_plain_run_not_above_the_first_batch(
    make_run, plain, ours, rises
):
    """f_0 is 2 in training, and as given on the test split."""
    runs = (
        {"constrained": ours}
        if plain is None
        else {"plain": plain, "constrained": ours}
    )
    folders = [
        make_run(
            method,
            evaluation=FALLING
            | {"multipliers": [0.0] * 4, "layer_losses": [loss, 2.6, 10.1, 0.66]},
        )
        for method, loss in runs.items()
    ]
    for folder in folders:
        path = folder / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            row["layer_losses"][0] = 2.0
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [
        line.partition(": a layer")[0] for line in reported(folders).warnings
    ] == rises


def test_what_weakens_a_comparison_is_listed(make_run):
    stopped = {"state": "interrupted", "steps": 40}
    usual = {"primal": {"learning_rate": 0.1}, "constraints": {"alpha": 0.5}}
    folders = [make_run("plain", seed=1, config={"primal": {"learning_rate": 0.001}})]
    listed = " ".join(
        warnings(
            grouped([*folders, make_run("constrained", status=stopped, config=usual)])
        )
    )
    assert "onstrained-L3-s0 is not finished (state: interrupted, 40 steps)" in listed
    assert "differ in steps, seeds, primal.learning_rate." in listed
    assert "alpha" not in listed
    bounds = {
        "constraints": {"alpha": 0.5},
        "dual": {"learning_rate": 0.3},
        "mesh": "data=2",
    }
    assert (
        warnings(
            grouped(
                [
                    make_run("plain"),
                    make_run("constrained", name="bounds", config=bounds),
                ]
            )
        )
        == []
    )


@pytest.mark.usefixtures("without_drawing")
def test_a_run_that_trains_is_not_final_and_names_its_checkpoint(make_run):
    running = {"state": "running", "steps": 60}
    folder = make_run(status=running, evaluation={"best_step": 4})
    report = reported([make_run("plain"), folder])
    assert "not final" in report.verdict[0].partition("constrained")[2]
    assert "not final" not in report.verdict[0].partition("constrained")[0]
    (line,) = report.warnings
    assert "60 steps): its figures are of the checkpoint of step 4." in line


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
    assert all(f"{loss} on the test split" in line for line in lines)


@pytest.mark.usefixtures("without_drawing")
def test_files_and_reports_are_passed_over(make_run, tmp_path, monkeypatch):
    read = "unroll_jax.train.report.read_config"
    monkeypatch.setattr(read, lambda folder: ("", VideoConfig()))
    (tmp_path / "runs" / "report").mkdir(parents=True)
    for name in ("table.csv", "report/summary.json"):
        (tmp_path / "runs" / name).write_text("")
    make_run("plain")
    said = []
    report = make_report(sorted((tmp_path / "runs").glob("*")), log=said.append)
    assert [run.name for run in report.runs] == ["plain-L3-s0"]
    assert report.runs[0].config["ema"] is None, "a default that its version lacked"
    assert all(f"runs/{name}" in said[0] for name in ("table.csv", "report"))


def test_the_score_table_has_floors_and_disturbances_have_their_own(make_run):
    others = {
        "lost_layer_rmse": {"1": 20.0, "2": 30.0},
        "disturbed_rmse": {"blur=1": 9.5},
    }
    (setting,) = grouped(
        [
            make_run("plain", evaluation=others | FLOORS),
            make_run("constrained", evaluation=FLOORS),
        ]
    )
    (table,) = make_tables(scores, [setting])
    assert table.header == (
        "test gamma",
        "noisy input",
        "linear layer",
        "total variation",
        "plain",
        "constrained",
    )
    assert {row[2:4] for row in table.rows} == {("18.00", "15.00")}
    (other,) = make_tables(disturbed, [setting])
    assert {row[0]: row[1:] for row in other.rows} == {
        "one layer lost, mean": ("-", "25", "-"),
        "one layer lost, worst": ("-", "30", "-"),
        "blur=1": ("-", "9.5", "-"),
    }
