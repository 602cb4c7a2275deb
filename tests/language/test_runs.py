"""Runs of language models from training to report, and their models without data."""

import shutil

import numpy as np
import pytest

from tests.tasks import assert_resumes
from tests.train.commands import quiet, read
from unroll_jax.train.__main__ import main
from unroll_jax.train.main import fit
from unroll_jax.train.tasks.language.answers import Tokens, arrays
from unroll_jax.train.tasks.language.task import floors

pytestmark = pytest.mark.xdist_group("language")


def test_a_run_cut_back_ends_like_the_whole(finished, small, tmp_path):
    assert_resumes(
        small(method="constrained"),
        finished,
        tmp_path / "run",
        experiment="sft-tiny",
        steps=(2, 4),
    )


@pytest.mark.slow
def test_both_methods_train_evaluate_and_report(small, tmp_path):
    fit(small(method="both"), out=tmp_path, experiment="sft-tiny", log=quiet)
    page = (tmp_path / "report" / "index.html").read_text()
    assert "plain against constrained training" in page
    for method in ("plain", "constrained"):
        (file,) = tmp_path.glob(f"{method}*/evaluation.json")
        evaluation = read(file)
        assert evaluation["method"] == method
        assert 0.0 <= evaluation["accuracy"]["0.0"] <= 1.0


def test_an_evaluation_takes_other_strengths_of_noise(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    assert main(["evaluate", str(folder), "--test-gammas", "0", "2"]) == 0
    evaluation = read(folder / "evaluation.json")
    assert list(evaluation["accuracy"]) == ["0.0", "0.25", "2.0"], (
        "that of training among them"
    )


def test_floors_are_tables_of_the_answers_that_are_trained_on():
    def split(*texts):
        tokens = [Tokens(np.array(text, np.int32), 1) for text in texts]
        return arrays(tokens, [[number] for number in range(len(tokens))], 4, 3)

    train, test = split([0, 1, 2, 1], [0, 2, 3], [3, 2]), split([0, 1, 2, 2], [3, 1])
    tables = floors(train, test, 5)
    # c = counts in answers only: 1, 2, 1; 2, 3; 2
    single = (np.array([0, 2, 3, 1, 0]) + 1) / 11
    wanted = [1, 2, 2, 1]
    assert tables["unigram"].accuracy == 0.5
    assert tables["unigram"].loss == pytest.approx(-np.log(single[wanted]).mean())
    # Pairs: 0-1, 1-2, 2-1; 0-2, 2-3; 3-2. Behind 0, 1 and 2 are as frequent, and 2 is
    # the more frequent token.
    paired = [(1 + single[1]) / 3, (1 + single[2]) / 2, single[2] / 3, single[1] / 2]
    assert (tables["bigram"].loss, tables["bigram"].accuracy) == (
        pytest.approx(-np.log(paired).mean()),
        0.25,
    )
