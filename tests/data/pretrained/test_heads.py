"""The head of a checkpoint: read whole or refused, and taken by a classifier of the same classes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.data.pretrained.conftest import DIM, bert_tensors
from tests.errors import assert_fails
from unroll_jax.models import Classifier, Encoder, EncoderConfig
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.pretrained.encoders import keeps_logits, load_pretrained, start_from

NAMES = ["good", "bad", "neither"]
load = functools.partial(load_pretrained, log=lambda line: None)


def reads(folder):
    return load(str(folder))


def test_a_classifier_starts_from_what_fits_it(write_folder, getkey):
    pretrained = reads(write_folder())
    encoder = Encoder(pretrained.config)
    cases = {
        ("hidden", "logits"): Classifier(encoder, 3, hidden="tanh"),
        ("hidden",): Classifier(encoder, 2, hidden="tanh"),
        (): Classifier(encoder, 3),
    }

    @jax.jit
    def start(key):
        starts = {taken: (model, NAMES[: model.num_classes]) for taken, model in cases.items()}
        return [start_from(pretrained, model, key, class_names=names) for model, names in starts.values()]

    for (taken, model), started in zip(cases.items(), start(getkey()), strict=True):
        params = started["params"]
        jax.tree.map(np.testing.assert_array_equal, params["encoder"], pretrained.params)
        for name, layer in params["head"].items():
            given = pretrained.head[name]["kernel"]
            given = given[:, [1, 0, 2]] if name == "logits" else given
            assert np.array_equal(layer["kernel"], given) == (name in taken)
        logits = jax.eval_shape(model.apply, started, jax.ShapeDtypeStruct((2, 4), jnp.int32))
        assert logits.shape == (3, 2, model.num_classes)


def test_a_classifier_of_another_encoder_is_refused(write_folder, getkey):
    model = Classifier(Encoder(EncoderConfig(20, 8, 3, 2, 12, 16)), 3)
    with pytest.raises(UserError, match=r"num_layers=3.*the pretrained one .*num_layers=2"):
        start_from(reads(write_folder()), model, getkey(), class_names="abc")


NLI = {"0": "CONTRADICTION", "1": "NEUTRAL", "2": "ENTAILMENT"}
ORDERS = {
    "the same names": (NLI, ("contradiction", "neutral", "entailment"), [0, 1, 2]),
    "another order": (NLI, ("entailment", "neutral", "contradiction"), [2, 1, 0]),
    "an order that is not its own inverse": (NLI, ("neutral", "entailment", "contradiction"), [1, 2, 0]),
    "no names": (None, ("entailment", "neutral", "contradiction"), [0, 1, 2]),
    "other names": (NLI, ("good", "bad", "neither"), None),
    "a name twice": (NLI, ("neutral", "Neutral", "entailment"), None),
    "fewer classes": (NLI, ("neutral", "entailment"), None),
}


@pytest.mark.parametrize(("id2label", "class_names", "order"), ORDERS.values(), ids=ORDERS)
def test_logits_go_to_the_classes_of_their_names_or_are_new(write_folder, getkey, id2label, class_names, order):
    pretrained = reads(write_folder(config={"id2label": id2label}))
    model = Classifier(Encoder(pretrained.config), len(class_names), hidden="tanh")
    head = start_from(pretrained, model, getkey(), class_names=class_names)["params"]["head"]
    assert keeps_logits(pretrained, model, class_names) == (order is not None)
    tensors, logits = bert_tensors(), head["logits"]
    if order is None:
        assert not np.isin(logits["kernel"], tensors["classifier.weight"]).any()
        return
    np.testing.assert_array_equal(logits["kernel"].T, tensors["classifier.weight"][order])
    np.testing.assert_array_equal(logits["bias"], tensors["classifier.bias"][order])


def test_logits_of_the_first_token_are_not_taken_for_the_mean(write_folder, getkey):
    pretrained = reads(write_folder())
    model = Classifier(Encoder(pretrained.config), 3, "mean", "tanh")
    head = start_from(pretrained, model, getkey(), class_names=pretrained.classes)["params"]["head"]
    np.testing.assert_array_equal(head["hidden"]["kernel"], pretrained.head["hidden"]["kernel"])
    assert not np.isin(head["logits"]["kernel"], pretrained.head["logits"]["kernel"]).any()
    assert not keeps_logits(pretrained, model, pretrained.classes)


HEADS = {
    "dtype": (
        {"bert.pooler.dense.weight": np.ones((DIM, DIM), np.int8), "classifier.weight": np.ones((3, DIM), np.int32)},
        ["2 not of F16, BF16, F32, F64: bert.pooler.dense.weight, classifier.weight"],
    ),
    "shape": (
        {"bert.pooler.dense.weight": np.ones((DIM, 4), np.float32), "classifier.bias": np.ones(2, np.float32)},
        ["2 of another shape: bert.pooler.dense.weight is (8, 4), not (8, 8), classifier.bias is (2,), not (3,)"],
    ),
    "another width": (
        {"classifier.weight": np.ones((3, 4), np.float32)},
        ["classifier.weight is (3, 4), not (3, 8)"],
    ),
    "no axes": ({"classifier.weight": np.ones((), np.float32)}, ["classifier.weight is (), not (1, 8)"]),
    "no bias": ({"classifier.bias": None}, ["1 missing: classifier.bias"]),
    "halves and an encoder": (
        dict.fromkeys(("bert.pooler.dense.weight", "classifier.weight", "bert.embeddings.LayerNorm.bias")),
        ["3 missing: bert.embeddings.LayerNorm.bias, bert.pooler.dense.weight, classifier.weight"],
    ),
}


@pytest.mark.parametrize(("others", "words"), HEADS.values(), ids=HEADS)
def test_a_head_that_does_not_fit_is_named_as_the_encoder_is(write_folder, others, words):
    tensors = {name: tensor for name, tensor in (bert_tensors() | others).items() if tensor is not None}
    assert_fails(reads, write_folder(tensors=tensors), *words)


def test_logits_without_the_layer_before_them_are_those_of_another_task(write_folder):
    tensors = {name: tensor for name, tensor in bert_tensors().items() if "pooler" not in name}
    pretrained = reads(write_folder(tensors=tensors))
    assert (pretrained.head, pretrained.classes) == ({}, ())
