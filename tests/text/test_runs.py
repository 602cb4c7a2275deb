"""Text runs from the first step to the report."""

import dataclasses
import itertools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.text.conftest import MANY, PARTS, newest_state
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.config.text import UnrolledConfig
from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.loop import train, train_run
from unroll_jax.train.main import fit, report
from unroll_jax.train.metrics import read_metrics
from unroll_jax.train.report import constrained, figures
from unroll_jax.train.report.groups import group
from unroll_jax.train.report.read import read_runs
from unroll_jax.train.report.tables import area_table, exit_table
from unroll_jax.train.report.words import compare, notes
from unroll_jax.train.runs import default_folder
from unroll_jax.train.step import init_state, validate
from unroll_jax.train.tasks.common import Trial, area_under
from unroll_jax.train.tasks.text import open_text

pytestmark = [pytest.mark.xdist_group("text-runs"), pytest.mark.slow]


def read(folder, name):
    return json.loads((folder / name).read_text())


def test_both_methods_train_evaluate_and_report(finished, experiment):
    whole = finished(experiment)
    for method, folder in whole.runs.items():
        evaluation = read(folder, "evaluation.json")
        assert (evaluation["method"], evaluation["num_examples"], evaluation["num_layers"]) == (method, 20, 2)
        assert list(evaluation["accuracy"]) == ["0.0", "0.6", "2.0"]
        assert evaluation["area"] == pytest.approx(evaluation["accuracy"]["0.0"] + evaluation["accuracy"]["2.0"])
        for name in ("layer_losses", "error_rates", "bounds", "multipliers"):
            assert len(evaluation[name]) == 3
        assert evaluation["error_rates"][-1] == pytest.approx(1.0 - evaluation["accuracy"]["0.6"])
        assert sum(map(sum, evaluation["ratio_histogram"]["counts"])) == 2 * 20
        times = evaluation["early_exit"]["milliseconds"]
        assert set(times) == {"whole", "by_layers", "early_exit", "depth"}
        assert min(times[name] for name in ("whole", "by_layers", "early_exit")) > 0
        assert 0.0 <= times["depth"] <= 2.0
        assert evaluation["early_exit"]["curve"]["mean_depths"][0] == 2.0
        assert evaluation["early_exit"]["curve"]["accuracies"][0] == evaluation["early_exit"]["full_accuracy"]
        rows = read_metrics(folder / "metrics.jsonl")
        assert [row["step"] for row in rows if row["kind"] == "validation"] == [2, 4]
        assert all(0.0 <= row["accuracy"] <= 1.0 for row in rows if row["kind"] == "validation")
    page = (whole.report / "index.html").read_text()
    names = {path.stem for path in whole.report.glob("*.png")}
    assert names >= {"accuracy_curve", "layer_losses", "error_rates", "ratios", "early_exit", "multipliers"}
    methods = "plain against constrained" if len(whole.runs) == 2 else "constrained training"
    for words in ("Area under the accuracy", "Early exit", methods):
        assert words in page
    assert any("Area under the accuracy" in line for line in whole.log)


def test_a_run_with_many_options_goes_on_as_if_it_had_not_been_interrupted(small, finished, tmp_path):
    whole, again, log = finished("text-ut").runs["constrained"], tmp_path / "run", []
    shutil.copytree(whole, again)
    for name in ("status.json", "evaluation.json"):
        (again / name).unlink()
    shutil.rmtree(again / "checkpoints" / "4")
    config = small("text-ut", method="constrained", accumulate=PARTS["text-ut"], **MANY)
    fit(config, out=again, experiment="text-ut", log=log.append)
    assert "going on from the checkpoint of step 2" in log
    assert (whole / "metrics.jsonl").read_bytes() == (again / "metrics.jsonl").read_bytes()
    one, other = (read(folder, "evaluation.json") for folder in (whole, again))
    for evaluation in (one, other):
        del evaluation["train_seconds"], evaluation["early_exit"]["milliseconds"]
    assert one == other
    assert (one["bind"], len(one["slacks"])) == ("tail", 3)
    first = read_metrics(whole / "metrics.jsonl")[0]
    for figure in ("violation", "multiplier", "slack"):
        assert {f"{figure}/{name}" for name in ("f_0", "layer 1", "layer 2")} <= first.keys()


def test_a_run_with_frozen_embeddings_goes_on_as_if_it_had_not_been_interrupted(small, write_folder, tmp_path):
    folder, log = str(write_folder(config={"vocab_size": 20})), []
    config = small("text-ut", model=UnrolledConfig(num_layers=2, embeddings=folder, dim=64), steps=2, validate_every=1)
    whole, again = tmp_path / "whole", tmp_path / "run"
    task = open_text(config, log.append)
    train_run(task, whole, experiment="text-ut", log=log.append)
    shutil.copytree(whole, again)
    shutil.rmtree(again / "checkpoints" / "2")
    (again / "status.json").unlink()
    train_run(open_text(config, log.append), again, experiment="text-ut", log=log.append)
    assert "going on from the checkpoint of step 1" in log
    assert (whole / "metrics.jsonl").read_bytes() == (again / "metrics.jsonl").read_bytes()
    one, other = (jax.device_get(newest_state(folder, task)) for folder in (whole, again))
    assert one.step == 2
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_the_loop_compiles_once_for_each_length_of_batch(task_of, monkeypatch, tmp_path):
    steps = {"steps": 5, "validate_every": 5}
    task = task_of("text-ut", **steps, max_length=32, batch_size=2, method="erm")
    lengths, traced = [batch.tokens.shape[1] for batch in itertools.islice(task.batches(0, None), 5)], []
    assert 1 < len(set(lengths)) < len(lengths)
    sample_noise = task.sample_noise

    def counted(batch, key):
        traced.append(batch.tokens.shape[1])
        return sample_noise(batch, key)

    monkeypatch.setattr(task, "sample_noise", counted)
    train(task, tmp_path, log=lambda line: None)
    assert sorted(traced) == sorted(set(lengths))
    assert read(tmp_path, "status.json")["state"] == "finished"


def test_readings_of_a_split_do_not_depend_on_how_it_is_padded(built, experiment):
    task, params = built(experiment, max_length=16)
    reading = task.reading(params, "test", Trial(0.0))
    texts = list(task.data.tokens.examples("test", batch_size=1))
    assert reading.losses.shape == reading.entropies.shape == reading.predictions.shape == (len(texts), 3)
    assert reading.labels.tolist() == [int(batch.labels[0]) for batch in texts]
    lengths = [batch.tokens.shape[1] for batch in texts]
    rows = [row for row, length in enumerate(lengths) if length == min(lengths)][:4]
    assert min(lengths) < max(lengths)
    outputs = jax.jit(lambda batch: task.outputs(params, batch, None, lambda logits: logits))
    for row in rows:
        logits = np.asarray(outputs(texts[row]), np.float64)[:, 0]
        shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(reading.losses[row], -np.log(shares[:, texts[row].labels[0]]), rtol=1e-4)
        np.testing.assert_allclose(reading.entropies[row], -(shares * np.log(shares)).sum(1), rtol=1e-4)
        assert reading.predictions[row].tolist() == shares.argmax(1).tolist()


def test_the_area_is_that_of_trapezoids():
    assert area_under({2.0: 0.5, 0.0: 0.9, 0.5: 0.8}) == pytest.approx(0.5 * 0.85 + 1.5 * 0.65)
    assert area_under({gamma / 4: 1.0 for gamma in range(9)}) == pytest.approx(2.0)
    assert area_under({0.5: 0.9}) is None


def draw_only(monkeypatch, name):
    """Draws one figure of a report; the others are left out."""
    real = constrained._picture

    def picture(other, figure, caption):
        return real(other, figure if other == name else None, caption)

    monkeypatch.setattr("unroll_jax.train.report.constrained._picture", picture)


def test_areas_stand_as_in_the_papers_table(family):
    folders = [
        family("a", method="erm", seed=0, area=1.6),
        family("b", method="erm", seed=1, area=1.7),
        family("c", method="constrained", seed=0, area=1.75),
        family("d", method="constrained", seed=1, area=1.85),
        family("e", method="constrained", seed=0, area=1.5, train_gamma=1.0),
    ]
    settings = group(read_runs(folders))
    table = area_table(settings)
    assert [row[:4] for row in table.rows] == [
        ("2, 0.6", "1.800 [1.750, 1.850]", "1.650 [1.600, 1.700]", "+0.150"),
        ("2, 1", "1.500", "-", "-"),
    ]
    assert len(exit_table(settings).rows) == 3


@pytest.mark.parametrize("order", [1, -1])
def test_methods_are_compared_where_their_configurations_agree(family, order):
    rates = [("slow", 1e-5, 0.5), ("usual", 3e-3, 0.55), ("fast", 1e-2, 0.45)]
    plain = [family(name, method="erm", area=area, primal__learning_rate=rate) for name, rate, area in rates]
    enforced = [family("one", area=0.6), family("two", area=0.65, primal__learning_rate=1e-2)]
    (setting,) = group(read_runs([*plain, *enforced][::order]))
    assert sorted(row[:4] for row in area_table([setting]).rows) == [
        ("2, 0.6, learning_rate 0.003 against plain (learning_rate 0.003)", "0.600", "0.550", "+0.050"),
        ("2, 0.6, learning_rate 0.01 against plain (learning_rate 0.01)", "0.650", "0.450", "+0.200"),
        ("2, 0.6, plain (learning_rate 1e-05)", "-", "0.500", "-"),
    ]
    sentence = compare(setting)
    assert "0.600 constrained (learning_rate 0.003), 0.550 plain (learning_rate 0.003) (+0.050)" in sentence
    assert "0.650 constrained (learning_rate 0.01), 0.450 plain (learning_rate 0.01) (+0.200)" in sentence
    assert "Compared with none: plain (learning_rate 1e-05), area 0.500." in sentence
    assert not any("differ in more than constraints" in note for note in notes([setting]))


@pytest.mark.parametrize("stored", [0.0, None], ids=["an earlier version's", "none"])
def test_under_one_gamma_there_is_no_area(task_of, family, monkeypatch, capsys, tmp_path, stored):
    draw_only(monkeypatch, "accuracy_curve")
    one = {"test_gammas": [2.0], "area": stored}
    folders = [family("plain", method="erm", **one), family("own", **one), family("more", seed=1, **one)]
    report([*map(str, folders), "--out", str(tmp_path / "report")])
    printed = capsys.readouterr().out
    assert "area" not in printed.replace("Area under the accuracy over test gamma 2 alone", "")
    assert "Constrained against plain: at gamma 0 0.00 points of accuracy." in printed
    assert [row[1:4] for row in area_table(group(read_runs(folders))).rows] == [("-", "-", "-")]
    summary = read(tmp_path / "report", "summary.json")
    assert [variant["area"] for variant in summary["groups"][0]["variants"]] == [None, None]
    evaluation = read(folders[0], "evaluation.json")
    assert "area" not in task_of("text-ut").verdict(evaluation | {"area": area_under({2.0: 0.5})})


@pytest.mark.parametrize("order", [1, -1])
def test_where_no_configuration_agrees_it_is_said_which_was_compared_with(family, order):
    folders = [family(str(rate), method="erm", area=rate, primal__learning_rate=rate) for rate in (0.25, 0.5)]
    settings = group(read_runs([*folders, family("own", area=0.6)][::order]))
    assert [row[:4] for row in area_table(settings).rows] == [
        ("2, 0.6 against plain (learning_rate 0.25)", "0.600", "0.250", "+0.350"),
        ("2, 0.6, plain (learning_rate 0.5)", "-", "0.500", "-"),
    ]
    assert "0.600 constrained, 0.250 plain (learning_rate 0.25) (+0.350)" in compare(settings[0])
    assert "primal.learning_rate 0.003 (plain: 0.25)" in " ".join(notes(settings))


def test_an_ablation_over_alpha_is_drawn_and_summarised(family, monkeypatch, tmp_path):
    draw_only(monkeypatch, "ablation")
    folders = [family(f"alpha{alpha}", area=1.5 + alpha, constraints__alpha=[alpha]) for alpha in (0.05, 0.1, 0.2)]
    report([*map(str, folders), "--out", str(tmp_path / "report")])
    assert (tmp_path / "report" / "ablation.png").stat().st_size > 10_000
    summary = read(tmp_path / "report", "summary.json")
    assert [variant["area"] for variant in summary["groups"][0]["variants"]] == pytest.approx([1.55, 1.6, 1.7])


def test_ratios_stand_side_by_side_with_and_without_resilience(family):
    folders = [family("soft", area=1.5), family("hard", area=1.4, constraints__resilience=None)]
    settings = group(read_runs(folders))
    share = f"{settings[0].variants[0].mean('share_descending'):.1%} of steps descend"
    _, labels = figures.ratios(settings).axes[0].get_legend_handles_labels()
    for title in ("constrained (resilience 2.0)", "constrained (resilience None)"):
        assert any(label.startswith(title) and label.endswith(share) for label in labels)
    assert [row[0] for row in area_table(settings).rows] == ["2, 0.6, resilience 2.0", "2, 0.6, resilience None"]


def test_runs_tested_on_other_texts_are_not_compared(family, tmp_path):
    folders = [family("a", area=1.0, num_examples=20), family("b", area=1.0, num_examples=30)]
    with pytest.raises(UserError, match="differ in number of test examples"):
        report([*map(str, folders), "--out", str(tmp_path / "report")])


def test_runs_that_mean_something_else_by_gamma_are_not_compared(family, tmp_path):
    folders = [family("a", area=1.0, method="erm"), family("b", area=1.0, noise="variance")]
    with pytest.raises(UserError, match=r"differ in the meaning of gamma \(--noise\): .* deviation, .* variance;"):
        report([*map(str, folders), "--out", str(tmp_path / "report")])


def test_a_model_that_gives_every_text_one_class_is_said_to_have_collapsed(task_of):
    task = task_of("text-ut", method="erm")
    state = init_state(task)
    head = jax.device_get(state.params["params"]["head"]["logits"])
    blind = {"kernel": jnp.asarray(0.0 * head["kernel"]), "bias": jnp.asarray(np.eye(2, dtype=np.float32)[1])}
    dead = {**state.params["params"], "head": {"logits": blind}}
    _, _, collapse = validate(task, state._replace(params={"params": dead}))
    assert collapse is not None
    assert "it gives every text the class positive" in collapse


def test_every_experiment_has_a_folder_of_its_own_and_the_bounds_of_the_paper():
    names = [f"text-{model}-{source}" for model in ("encoder", "ut") for source in ("imdb", "sst2", "mnli")]
    configs = {name: EXPERIMENTS[name].config for name in names}
    assert len({default_folder(config, name) for name, config in configs.items()}) == len(names)
    kept = {name: (1 - config.constraints.alpha[0], config.constraints.reference) for name, config in configs.items()}
    assert kept["text-encoder-imdb"] == pytest.approx((0.774, 1.07))
    assert kept["text-encoder-mnli"] == pytest.approx((0.774, 1.99))
    assert kept["text-ut-imdb"] == pytest.approx((0.9, 3.45))
    assert kept["text-ut-mnli"] == pytest.approx((0.9, 1.98))
    for name, config in configs.items():
        config.check()
        assert config.data.source == name.rpartition("-")[2]
        assert dataclasses.replace(config, method="erm").constraints.resilience == 10.0
