"""Text models that were loaded without texts, word vectors or encoder: the same probabilities at every layer."""

import shutil

import numpy as np
import pytest

from tests.errors import one_line
from tests.train.commands import quiet
from unroll_jax.train import load
from unroll_jax.train.config.tokens import EncoderOptions, UnrolledConfig
from unroll_jax.train.evaluate import best_checkpoint
from unroll_jax.train.exporting import export
from unroll_jax.train.loop import train_run
from unroll_jax.train.tasks.common import Trial
from unroll_jax.train.tasks.text import TextTask

pytestmark = pytest.mark.slow
WORDS = ("a", "film", "that", "is", "good", "bad", "long", "and", "never", "ends")
TRAIN = [(f"a {word} film", ("bad", "good")[word == "good"]) for word in WORDS] * 3
TEST = [("that is good", "good"), ("a long film never ends", "bad"), ("a strange film", "bad"), ("bad", "good")]
PAIRS = [("a good film", "that is bad", "neutral"), ("long", "never ends and ends", "entailment")] * 4


def given(name, write_folder):
    if name == "words":
        return "text-encoder", EncoderOptions(dim=8, num_layers=2, num_heads=2, hidden_dim=12)
    folder = str(write_folder())
    if name == "encoder's words":
        return "text-ut", UnrolledConfig(num_layers=2, embeddings=folder, frozen=False)
    return "text-encoder", EncoderOptions(pretrained=folder, hidden=True)


def in_order(losses):
    return losses[np.argsort(losses[:, -1])]


@pytest.mark.parametrize("name", ["words", "encoder", "encoder's words"])
def test_a_loaded_model_says_of_texts_what_the_evaluation_saw(small, write_table, write_folder, tmp_path, name):
    experiment, model = given(name, write_folder)
    config = small(experiment, steps=2, method="plain", model=model, **write_table(TRAIN, test=TEST))
    task, run = TextTask.open(config, quiet), tmp_path / "run"
    train_run(task, run, experiment=experiment, log=quiet)
    params = best_checkpoint(task, run, experiment=experiment, log=quiet).state.params
    reading = task.reading(params, "test", Trial(0.0))
    folders = run, export(run, tmp_path / "model", log=quiet)
    for path in ("table", "prepared", "bert"):
        shutil.rmtree(tmp_path / path, ignore_errors=True)
    for folder in folders:
        loaded = load(folder, log=quiet)
        predictions = loaded.predict([text for text, _ in TEST], log=quiet)
        labels = [loaded.task.data.spec.class_names.index(label) for _, label in TEST]
        shares = np.stack([one.probabilities for one in predictions])[np.arange(len(TEST)), :, labels]
        np.testing.assert_allclose(in_order(-np.log(shares)), in_order(reading.losses), rtol=1e-4)
        right = np.mean([one.label == label for one, (_, label) in zip(predictions, TEST, strict=True)])
        assert right == pytest.approx(reading.accuracies[-1])
        assert loaded.task.data.embedding_std == task.data.embedding_std, "noise has the unit of training"


def test_pairs_come_back_without_their_data(small, write_pairs, tmp_path):
    config = small("text-ut", steps=2, method="plain", batch_size=3, **write_pairs(PAIRS))
    run, seconds = tmp_path / "run", ["that is bad", "never ends and ends"]
    train_run(TextTask.open(config, quiet), run, experiment="text-ut", log=quiet)
    out = export(run, tmp_path / "model", log=quiet)
    for name in ("table", "prepared"):
        shutil.rmtree(tmp_path / name)
    one, two = (load(folder, log=quiet).predict(["a good film", "long"], seconds=seconds) for folder in (run, out))
    for prediction, other in zip(one, two, strict=True):
        np.testing.assert_array_equal(prediction.probabilities, other.probabilities)
    with one_line("classifies pairs of texts"):
        load(out).predict(["long"])
