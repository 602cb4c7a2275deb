"""Text models that were loaded without texts, word vectors or encoder: the same
probabilities at every layer."""

import shutil

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.text.conftest import MODELS
from tests.train.commands import quiet
from unroll_jax.train import load
from unroll_jax.train.core.evaluate import best_checkpoint, read
from unroll_jax.train.core.loop import train_run
from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.core.task import Trial
from unroll_jax.train.exporting import export
from unroll_jax.train.tasks.text.options import EncoderOptions, UnrolledConfig
from unroll_jax.train.tasks.text.task import open_task

pytestmark = pytest.mark.slow
WORDS = ("a", "film", "that", "is", "good", "bad", "long", "and", "never", "ends")
TRAIN = [(f"a {word} film", ("bad", "good")[word == "good"]) for word in WORDS] * 3
TEST = [
    ("that is good", "good"),
    ("a long film never ends", "bad"),
    ("a strange film", "bad"),
    ("bad", "good"),
]
PAIRS = [
    ("a good film", "that is bad", "neutral"),
    ("long", "never ends and ends", "entailment"),
] * 4


@pytest.fixture
def given(write_table, write_pairs, write_folder):
    def make(name):
        if name == "words of pairs":
            fields = {"model": MODELS["text-encoder"], "batch_size": 3}
            return "text-encoder", fields | write_pairs(PAIRS), PAIRS
        folder, fields = str(write_folder()), write_table(TRAIN, test=TEST)
        if name == "encoder":
            model = EncoderOptions(pretrained=folder, hidden=True)
            return "text-encoder", fields | {"model": model}, TEST
        model = UnrolledConfig(num_layers=2, embeddings=folder, frozen=False)
        return "text-ut", fields | {"model": model}, TEST

    return make


def in_order(losses):
    return losses[np.argsort(losses[:, -1])]


@pytest.mark.parametrize(
    "name",
    [
        "words of pairs",
        pytest.param("encoder", marks=pytest.mark.nightly),
        pytest.param("words of an encoder", marks=pytest.mark.nightly),
    ],
)
def test_a_loaded_model_says_what_the_evaluation_saw(small, given, tmp_path, name):
    experiment, fields, rows = given(name)
    task = open_task(small(experiment, steps=2, method="plain", **fields), quiet)
    plan, run = make_plan(task), tmp_path / "run"
    train_run(task, plan, run, experiment=experiment, log=quiet)
    best = best_checkpoint(task, plan, run, experiment=experiment, log=quiet)
    reading = read(task, best.state.params, "test", Trial(0.0))
    folders = run, export(run, tmp_path / "model", log=quiet)
    for path in ("table", "prepared", "bert"):
        shutil.rmtree(tmp_path / path, ignore_errors=True)
    texts, *seconds, names = map(list, zip(*rows, strict=True))
    options = {"seconds": seconds[0]} if seconds else {}
    for folder in folders:
        loaded = load(folder, log=quiet)
        predictions = loaded.predict(texts, log=quiet, **options)
        losses = [
            -np.log(one.probabilities[:, one.class_names.index(label)])
            for one, label in zip(predictions, names, strict=True)
        ]
        expected = in_order(reading["losses"])
        assert_allclose(in_order(np.stack(losses)), expected, rtol=1e-4)
        right = np.mean([one.label for one in predictions] == np.array(names))
        assert right == pytest.approx(reading["right"][:, -1].mean())
        assert loaded.task.spec() == task.spec(), "noise has the unit of training"
