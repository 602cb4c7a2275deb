"""The hidden layer of a checkpoint's head: read whole, and taken by a classifier of the same activation."""

import functools

import jax
import numpy as np
import pytest

from tests.data.pretrained.conftest import DIM, bert_tensors
from tests.errors import assert_fails
from unroll_jax.models import Classifier, Encoder, EncoderConfig
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.pretrained.encoders import load_pretrained, start_from

load = functools.partial(load_pretrained, log=lambda line: None)


def reads(folder):
    return load(str(folder))


@pytest.mark.parametrize("hidden", ["tanh", "relu", None])
def test_a_classifier_starts_from_what_fits_it(write_folder, getkey, hidden):
    pretrained = reads(write_folder())
    params = start_from(pretrained, Classifier(Encoder(pretrained.config), 2, hidden=hidden), getkey())["params"]
    jax.tree.map(np.testing.assert_array_equal, params["encoder"], pretrained.params)
    taken = hidden is not None and np.array_equal(
        params["head"]["hidden"]["kernel"], pretrained.head["hidden"]["kernel"]
    )
    assert taken == (hidden == "tanh")


def test_a_classifier_of_another_encoder_is_refused(write_folder, getkey):
    model = Classifier(Encoder(EncoderConfig(20, 8, 3, 2, 12, 16)), 3)
    with pytest.raises(UserError, match=r"num_layers=3.*the pretrained one .*num_layers=2"):
        start_from(reads(write_folder()), model, getkey())


def test_logits_are_new(write_folder, getkey):
    pretrained = reads(write_folder())
    head = start_from(pretrained, Classifier(Encoder(pretrained.config), 3, hidden="tanh"), getkey())["params"]["head"]
    assert set(pretrained.head) == {"hidden"}
    assert not np.isin(head["logits"]["kernel"], bert_tensors()["classifier.weight"]).any()


HIDDEN = "bert.pooler.dense"
HEADS = {
    "dtype": ({f"{HIDDEN}.weight": np.ones((DIM, DIM), np.int8)}, f"1 not of F16, BF16, F32, F64: {HIDDEN}.weight"),
    "shape": ({f"{HIDDEN}.weight": np.ones((DIM, 4), np.float32)}, f"{HIDDEN}.weight is (8, 4), not (8, 8)"),
    "no axes": ({f"{HIDDEN}.bias": np.ones((), np.float32)}, f"{HIDDEN}.bias is (), not (8,)"),
    "halves and an encoder": (
        dict.fromkeys((f"{HIDDEN}.weight", "bert.embeddings.LayerNorm.bias")),
        f"2 missing: bert.embeddings.LayerNorm.bias, {HIDDEN}.weight",
    ),
}


@pytest.mark.parametrize(("others", "words"), HEADS.values(), ids=HEADS)
def test_a_head_that_does_not_fit_is_named_as_the_encoder_is(write_folder, others, words):
    tensors = {name: tensor for name, tensor in (bert_tensors() | others).items() if tensor is not None}
    assert_fails(reads, write_folder(tensors=tensors), words)
