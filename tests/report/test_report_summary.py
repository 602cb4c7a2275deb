"""The summary and the verdicts say what the runs' figures say."""

import json
import re

import numpy as np
import pytest

from unroll_jax.train.report import write
from unroll_jax.train.report.constrained import video
from unroll_jax.train.report.groups import group
from unroll_jax.train.report.read import read_runs

pytestmark = pytest.mark.usefixtures("without_drawing")
GAMMAS = ["0.0", "0.09", "0.15", "0.2", "0.3", "0.5"]


def _evaluations(folders):
    return [json.loads((folder / "evaluation.json").read_text()) for folder in folders]


def _report(folders, out):
    lines = []
    summary = write(video, folders, out, log=lines.append)
    return summary, "\n".join(lines)


def test_summary_of_one_pair_holds_the_figures_of_its_runs(make_run, tmp_path):
    folders = [make_run("erm"), make_run("constrained")]
    summary, _ = _report(folders, tmp_path / "out")
    erm, constrained = _evaluations(folders)
    assert (summary["experiment"], summary["train_gamma"], summary["num_layers"]) == ("video-ut", 0.15, 3)
    assert summary["noisy_input"]["rmse"] == erm["noisy_rmse"]
    for method, evaluation in (("erm", erm), ("constrained", constrained)):
        entry = summary["methods"][method]
        for key in ("rmse", "layer_losses", "bounds", "violations", "feasible", "train_seconds"):
            assert entry[key] == evaluation[key], key
    assert summary["methods"]["constrained"]["monotone"]
    assert not summary["methods"]["erm"]["monotone"]


def test_summary_file_is_strict_json_and_equals_the_returned_value(make_run, tmp_path):
    losses = {"layer_losses": [4.7, None, None, 0.6], "rmse": dict.fromkeys(GAMMAS)}
    folders = [make_run("erm", evaluation=losses), make_run("constrained")]
    summary, text = _report(folders, tmp_path / "out")

    def refuse(constant):
        raise AssertionError(f"bare {constant}")

    assert json.loads((tmp_path / "out" / "summary.json").read_text(), parse_constant=refuse) == summary
    assert summary["methods"]["erm"]["layer_losses"] == [4.7, None, None, 0.6]
    assert summary["methods"]["erm"]["rmse"]["0.15"] is None
    assert "not comparable" in text


def test_aggregates_over_seeds_equal_numpy(make_run, tmp_path):
    folders = [make_run(method, seed=seed) for seed in range(3) for method in ("erm", "constrained")]
    summary, text = _report(folders, tmp_path / "out")
    for method in ("erm", "constrained"):
        members = [e for e in _evaluations(folders) if e["method"] == method]
        entry = summary["methods"][method]
        rmse = np.array([[member["rmse"][gamma] for gamma in GAMMAS] for member in members])
        for key, reduce in (("rmse", np.mean), ("rmse_min", np.min), ("rmse_max", np.max)):
            np.testing.assert_allclose(list(entry[key].values()), reduce(rmse, axis=0), rtol=1e-12)
        for key in ("layer_losses", "bounds", "multipliers", "descend_share", "train_seconds", "share_descending"):
            np.testing.assert_allclose(entry[key], np.mean([member[key] for member in members], axis=0), rtol=1e-12)
        margins = [1 - np.array(member["layer_losses"]) / member["bounds"] for member in members]
        np.testing.assert_allclose(entry["worst_margin"], np.min(margins), rtol=1e-9)
        assert entry["seeds"] == [0, 1, 2]
    assert [run["run"] for run in summary["runs"]] == [folder.name for folder in folders]
    lowest, highest = rmse[:, 2].min(), rmse[:, 2].max()
    assert f"{rmse[:, 2].mean():.2f} [{lowest:.2f}, {highest:.2f}]" in text


def test_depths_become_groups_and_the_first_pair_is_the_headline(make_run, tmp_path):
    alone = make_run("erm", num_layers=5)
    folders = [alone, *(make_run(m, num_layers=n) for n in (7, 3) for m in ("erm", "constrained"))]
    summary, text = _report(folders, tmp_path / "out")
    assert [group["num_layers"] for group in summary["groups"]] == [5, 7, 3]
    assert summary["num_layers"] == 7
    assert len(summary["methods"]["constrained"]["layer_losses"]) == 8
    assert "No run of method constrained was given here" in text
    assert "What feasibility costs" in text


def test_configs_that_differ_beyond_the_seed_are_not_averaged(make_run, tmp_path):
    folders = [
        make_run("constrained", seed=seed, name=f"c{alpha}-{seed}", config={"constraints": {"alpha": alpha}})
        for alpha in (0.1, 0.3)
        for seed in (0, 1)
    ]
    moved = make_run("erm", name="e0", config={"data": {"source": "photos", "prepared": "/elsewhere"}})
    summary, _ = _report([*folders, moved, make_run("erm", seed=1)], tmp_path / "out")
    (group,) = summary["groups"]
    labels = [(variant["method"], variant["label"], variant["seeds"]) for variant in group["variants"]]
    assert labels[1:] == [("constrained", "alpha 0.1", [0, 1]), ("constrained", "alpha 0.3", [0, 1])]
    assert labels[0][0] == "erm"


@pytest.mark.parametrize(("factor", "winner"), [(0.8, "constrained"), (1.25, "plain")])
def test_verdict_names_the_better_method_out_of_distribution(make_run, tmp_path, factor, winner):
    plain = dict(zip(GAMMAS, (9.0, 14.0, 17.5, 22.0, 32.0, 46.0), strict=True))
    other = {gamma: value * (factor if float(gamma) > 0.15 else 1.0) for gamma, value in plain.items()}
    folders = [make_run("erm", evaluation={"rmse": plain}), make_run("constrained", evaluation={"rmse": other})]
    _, text = _report(folders, tmp_path / "out")
    stronger = re.search(r"On stronger noise .*?%\.", text)
    assert stronger
    assert f"the {winner} model is better by 20.0%" in stronger.group()
    assert "At the training noise (gamma 0.15): RMSE 17.5 constrained, 17.5 plain; practically equal." in text
    assert "One seed each" in text


@pytest.mark.parametrize("order", [1, -1])
def test_methods_are_compared_where_their_configurations_agree(make_run, tmp_path, order):
    config = {rate: {"primal": {"learning_rate": rate}} for rate in (0.1, 0.001)}
    other, same = ({"rmse": dict.fromkeys(GAMMAS, value)} for value in (30.0, 20.0))
    folders = [
        make_run("erm", name="other", config=config[0.1], evaluation=other),
        make_run("erm", name="same", config=config[0.001], evaluation=same),
        make_run("constrained", config=config[0.001], evaluation={"rmse": dict.fromkeys(GAMMAS, 25.0)}),
    ]
    summary, text = _report(folders[::order], tmp_path / "out")
    assert "RMSE 25.0 constrained, 20.0 plain (learning_rate 0.001); the plain (learning_rate 0.001) model is" in text
    assert "30.0 plain" not in text
    assert summary["methods"]["erm"]["runs"] == ["same"]
    assert list(summary["methods"]) == ["erm", "constrained"]


def test_verdict_admits_when_the_seeds_overlap(make_run, tmp_path):
    scales = {("erm", 0): 1.0, ("erm", 1): 1.3, ("constrained", 0): 1.1, ("constrained", 1): 1.3}
    folders = [
        make_run(method, seed=seed, evaluation={"rmse": dict.fromkeys(GAMMAS, 20 * scale)})
        for (method, seed), scale in scales.items()
    ]
    _, text = _report(folders, tmp_path / "out")
    assert "the plain model is better by 4.2%, but the seeds' ranges overlap" in text


def test_infeasible_end_is_said_in_plain_words(make_run, tmp_path):
    losses, bounds = [4.7, 3.0, 2.9, 0.7], [5.5, 3.67, 2.34, 2.26]
    bad = {"layer_losses": losses, "bounds": bounds, "feasible": False}
    _, text = _report([make_run("erm"), make_run("constrained", evaluation=bad)], tmp_path / "out")
    assert "The constrained model is NOT feasible (worst: layer 2, 23.9% over its bound)." in text
    assert "0 of 1 runs feasible" in text


def test_one_infeasible_seed_makes_a_variant_infeasible(make_run, tmp_path):
    folders = [make_run(method, seed=seed) for method in ("erm", "constrained") for seed in (0, 1)]
    folders[3] = make_run("constrained", seed=1, name="bad", evaluation={"feasible": False})
    _, text = _report(folders, tmp_path / "out")
    assert "1 of 2 runs feasible" in text
    assert "The constrained model is NOT feasible" in text


def test_model_worse_than_its_input_is_named(make_run, tmp_path):
    collapsed = {"rmse": dict.fromkeys(GAMMAS, 69.0)}
    _, text = _report([make_run("erm"), make_run("constrained", evaluation=collapsed)], tmp_path / "out")
    assert "The constrained model does not clean its input: RMSE 69.0, noisy input 48.8." in text


def test_what_weakens_a_comparison_is_noted(make_run, tmp_path):
    stopped = {"state": "stopped", "steps": 40, "messages": ["loss was NaN at step 41, layer 2"]}
    folders = [make_run("erm", seed=1), make_run("constrained", status=stopped, evaluation={"train_gamma": 0.14})]
    folders += [make_run("erm", name="e", evaluation={"train_gamma": 0.14})]
    _, text = _report(folders, tmp_path / "out")
    assert "constrained-L3-s0 is not finished (state: stopped, 40 steps)." in text
    assert "loss was NaN at step 41, layer 2" in text
    assert "unequal steps (40, 60)" in text
    assert "was not tested at its training gamma; 0.15 stands for it" in text


def test_what_differs_between_the_methods_besides_constraints_is_noted(make_run, tmp_path):
    usual = {"primal": {"learning_rate": 0.1}, "mesh": None}
    bounds = {"constraints": {"alpha": 0.5}, "dual": {"learning_rate": 0.3}, "mesh": "data=2"}
    constrained = make_run("constrained", config=usual | bounds)
    _, text = _report([make_run("erm", config=usual), constrained], tmp_path / "out")
    assert "differ in more than constraints" not in text
    other = make_run("erm", name="other", config=usual | {"primal": {"learning_rate": 0.001}, "steps": 9})
    _, text = _report([other, constrained], tmp_path / "out")
    sentence = "constrained and plain differ in more than constraints: primal.learning_rate 0.1 (plain: 0.001), steps "
    assert f"3 layers, training gamma 0.15: {sentence}not set (plain: 9)." in text
    assert sentence in (tmp_path / "out" / "index.html").read_text()


def test_terminal_tables_are_aligned(make_run, tmp_path):
    _, text = _report([make_run("erm"), make_run("constrained")], tmp_path / "out")
    blocks = [block.splitlines() for block in text.split("\n\n")]
    assert [block[0].split(",")[0] for block in blocks[:3]] == [
        "RMSE against test gamma",
        "Feasibility on held-out data",
        "Feasibility on held-out data",
    ]
    for block in blocks[:3]:
        rule = block[2]
        assert set(rule) == {"-", " "}
        assert all(len(row) == len(rule) for row in block[3:-1])
    assert any(re.match(r"0\.15 \*\s+48\.80 ", line) for line in blocks[0])


def test_where_tails_are_bound_the_worst_layer_is_that_of_the_tails(make_run, tmp_path):
    means = {"layer_losses": [4.0, 3.0, 2.0, 1.0], "bounds": [5.0, 4.0, 2.5, 2.0], "feasible": False}
    tails = {"bind": "tail", "violations": [-1.0, 1.0, -0.5, -0.2]}
    _, text = _report([make_run("erm"), make_run("constrained", evaluation=means | tails)], tmp_path / "out")
    assert "NOT feasible (worst: layer 1, 25.0% over its bound)" in text
    assert "margins are of the mean over the worst samples" in text


def test_constraints_are_compared_with_plain_training_and_with_deep_supervision(make_run, tmp_path):
    methods = ("erm", "deep_supervision", "constrained")
    weights = {"layer_weights": [0.3]}
    folders = [make_run(one, config=weights if one == "deep_supervision" else {}) for one in methods]
    summary, text = _report(folders, tmp_path / "out")
    assert set(summary["methods"]) == set(methods)
    scores = {method: summary["methods"][method]["rmse"]["0.15"] for method in methods}
    for method, name in (("erm", "plain"), ("deep_supervision", "deep supervision")):
        figures = f"RMSE {scores['constrained']:.1f} constrained, {scores[method]:.1f} {name}"
        assert figures in text
    assert "differ in more than constraints" not in text


@pytest.mark.parametrize(("form", "margin"), [("ratio", -0.1), ("log_ratio", 1 - np.exp(0.1))])
def test_margins_of_ratios_are_shares_of_the_bound(make_run, form, margin):
    violations = [None, 0.1, -0.2, -0.3]
    folder = make_run("constrained", evaluation={"form": form, "violations": violations})
    (setting,) = group(read_runs([folder]))
    assert setting.variants[0].worst()[1] == 1
    np.testing.assert_allclose(setting.variants[0].worst()[2], margin, rtol=1e-6)


def test_deep_supervision_alone_is_reported(make_run, tmp_path):
    summary, text = _report([make_run("deep_supervision")], tmp_path / "out")
    assert list(summary["methods"]) == ["deep_supervision"]
    assert "No run of method erm was given here" in text
