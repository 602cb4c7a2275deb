"""The page is self-contained, the summary strict JSON, and the verdict agrees with the tables."""

import base64
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy import stats

from tests.report.conftest import GAMMAS, RMSE, write_run
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.report import write
from unroll_jax.train.report.groups import group
from unroll_jax.train.report.layered import layered_report, verdict, warnings
from unroll_jax.train.report.page import write_files
from unroll_jax.train.report.records import METHODS, check_layered, read_runs
from unroll_jax.train.report.tables import comparison_table, differences, disturbed_table, layers_table, score_table

FIGURES = {"layer_losses", "multipliers", "score_curve", "ratios"}
FLOORS = {
    "floors": {"linear layer": dict.fromkeys(GAMMAS, 18.0), "total variation": dict.fromkeys(GAMMAS, 15.0)},
    "floor_shares": {"linear layer": 1.0, "total variation": 0.25},
}


class Page(HTMLParser):
    """Collects tags, attributes and the visible text; checks that tags close in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words, self.open = [], [], [], []
        self.feed(text)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)


def reported(folders):
    return layered_report(read_runs(folders))


def grouped(folders):
    return group(check_layered(read_runs(folders)))


def rmse(values):
    return {"rmse": dict(zip(GAMMAS, values, strict=True))}


def test_the_page_holds_figures_tables_and_warnings_and_nothing_from_elsewhere(tmp_path):
    status = {"messages": ["multipliers wind up <at layer 2>; see /home/somebody/runs/x"]}
    runs = [write_run(tmp_path / method, method, 3, 0, 60, status=status) for method in ("erm", "constrained")]
    lines, out = [], tmp_path / "a" / "out"
    summary = write(reported(runs), out, log=lines.append)
    assert {path.name for path in out.iterdir()} == {*(f"{name}.png" for name in FIGURES), "index.html", "summary.json"}
    text = (out / "index.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert not re.search(r"https?:|url\(|@import|\$\w", text)
    sources = [value for _, name, value in page.attributes if name in ("src", "href", "srcset")]
    pictures = {path.read_bytes() for path in out.glob("*.png")}
    assert {base64.b64decode(one.removeprefix("data:image/png;base64,")) for one in sources} == pictures
    assert len([value for tag, name, value in page.attributes if (tag, name) == ("img", "alt") and value]) == 4
    assert page.text.startswith("video-ut: plain against constrained training")
    named = ("multipliers wind up <at layer 2>", "mult. x viol.")
    for words in (*named, *summary["verdict"]["3 layers, training gamma 0.15"]):
        assert words in page.text
    assert json.loads((out / "summary.json").read_text()) == summary
    assert "/home/somebody" not in text
    assert str(tmp_path) not in text + json.dumps(summary)
    assert "One seed each" in "\n".join(lines)
    assert "smallest to largest seed" not in page.text, "there is one seed"


@pytest.mark.usefixtures("without_drawing")
def test_the_summary_of_one_pair_holds_the_figures_of_its_runs(make_run):
    folders = [make_run("erm"), make_run("deep_supervision"), make_run("constrained", evaluation=FLOORS)]
    summary = reported(folders).summary
    evaluations = [json.loads((folder / "evaluation.json").read_text()) for folder in folders]
    assert (summary["experiment"], summary["train_gamma"], summary["num_layers"]) == ("video-ut", 0.15, 3)
    assert summary["floors"].pop("noisy input") == pytest.approx(evaluations[0]["noisy_rmse"])
    assert summary["floors"] == FLOORS["floors"]
    for method, evaluation in zip(METHODS, evaluations, strict=True):
        entry = summary["methods"][method]
        for key in ("rmse", "layer_losses", "bounds", "violations", "feasible", "train_seconds"):
            assert entry[key] == evaluation[key], key
    assert summary["methods"]["constrained"]["monotone"]
    assert not summary["methods"]["erm"]["monotone"]


@pytest.mark.usefixtures("without_drawing")
def test_numbers_that_are_not_finite_are_null(make_run, tmp_path):
    nothing = {"layer_losses": [4.7, None, None, 0.6], "rmse": dict.fromkeys(GAMMAS)}
    write_files(tmp_path / "out", reported([make_run("erm", evaluation=nothing), make_run("constrained")]))

    def refuse(constant):
        raise AssertionError(f"bare {constant}")

    summary = json.loads((tmp_path / "out" / "summary.json").read_text(), parse_constant=refuse)
    assert summary["methods"]["erm"]["layer_losses"] == [4.7, None, None, 0.6]
    assert summary["methods"]["erm"]["rmse"]["0.15"] is None


def test_a_report_survives_runs_without_metrics_and_figures_without_numbers(make_run, monkeypatch, tmp_path):
    monkeypatch.setattr("unroll_jax.train.report.page.DPI", 40)
    nothing = {"layer_losses": [None] * 4, "bounds": [None] * 4, "rmse": dict.fromkeys(["0.0", "0.15"])}
    folder = make_run("constrained", steps=0, evaluation=nothing | {"noisy_rmse": {"0.0": 0.0, "0.15": 48.8}})
    write_files(tmp_path / "out", reported([folder]))
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == {"score_curve", "layer_losses", "ratios"}


@pytest.mark.usefixtures("without_drawing")
def test_aggregates_over_seeds_equal_numpy(make_run):
    folders = [make_run(method, seed=seed) for seed in range(3) for method in ("erm", "constrained")]
    report = reported(folders)
    evaluations = [json.loads((folder / "evaluation.json").read_text()) for folder in folders]
    for method in ("erm", "constrained"):
        members = [one for one in evaluations if one["method"] == method]
        entry = report.summary["methods"][method]
        scores = np.array([[member["rmse"][gamma] for gamma in GAMMAS] for member in members])
        for key, reduce in (("rmse", np.mean), ("rmse_min", np.min), ("rmse_max", np.max)):
            np.testing.assert_allclose(list(entry[key].values()), reduce(scores, axis=0), rtol=1e-12)
        for key in ("layer_losses", "bounds", "multipliers", "descend_share", "train_seconds", "share_descending"):
            np.testing.assert_allclose(entry[key], np.mean([member[key] for member in members], axis=0), rtol=1e-12)
        margins = [1 - np.array(member["layer_losses"]) / member["bounds"] for member in members]
        np.testing.assert_allclose(entry["worst_margin"], np.min(margins), rtol=1e-9)
        assert entry["seeds"] == [0, 1, 2]
    (row,) = [row for row in report.tables[0].rows if row[0] == "0.15 *"]
    assert row[-1] == f"{scores[:, 2].mean():.2f} [{scores[:, 2].min():.2f}, {scores[:, 2].max():.2f}]"
    (mean,) = [row for row in report.tables[0].rows if row[0] == "mean"]
    assert mean[-1].startswith(f"{scores.mean():.2f} [")
    assert "Means are over 3 seeds" in report.verdict[-1]


def test_differences_are_paired_by_seed_with_the_interval_of_a_paired_t_test(make_run):
    generator = np.random.default_rng(0)
    scores = {name: np.array(RMSE[name]) * generator.uniform(0.9, 1.1, (3, 6)) for name in METHODS}
    folders = [
        make_run(name, seed=seed, evaluation=rmse(scores[name][seed].tolist())) for name in METHODS for seed in range(3)
    ]
    (setting,) = grouped(folders[::-1])
    (table,) = comparison_table([setting])
    assert [row[1:4] for row in table.rows] == [("constrained", other, "3") for other in ("plain", "deep supervision")]
    ratios = 100 * (scores["constrained"] / scores["erm"] - 1)
    columns = ratios[:, 2], ratios[:, 3:].mean(axis=1), ratios[:, 5]
    for cell, values in zip(table.rows[0][4:], columns, strict=True):
        low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
        assert cell == f"{values.mean():+.1f} [{low:+.1f}, {high:+.1f}]"
    sentence = verdict(setting)[1]
    assert f"against plain {ratios[:, 2].mean():+.1f}%, {columns[1].mean():+.1f}% under stronger noise" in sentence
    shared = grouped([*folders[1:3], *folders[6:8]])
    assert [len(differences(shared[0], *pair)) for pair in shared[0].pairs()] == [1]
    assert comparison_table(grouped([folders[0], folders[7]])) == []


@pytest.mark.parametrize(("factor", "best"), [(0.8, "constrained"), (1.25, "plain")])
def test_the_verdict_names_the_best_method_feasibility_layers_floors_and_the_seeds(make_run, factor, best):
    plain = np.array([9.0, 14.0, 17.5, 22.0, 32.0, 46.0])
    layers = {"layer_losses": [4.7, 3.0, 2.9, 0.7], "bounds": [5.5, 3.67, 2.34, 2.26], "feasible": False}
    ours = rmse((factor * plain).tolist()) | layers | FLOORS
    folders = [make_run("erm", evaluation=rmse(plain.tolist()) | {"layer_losses": [4.7, 13.7, 2.9, 0.6]})]
    sentences = verdict(grouped([*folders, make_run("constrained", evaluation=ours)])[0])
    assert 3 <= len(sentences) <= 5
    assert f"3 layers, training gamma 0.15: RMSE at the training noise (gamma 0.15), best first: {best}" in sentences[0]
    assert f"{100 * (factor - 1):+.1f}%" in sentences[1]
    assert "NOT feasible (layer 2 is 23.9% over its bound)" in sentences[2]
    judged = "the best model is better than each" if factor < 1 else "no model is better than total variation"
    assert f"noisy input 48.80, linear layer 18.00, total variation 15.00; {judged}." in sentences[3]
    assert sentences[4].startswith("One seed each")


def test_feasible_means_every_seed(make_run):
    folders = [make_run("constrained", seed=seed, evaluation={"feasible": seed == 0}) for seed in (0, 1)]
    (setting,) = grouped(folders)
    assert "NOT feasible for 1 of 2 seeds" in " ".join(verdict(setting))
    assert "1 of 2 runs feasible" in layers_table(setting, setting.variants[0]).note


def test_what_weakens_a_comparison_is_listed(make_run):
    stopped = {"state": "stopped", "steps": 40}
    usual = {"primal": {"learning_rate": 0.1}, "constraints": {"alpha": 0.5}}
    folders = [make_run("erm", seed=1, config={"primal": {"learning_rate": 0.001}})]
    listed = " ".join(warnings(grouped([*folders, make_run("constrained", status=stopped, config=usual)])))
    assert "constrained-L3-s0 is not finished (state: stopped, 40 steps)." in listed
    assert "differ in steps (40, 60), seeds, primal.learning_rate." in listed
    assert "alpha" not in listed
    bounds = {"constraints": {"alpha": 0.5}, "dual": {"learning_rate": 0.3}, "mesh": "data=2"}
    assert warnings(grouped([make_run("erm"), make_run("constrained", name="bounds", config=bounds)])) == []


def test_the_score_table_has_floors_and_disturbances_have_their_own(make_run):
    disturbed = {"lost_layer_rmse": {"1": 20.0, "2": 30.0}, "disturbed_rmse": {"blur=1": 9.5}}
    (setting,) = grouped([make_run("erm", evaluation=disturbed), make_run("constrained", evaluation=FLOORS)])
    table = score_table(setting)
    assert table.header == ("test gamma", "noisy input", "linear layer", "total variation", "plain", "constrained")
    assert {row[2:4] for row in table.rows} == {("18.00", "15.00")}
    assert "total variation is of 25% of the test split." in table.note
    (other,) = disturbed_table(setting)
    assert {row[0]: row[1:] for row in other.rows} == {
        "one layer lost, mean": ("25.00", "-"),
        "one layer lost, worst": ("30.00", "-"),
        "blur=1": ("9.50", "-"),
    }


def test_an_output_that_is_a_file_is_named(make_run, tmp_path, without_drawing):
    (tmp_path / "out").write_text("")
    with pytest.raises(UserError, match="cannot write the report"):
        write_files(tmp_path / "out", reported([make_run()]))


def test_the_training_loop_does_not_import_matplotlib():
    check = "import sys, unroll_jax.train.loop; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False, timeout=120).returncode == 0
