"""Default bounds on the loss of the input are made from the data, and logged."""

import dataclasses

import numpy as np
import pytest

from tests.sparse_coding.conftest import BLOBS
from tests.train.conftest import CLIPS
from unroll_jax.train.config.options import with_value
from unroll_jax.train.registry import EXPERIMENTS
from unroll_jax.train.tasks.language import task as language
from unroll_jax.train.tasks.language.options import InstructionConfig
from unroll_jax.train.tasks.sparse_coding import task as sparse_coding
from unroll_jax.train.tasks.text import task as text
from unroll_jax.train.tasks.text.options import TextConfig
from unroll_jax.train.tasks.video import task as video
from unroll_jax.train.tasks.video.options import VideoConfig

WORDS = ("good", "bad", "plain", "odd", "new")


def opened(module, config):
    lines = []
    options = module.open_task(config, lines.append).options
    return options.constraints.reference, [one for one in lines if "reference" in one]


def write_table(path, classes):
    lines = [f"{WORDS[n % classes]} film {n},{n % classes}" for n in range(300)]
    path.write_text("\n".join(["text,label", *lines]))
    return str(path)


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_of_texts_it_is_above_the_loss_of_not_knowing(tmp_path, classes):
    root = write_table(tmp_path / "reviews.csv", classes)
    data = TextConfig(root=root, prepared=str(tmp_path / "prepared"))
    config = dataclasses.replace(EXPERIMENTS["text-encoder"].config, data=data)
    reference, lines = opened(text, config)
    assert reference == pytest.approx(1.04 * np.log(classes), rel=2e-3)
    assert bool(lines) is (classes != 2)
    assert all(f"--constraints.reference {reference:g}" in line for line in lines)
    given = with_value(config, "constraints.reference", 9.0)
    reference, lines = opened(text, given)
    assert (reference, lines) == (9.0, [])


def test_of_clips_it_is_in_proportion_to_the_noisy_input(monkeypatch):
    monkeypatch.setattr(video, "load", lambda *_, **__: CLIPS)
    for gamma in (0.1, 0.4):
        reference, lines = opened(video, VideoConfig(train_gamma=gamma))
        loss = 0.5 * 16 * gamma * CLIPS.spec.pixel_std
        assert reference == pytest.approx(8.0 / 6.236 * loss, rel=1e-3)
        assert len(lines) == 1


def test_of_codes_it_is_in_proportion_to_no_layer(monkeypatch):
    monkeypatch.setattr(sparse_coding, "load", lambda *_, **__: BLOBS)
    config = EXPERIMENTS["lista"].config
    reference, lines = opened(sparse_coding, dataclasses.replace(config, batch_size=8))
    loss = 0.5 * np.mean(np.sum(BLOBS.whole("train").codes ** 2, axis=1))
    assert reference == pytest.approx(2.4 / 2.251 * loss, rel=1e-3)
    assert len(lines) == 1


def test_of_answers_it_is_in_proportion_to_their_entropy(tmp_path):
    path = tmp_path / "answers.jsonl"
    answer = "ab"
    path.write_text(40 * f'{{"prompt": "say", "answer": "{answer}"}}\n')
    data = InstructionConfig(root=str(path), prepared=str(tmp_path / "prepared"))
    config = dataclasses.replace(EXPERIMENTS["sft-tiny"].config, data=data)
    reference, lines = opened(language, dataclasses.replace(config, batch_size=1))
    # of a, b and the end of an answer, equally often
    assert reference == pytest.approx(4.5 / 3.463 * np.log(3.0), rel=2e-2)
    assert len(lines) == 1
