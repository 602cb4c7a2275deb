"""Models given what they cannot take: by the call, options of which the last is bad, for each kind of error."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from tests.errors import assert_names
from tests.models import test_dust, test_vit
from tests.models.generating import PROMPTS
from tests.models.generating import SMALL as GENERATING
from tests.models.test_decoder import SMALL as DECODER
from tests.models.test_encoder import SMALL as ENCODER
from tests.models.test_unrolled_classifier import MASK, TOKENS, classifier
from unroll_jax import fixed_point as fp
from unroll_jax import models as m
from unroll_jax.models.language.low_rank import low_rank_changes

NAN = float("nan")
VECTORS, IMAGES = (2, 4), (2, 4, 4, 1)
DENSE: dict[type, dict[str, Any]] = {
    m.DeepOptEq: {"channels": 4, "widths": (4, 4)},
    m.MonotoneOperatorNetwork: {"channels": 4},
    m.FeedForwardNetwork: {},
    m.NeuralODE: {},
    m.FullyConvolutionalNetwork: {"widths": (4, 3), "stem": (3, 5)},
    m.DeepOptEqSegmenter: {"channels": 4, "widths": (4, 3), "stem": (3, 5)},
}
ON_IMAGES = (m.FullyConvolutionalNetwork, m.DeepOptEqSegmenter)
FLOAT, INTS, MASK_5 = np.ones((5, 4), np.float32), np.ones((2, 5), np.int32), np.ones(5, bool)


def made(cls, options):
    dense = {} if cls in ON_IMAGES else {"convolutional": False}
    return cls(**{"num_classes": 3, **dense, **DENSE[cls], **options})


def shaped(model, *inputs, **options):
    """Initialises a model by shapes alone."""
    return jax.eval_shape(lambda given, options: model.init(jax.random.key(0), *given, **options), inputs, options)


def network(cls):
    def call(**options):
        images = cls in ON_IMAGES or options.get("convolutional")
        shaped(made(cls, options), np.ones(IMAGES if images else VECTORS, np.float32))

    return call


def decode(**options):
    call: dict[str, Any] = {"inputs": INTS, "cache": m.empty_cache(DECODER, 2, 4), "positions": INTS} | options
    return m.decode(DECODER, {}, **call)


def unrolled_classifier(max_positions=None, tokens=TOKENS, mask=MASK, **options):
    shaped(classifier(max_positions=max_positions), tokens, mask, **options)


def dust(**options):
    return shaped(m.DUST(**{"dim": 4, "num_atoms": 7, "num_layers": 3} | options), FLOAT)


AVERAGED = {"way": "averaged", "regulariser": "half_square"}
# By model or function: how it is called, and its options by kind of error.
CALLS: dict[str, tuple[Any, list[dict[str, Any]], list[dict[str, Any]]]] = {
    "DeepOptEq": (
        network(m.DeepOptEq),
        [
            *({name: 0} for name in ("num_classes", "features", "channels", "norm_steps", "pool")),
            *({name: 0.0} for name in ("regulariser_smoothness", "skip", "max_norm", "regulariser_step", "tol")),
            *({"widths": widths} for widths in ((), (4, 0))),
            *({"input_layers": layers} for layers in ((0, 1), (3,))),
            {"way": "unrolled", "num_steps": 0},
            {"way": "explicit"},
            {"way": "unrolled", "adjoint": "gmres"},
            {"way": "averaged", "solver": "picard"},
            {**AVERAGED, "regulariser_smoothness": 2.0},
            {"regulariser": "l1"},
            {"activation": "gelu"},
            {"convolutional": True, "kernel_size": 2},
            {"convolutional": True, "pool": 5},
        ],
        [{"regulariser": 3}],
    ),
    "MonotoneOperatorNetwork": (
        network(m.MonotoneOperatorNetwork),
        [
            *({"num_classes": 0}, {"channels": 0}, {"margin": -1.0}, {"splitting": "admm"}),
            *({"convolutional": True, "kernel_size": 2}, {"convolutional": True, "pool": 9}),
        ],
        [],
    ),
    "FeedForwardNetwork": (
        network(m.FeedForwardNetwork),
        [{"num_classes": 0}, {"widths": (0,)}, {"features": -1}, {"activation": "gelu"}],
        [],
    ),
    "NeuralODE": (network(m.NeuralODE), [{"augment": -1}, {"tol": 0.0}, {"max_steps": 0}], []),
    "FullyConvolutionalNetwork": (network(m.FullyConvolutionalNetwork), [{"num_classes": 0}, {"widths": (0,)}], []),
    "DeepOptEqSegmenter": (network(m.DeepOptEqSegmenter), [{"num_classes": 0}, {"stem": (4, 0)}, {"way": "both"}], []),
    "BehindStem": (
        lambda stem: shaped(m.BehindStem(m.FeedForwardNetwork(3), stem), np.ones(IMAGES, np.float32)),
        [{"stem": (4, 0)}],
        [],
    ),
    "DecoderConfig": (
        lambda **options: m.DecoderConfig(30, **options),
        [
            *({"dim": 0}, {"num_key_value_heads": 5}, {"num_heads": 24}, {"head_dim": 7}),
            *({"rotary_base": 1.0}, {"norm_epsilon": 2.0}),
        ],
        [],
    ),
    "RotaryScaling": (
        lambda **options: m.RotaryScaling(**{"kind": "llama3", "factor": 8.0} | options),
        [{"kind": "yarn"}, {"factor": 0.5}, {"low_frequency_factor": 5.0}, {"original_positions": 0}],
        [],
    ),
    "Decoder": (
        lambda tokens=INTS, **options: shaped(m.Decoder(DECODER), tokens, **options),
        [
            {"tokens": np.ones((2, 41), np.int32)},
            {"segments": np.ones((2, 4), np.int32)},
            {"perturbation": np.ones((2, 5))},
        ],
        [{"positions": np.ones((2, 5))}],
    ),
    "decode": (
        decode,
        [{"last": 4}, {"first": 1}, {"inputs": INTS[:, :4]}, {"cache": m.empty_cache(DECODER, 3, 4)}],
        [],
    ),
    "empty_cache": (
        lambda capacity=4, batch=1: m.empty_cache(DECODER, batch, capacity),
        [{"batch": 0}, {"capacity": 41}],
        [],
    ),
    "low_rank_changes": (lambda rank: low_rank_changes(jax.random.key(0), DECODER, rank=rank), [{"rank": 0}], []),
    "EncoderConfig": (
        lambda **options: m.EncoderConfig(30, **options),
        [
            *({"dim": 0}, {"num_heads": 5}, {"token_types": -1}, {"activation": "mish"}),
            *({"norm_epsilon": 2.0}, {"padding_token": 30}),
        ],
        [],
    ),
    "Encoder": (
        lambda tokens=INTS, **options: shaped(m.Encoder(ENCODER), tokens, **options),
        [
            {"tokens": np.ones((2, 11), np.int32)},
            {"tokens": np.ones((2, 0), np.int32)},
            {"mask": np.ones((2, 4), bool)},
            {"token_types": np.ones(5, np.int32)},
            {"perturbation": np.ones((2, 5))},
        ],
        [{"tokens": np.ones((2, 5), np.float32)}, {"mask": INTS}, {"perturbation": np.ones((2, 5, 8), int)}],
    ),
    "Classifier": (
        lambda num_classes=2, **options: shaped(m.Classifier(m.Encoder(ENCODER), num_classes, **options), INTS),
        [{"num_classes": 0}, {"pooling": "last"}, {"hidden": "gelu"}],
        [],
    ),
    "UnrolledClassifier": (
        unrolled_classifier,
        [
            {"mask": MASK[:, :0], "tokens": TOKENS[:, :0]},
            {"token_types": TOKENS[:1]},
            {"mask": MASK[:1]},
            {"perturbation": np.zeros((2, 5, 1))},
            *({"max_positions": number} for number in (0, 4)),
        ],
        [
            {"tokens": TOKENS.astype(np.float32)},
            {"mask": MASK.astype(np.int32)},
            {"perturbation": np.zeros((2, 5, 4), np.int32)},
        ],
    ),
    "ViTConfig": (
        lambda **options: dataclasses.replace(test_vit.SMALL, **options),
        [
            *({"num_patches": 0}, {"num_heads": 3}, {"activation": "mish"}, {"reading": "decoder"}),
            *({"reading": "state", "dim": 6}, {"std": 0.0}, {"mean": NAN}),
        ],
        [],
    ),
    "ViT": (
        lambda x=FLOAT, **options: shaped(m.ViT(test_vit.SMALL), x, **options),
        [{"x": np.ones((2, 6, 4), np.float32)}, {"x": FLOAT[0]}, {"mask": np.ones(6, bool)}],
        [{"x": np.ones((5, 4), np.uint8)}, {"mask": np.ones(5, np.int32)}],
    ),
    "DUST": (
        dust,
        [
            *({"num_layers": 0}, {"num_atoms": 0}, {"sparsity": -1.0}, {"attention_scale": 0.0}),
            {"train_attention": True, "attention_scale": 0.0},
            {"form": "softmax", "self_loops": False},
            {"measurement": np.ones((2, 5))},
        ],
        [],
    ),
    "DUST of inputs": (
        lambda x=FLOAT, mask=MASK_5, measurement=None: shaped(test_dust.make(measurement=measurement), x, mask),
        [
            *({"x": FLOAT[:, :3]}, {"x": FLOAT[0]}, {"measurement": test_dust.PHI, "x": FLOAT}),
            {"mask": np.ones(6, bool)},
        ],
        [{"x": np.ones((5, 4), np.uint8)}, {"mask": np.ones(5, np.int32)}],
    ),
    "UnrolledTransformer": (
        lambda num_layers=1, x=FLOAT, mask=None, **options: shaped(
            m.UnrolledTransformer(4, num_layers, **options), x, mask
        ),
        [{"num_layers": 0}, {"rank": 0}, {"x": FLOAT[:, :3]}, {"x": FLOAT[0]}, {"mask": np.ones(6, bool)}],
        [{"x": np.ones((5, 4), np.uint8)}, {"mask": np.ones(5, np.int32)}],
    ),
    "LISTA": (
        lambda **options: shaped(m.LISTA(**{"dim": 4, "num_atoms": 7, "num_layers": 3} | options), FLOAT),
        [{"num_atoms": 0}, {"num_layers": 0}, {"sparsity": -0.1}, {"sparsity": NAN}, {"noise": -1.0}],
        [],
    ),
    "LISTA of inputs": (
        lambda x=FLOAT, z=None: shaped(m.LISTA(4, 7, 3), x, z),
        [{"x": FLOAT[:, :3]}, {"z": np.ones((4, 7), np.float32)}],
        [{"x": np.ones((5, 4), int)}],
    ),
    "Sampling": (
        m.Sampling,
        [
            *({"temperature": -1.0}, {"temperature": NAN}, {"temperature": 1.0, "top_k": 0}, {"top_p": 0.9}),
            *({"temperature": 1.0, "top_p": share} for share in (0.0, 1.5)),
        ],
        [],
    ),
    "generate": (
        lambda prompts=PROMPTS, max_tokens=5, **options: m.generate(
            GENERATING, {}, prompts, max_tokens=max_tokens, **options
        ),
        [
            *({"max_tokens": number} for number in (0, 60)),
            *({"noise": -0.1}, {"temperature": -1.0}, {"key": 0, "temperature": 1.0, "top_k": 31}),
            *({"noise": 0.1, "key": None}, {"temperature": 1.0, "key": None}, {"prompts": []}),
        ],
        [],
    ),
    "speculate": (
        lambda exit_layer=1, draft_length=2, **options: m.speculate(
            GENERATING, {}, PROMPTS, exit_layer=exit_layer, draft_length=draft_length, max_tokens=5, **options
        ),
        [{"exit_layer": 0}, {"exit_layer": 4}, {"draft_length": 0}, {"temperature": 1.0, "key": None}],
        [],
    ),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", CALLS)
def test_a_bad_option_is_named(name):
    call, values, types = CALLS[name]
    for error, rows in ((ValueError, values), (TypeError, types)):
        for options in rows:
            assert_names(error, call, options)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("prompts", [[[1], []], [[3], [1] * 56], [[3], [1, 30]], [[3], [0.5]]], ids=str)
def test_a_bad_prompt_is_named_by_its_number(prompts):
    with pytest.raises(ValueError, match="prompt 1 must"):
        m.generate(GENERATING, {}, prompts, max_tokens=5)


@pytest.mark.usefixtures("unchecked")
def test_options_that_exclude_each_other_are_refused():
    for options in ({"solver": fp.averaged(), **AVERAGED}, {"way": "averaged", "regulariser": "absolute"}):
        assert_names(ValueError, network(m.DeepOptEq), options, name="regulariser")
    with pytest.raises(ValueError, match=r"dct .* got shape \(1, 9, 4\)"):
        shaped(m.UnrolledTransformer(4, 1, rank=9), FLOAT)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("cls", DENSE)
def test_a_bad_input_is_named(cls):
    on_images = [made(cls, {} if cls in ON_IMAGES else {"convolutional": True}), m.BehindStem(m.FeedForwardNetwork(3))]
    for model in on_images:
        assert_names(ValueError, lambda x, model=model: shaped(model, x), {"x": np.ones(VECTORS, np.float32)})
        assert_names(TypeError, lambda x, model=model: shaped(model, x), {"x": np.ones(IMAGES, np.uint8)})
    if cls not in ON_IMAGES:
        for shape in ((), (2, 0)):
            assert_names(ValueError, lambda x: shaped(made(cls, {}), x), {"x": np.ones(shape, np.float32)})
