"""What is said once, where a run starts from nothing."""

import numpy as np
import pytest

from tests.pretrained.conftest import bert_tensors
from train.runs import best_checkpoint
from train.text.config import EncoderOptions
from train.text.predict import predict

TENSORS = bert_tensors() | {name: bert_tensors()[name][:2] for name in ("classifier.weight", "classifier.bias")}
DRAWN = (
    "the pretrained logits are of negative, positive behind a tanh layer on the first token, which is not what is "
    "trained: new ones are drawn"
)


@pytest.fixture
def encoder(write_folder):
    """A folder whose head is of the classes of the built-in sentences, or of those of other names."""

    def write(*names):
        return str(write_folder(config={"id2label": {str(n): name for n, name in enumerate(names)}}, tensors=TENSORS))

    return write


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, "--model.hidden"),
        ({"pooling": "mean"}, "--model.hidden --model.pooling first"),
        ({"pooling": "mean", "hidden": True}, "--model.pooling first"),
    ],
)
def test_options_that_keep_the_pretrained_logits_are_named(built, encoder, fields, options):
    folder = encoder("negative", "positive")
    task = built("text-encoder", model=EncoderOptions(pretrained=folder, **fields))[2]
    assert task.model.remarks == (f"{DRAWN}; {options} keeps them",)
    kept = built("text-encoder", model=EncoderOptions(pretrained=folder, hidden=True))
    assert kept[2].model.remarks == ()
    kernel = kept[3]["params"]["head"]["logits"]["kernel"]
    np.testing.assert_array_equal(kernel.T, TENSORS["classifier.weight"])


def test_no_option_keeps_logits_of_other_classes(built, encoder):
    task = built("text-encoder", model=EncoderOptions(pretrained=encoder("up", "down")))[2]
    assert task.model.remarks == (DRAWN.replace("negative, positive", "up, down"),)


def test_drawn_logits_are_told_once_and_not_where_a_trained_head_is_read(small, start, encoder, capsys, tmp_path):
    config = small("text-encoder", model=EncoderOptions(pretrained=encoder("negative", "positive")), steps=2)
    said = f"{DRAWN}; --model.hidden keeps them"
    assert start(config, "text-encoder").count(said) == 1
    lines = start(config, "text-encoder")
    predict(tmp_path / "run", ["dull"], log=lines.append)
    best_checkpoint(tmp_path / "run", log=lines.append)
    assert not any("pretrained logits" in line for line in lines)
    assert "pretrained logits" not in capsys.readouterr().out
