"""The page is self-contained and the figures show what they should."""

import base64
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from matplotlib.patches import StepPatch

from tests.report.conftest import write_run
from unroll_jax.train.report import write
from unroll_jax.train.report.constrained import video
from unroll_jax.train.report.figures import layer_losses, multipliers, ratios, score_curve, training_loss
from unroll_jax.train.report.groups import group
from unroll_jax.train.report.panels import COLOURS
from unroll_jax.train.report.read import read_runs
from unroll_jax.train.report.tables import feasibility_table
from unroll_jax.train.report.words import state_words
from unroll_jax.train.system.machine import environment

METHODS = ("erm", "constrained")

FIGURES = ["layer_losses", "multipliers", "ood_curve", "ratios", "training_loss"]


class _Page(HTMLParser):
    """Collects tags, their attributes, and the visible text; checks that tags close in order."""

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


def _settings(make_run, *, layers=(3,), seeds=(0,)):
    return group(read_runs([make_run(m, num_layers=n, seed=s) for n in layers for s in seeds for m in METHODS]))


def _lines(axes):
    return {line.get_label(): line for line in axes.lines}


def _heights(line):
    return np.asarray(line.get_ydata(), float)


def _steps(axes):
    return [patch.get_data() for patch in axes.patches if isinstance(patch, StepPatch)]


class Reported(NamedTuple):
    """A report on one run of each method, its figures drawn; one run was warned, on another machine."""

    root: Path
    out: Path
    text: str
    page: _Page
    log: str


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    root, lines = tmp_path_factory.mktemp("reported"), []
    status = {"environment": {"python": "3.11.0", "accelerator": "1 x Example Accelerator"}}
    status["messages"] = ["multipliers wind up <at layer 2>; see /home/somebody/runs/x"]
    runs = [
        write_run(root / "erm", "erm", 3, 0, 60),
        write_run(root / "constrained", "constrained", 3, 0, 60, status=status),
    ]
    write(video, runs, root / "a" / "out", log=lines.append)
    text = (root / "a" / "out" / "index.html").read_text(encoding="utf-8")
    return Reported(root, root / "a" / "out", text, _Page(text), "\n".join(lines))


def test_report_writes_figures_page_and_summary(reported):
    files = sorted(path.name for path in reported.out.iterdir())
    assert files == sorted([*(f"{name}.png" for name in FIGURES), "index.html", "summary.json"])


def test_page_holds_its_figures_and_refers_to_nothing_outside(reported):
    page = reported.page
    assert page.open == []
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert not re.search(r"https?:|url\(|@import|\$\w", reported.text)
    sources = [value for _, name, value in page.attributes if name in ("src", "href", "srcset")]
    prefix = "data:image/png;base64,"
    pictures = {path.read_bytes() for path in reported.out.glob("*.png")}
    assert {base64.b64decode(source.removeprefix(prefix)) for source in sources} == pictures
    named = [value for tag, name, value in page.attributes if (tag, name) == ("img", "alt") and value]
    assert len(named) == len(FIGURES)


def test_page_tells_verdict_tables_config_versions_and_warnings(reported):
    for words in ("The constrained model is feasible", "mult. x viol.", "alpha", "multipliers wind up <at layer 2>"):
        assert words in reported.page.text
    for name, version in environment().items():
        assert name in reported.page.text
        assert version in reported.page.text
    assert "<mark>" in reported.text
    assert "/home/somebody" not in reported.text
    assert str(reported.root) not in reported.text + (reported.out / "summary.json").read_text()


def test_environment_recorded_by_a_run_is_shown_beside_the_report_own(reported):
    assert "Example Accelerator" in reported.text


def test_ood_curve_draws_both_methods_noisy_input_and_training_gamma(make_run):
    settings = _settings(make_run, layers=(3, 7), seeds=(0, 1))
    figure = score_curve(settings)
    assert len(figure.axes) == 2
    for axes, setting in zip(figure.axes, settings, strict=True):
        lines = _lines(axes)
        assert set(lines) == {"noisy input", "plain", "constrained", "training gamma"}
        for variant in setting.variants:
            np.testing.assert_allclose(_heights(lines[variant.title]), variant.scores().mean(0))
            assert lines[variant.title].get_color() == COLOURS[variant.method]
        assert list(np.asarray(lines["training gamma"].get_xdata(), float)) == [0.15, 0.15]
        assert len(axes.collections) == 2
    assert "RMSE" in figure.axes[0].get_ylabel()


def test_layer_loss_figure_shows_losses_and_bounds_on_a_log_axis(make_run):
    settings = _settings(make_run)
    (axes,) = layer_losses(settings).axes
    (constrained,) = settings[0].of("constrained")
    drawn = [_heights(line) for line in axes.lines]
    assert any(np.array_equal(values, constrained.mean("bounds")) for values in drawn)
    assert any(np.array_equal(values, constrained.mean("layer_losses")) for values in drawn)
    assert axes.get_yscale() == "log"


def test_multiplier_figure_has_a_curve_per_layer_and_a_line_at_zero(make_run):
    settings = _settings(make_run, layers=(3, 7), seeds=(0, 1))
    figure = multipliers(settings)
    assert figure is not None
    left, right = figure.axes[2:]
    curves = [run.curves.multipliers for run in settings[1].of("constrained")[0].runs]
    for layer in range(8):
        np.testing.assert_allclose(_heights(left.lines[layer]), np.mean(curves, axis=0)[:, layer])
    for axes in (left, right):
        assert len(axes.lines) == 9
        assert list(_heights(axes.lines[8])) == [0.0, 0.0]
        assert len({tuple(line.get_color()) for line in axes.lines[:8]}) == 8


def test_multiplier_figure_has_no_layer_0_without_a_reference_loss(make_run):
    run = make_run("constrained", num_layers=3)
    path = run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        for name in {"violations", "multipliers"} & row.keys():
            row[name][0] = None
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    figure = multipliers(group(read_runs([run])))
    assert figure is not None
    (legend,) = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    assert [text.get_text() for text in legend.get_texts()] == ["layer 1", "layer 2", "layer 3"]


def test_ratio_figure_draws_shares_and_names_mean_and_descent(make_run):
    settings = _settings(make_run, seeds=(0, 1))
    (axes,) = ratios(settings).axes
    labels = axes.get_legend_handles_labels()[1]
    for variant in settings[0].variants:
        share, mean = variant.mean("share_descending"), variant.mean("mean_ratio_all")
        assert f"{variant.title}: mean {mean:.2f},\n{share:.1%} of steps descend" in labels
    assert len(_steps(axes)) == 4
    for values, _, _ in _steps(axes):
        assert np.sum(values) == pytest.approx(100)


def test_an_open_last_histogram_bin_is_drawn_as_wide_as_its_neighbour(make_run):
    open_ended = {"ratio_histogram": {"edges": [0.0, 0.5, 1.0, None], "counts": [[1, 2, 3]] * 3}}
    settings = group(read_runs([make_run("constrained", evaluation=open_ended)]))
    (axes,) = ratios(settings).axes
    assert list(_steps(axes)[0][1]) == [0.0, 0.5, 1.0, 1.5]


def test_runs_without_training_metrics_are_reported_without_training_figures(make_run, monkeypatch, tmp_path):
    monkeypatch.setattr("unroll_jax.train.report.panels.DPI", 40)
    folder = make_run("constrained", steps=0)
    write(video, [folder], tmp_path / "out", log=lambda _: None)
    assert training_loss(group(read_runs([folder])), "loss") is None
    assert "The runs hold no training metrics." in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert not (tmp_path / "out" / "multipliers.png").exists()


def test_figures_survive_values_that_are_not_numbers(make_run, monkeypatch, tmp_path):
    monkeypatch.setattr("unroll_jax.train.report.panels.DPI", 40)
    nothing = {"layer_losses": [None] * 4, "bounds": [None] * 4, "rmse": dict.fromkeys(["0.0", "0.15"])}
    noisy = {"noisy_rmse": {"0.0": 0.0, "0.15": 48.8}}
    folder = make_run("constrained", steps=0, evaluation=nothing | noisy)
    write(video, [folder], tmp_path / "out", log=lambda _: None)
    assert (tmp_path / "out" / "ood_curve.png").exists()


@pytest.mark.parametrize(
    ("methods", "title", "absent"),
    [
        (("erm",), "video-ut: plain training", ("constrained model", "descent constraints", "tightened")),
        (("constrained",), "video-ut: constrained training", ("trained plainly", "plain: method erm")),
        (("erm", "constrained"), "video-ut: plain against constrained training", ("No run of method",)),
    ],
)
@pytest.mark.usefixtures("without_drawing")
def test_title_and_words_are_of_the_methods_present(make_run, tmp_path, methods, title, absent):
    write(video, [make_run(method) for method in methods], tmp_path / "out", log=lambda _: None)
    page = _Page((tmp_path / "out" / "index.html").read_text(encoding="utf-8"))
    assert page.text.startswith(f"{title} {title} ")
    for words in absent:
        assert words not in page.text


def test_bounds_are_in_the_legend_only_with_a_constrained_run(make_run):
    for method, there in (("erm", False), ("constrained", True)):
        (legend,) = layer_losses(group(read_runs([make_run(method)]))).legends
        assert ("bound (constrained)" in [text.get_text() for text in legend.get_texts()]) == there


def test_violations_of_the_tightened_bounds_are_called_so(make_run, reported):
    figure = multipliers(_settings(make_run))
    assert figure is not None
    assert figure.axes[1].get_ylabel().startswith("violation of the tightened bound")
    assert "mult. x viol.: of the tightened bounds that training enforces" in reported.log


def test_training_loop_does_not_import_matplotlib():
    check = "import sys, train.loop; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False, timeout=120).returncode == 0


def test_layers_have_the_numbers_that_they_have_in_the_model(make_run):
    numbers, worst = [0, 10, 20, 30], {"layer_losses": [1.0, 1.0, 2.5, 1.0], "bounds": [2.0] * 4, "feasible": False}
    folder = make_run("constrained", num_layers=3, evaluation={"layers": numbers} | worst)
    (setting,) = group(read_runs([folder]))
    (variant,) = setting.variants
    assert setting.title.startswith("3 of 30 layers")
    assert [row[0] for row in feasibility_table(setting, variant).rows] == list(map(str, numbers))
    assert "worst: layer 20" in state_words(variant)
    (axes,) = layer_losses([setting]).axes
    assert {tuple(line.get_xdata()) for line in axes.lines if len(line.get_xdata())} == {tuple(numbers)}
    figure = multipliers([setting])
    assert figure is not None
    (legend,) = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    assert [text.get_text() for text in legend.get_texts()] == [f"layer {number}" for number in numbers]
