"""Text runs from the first step to the report."""

import pytest

from tests.tasks import assert_resumes
from tests.text.conftest import MANY, PARTS
from tests.train.commands import read
from unroll_jax.train.core.metrics import read_metrics

pytestmark = [pytest.mark.xdist_group("text-runs"), pytest.mark.slow]
NAMES = ("f_0", "layer 1", "layer 2")


def test_both_methods_train_evaluate_and_report(finished, experiment):
    whole = finished(experiment)
    for method, folder in whole.runs.items():
        evaluation = read(folder / "evaluation.json")
        assert evaluation["method"] == method
        assert (evaluation["num_examples"], evaluation["num_layers"]) == (20, 2)
        accuracy, exits = evaluation["accuracy"], evaluation["early_exit"]
        assert list(accuracy) == ["0.0", "0.6", "2.0"]
        assert evaluation["area"] == pytest.approx(accuracy["0.0"] + accuracy["2.0"])
        assert evaluation["error_rates"][-1] == pytest.approx(1.0 - accuracy["0.6"])
        assert exits["curve"]["mean_depths"][0] == 2.0
        assert exits["curve"]["accuracies"][0] == exits["full_accuracy"]
    assert "Early exit" in (whole.report / "index.html").read_text()
    assert (whole.report / "early_exit.png").exists()


def test_a_run_with_many_options_resumes(small, finished, tmp_path):
    whole = finished("text-ut").runs["constrained"]
    config = small("text-ut", method="constrained", accumulate=PARTS["text-ut"], **MANY)
    evaluation = assert_resumes(
        config, whole, tmp_path / "run", experiment="text-ut", steps=(2, 4)
    )
    assert (evaluation["form"], len(evaluation["slacks"])) == ("ratio", 3)
    rows = read_metrics(whole / "metrics.jsonl")
    logged = [row for row in rows if row["kind"] == "train"]
    for row in logged:
        named = [row[f"multiplier/{name}"] for name in NAMES]
        assert named == row["multipliers"]
        assert [row[f"violation/{name}"] for name in NAMES] == row["violations"]
        # of a resilience of 2
        assert [2.0 * row[f"slack/{name}"] for name in NAMES] == named
    assert max(logged[-1]["multipliers"]) > 0.0
