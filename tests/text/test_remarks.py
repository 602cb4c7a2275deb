"""What is said once, where a run starts from nothing."""

import pytest

from tests.data.pretrained.conftest import bert_tensors
from unroll_jax.train.config.text import EncoderOptions
from unroll_jax.train.tasks.text_data import load_inputs
from unroll_jax.train.tasks.text_models import build_model

TENSORS = bert_tensors() | {name: bert_tensors()[name][:2] for name in ("classifier.weight", "classifier.bias")}
DRAWN = (
    "the pretrained logits are of negative, positive behind a tanh layer on the first token, not the classes of "
    "training: new ones are drawn"
)


@pytest.fixture
def encoder(write_folder):
    """A folder whose head is of the classes of the built-in sentences, or of those of other names."""

    def write(*names):
        return str(write_folder(config={"id2label": {str(n): name for n, name in enumerate(names)}}, tensors=TENSORS))

    return write


@pytest.fixture
def model_of(small):
    """The model of an encoder's folder and options."""

    def build(folder, **options):
        config = small("text-encoder", model=EncoderOptions(pretrained=folder, **options))
        return build_model(config, load_inputs(config, lambda line: None))

    return build


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, "--model.hidden"),
        ({"pooling": "mean"}, "--model.hidden --model.pooling first"),
        ({"pooling": "mean", "hidden": True}, "--model.pooling first"),
    ],
)
def test_options_that_keep_the_pretrained_logits_are_named(model_of, encoder, fields, options):
    folder = encoder("negative", "positive")
    assert model_of(folder, **fields).remarks == (f"{DRAWN}; {options} keeps them",)
