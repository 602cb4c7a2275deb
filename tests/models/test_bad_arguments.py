"""Bad arguments of models: by the call, options with a bad last one, for each kind of error."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from tests.errors import assert_names
from tests.models import test_vit
from tests.models.test_decoder import SMALL as DECODER
from tests.models.test_encoder import SMALL as ENCODER
from tests.models.test_generation import PROMPTS
from tests.models.test_generation import SMALL as GENERATING
from tests.models.test_unrolled_classifier import MASK, TOKENS, classifier
from unroll_jax import fixed_point as fp
from unroll_jax import models as m
from unroll_jax.models.language import sampling
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


def shaped(model, x=None, **inputs):
    inputs = inputs if x is None else {"x": x, **inputs}
    return jax.eval_shape(lambda inputs: model.init(jax.random.key(0), **inputs), inputs)


def of_model(make, /, *names, **given):
    """A call of a model: of the options, those of these names go to it as inputs, and the others make it."""
    inputs = {name: given.pop(name) for name in names if name in given}

    def call(**options):
        replaced = {name: options.pop(name) for name in names if name in options}
        shaped(make(**given | options), **inputs | replaced)

    return call


def network(cls):
    def call(**options):
        images = cls in ON_IMAGES or options.get("convolutional")
        shaped(made(cls, options), np.ones(IMAGES if images else VECTORS, np.float32))

    return call


def decode(**options):
    call: dict[str, Any] = {"inputs": INTS, "cache": m.empty_cache(DECODER, 2, 4), "positions": INTS} | options
    return m.decode(DECODER, {}, **call)


def encoder_classifier(num_classes=2, **options):
    return m.Classifier(m.Encoder(ENCODER), num_classes, **options)


def generate(prompts=PROMPTS, max_tokens=5, **options):
    return m.generate(GENERATING, {}, prompts, max_tokens=max_tokens, **options)


def speculate(exit_layer=1, draft_length=2, **options):
    draft = {"exit_layer": exit_layer, "draft_length": draft_length}
    return m.speculate(GENERATING, {}, PROMPTS, max_tokens=5, **draft, **options)


CALLS: dict[str, Any] = {
    **{cls.__name__: network(cls) for cls in DENSE},
    "BehindStem": lambda stem: shaped(m.BehindStem(m.FeedForwardNetwork(3), stem), np.ones(IMAGES, np.float32)),
    "DecoderConfig": lambda **options: m.DecoderConfig(30, **options),
    "RotaryScaling": lambda **options: m.RotaryScaling(**{"kind": "llama3", "factor": 8.0} | options),
    "Decoder": of_model(m.Decoder, "tokens", "positions", "segments", "perturbation", config=DECODER, tokens=INTS),
    "decode": decode,
    "empty_cache": lambda capacity=4, batch=1: m.empty_cache(DECODER, batch, capacity),
    "low_rank_changes": lambda rank: low_rank_changes(jax.random.key(0), DECODER, rank=rank),
    "EncoderConfig": lambda **options: m.EncoderConfig(30, **options),
    "Encoder": of_model(m.Encoder, "tokens", "mask", "token_types", "perturbation", config=ENCODER, tokens=INTS),
    "Classifier": of_model(encoder_classifier, "tokens", tokens=INTS),
    "UnrolledClassifier": of_model(
        classifier, "tokens", "mask", "token_types", "perturbation", tokens=TOKENS, mask=MASK
    ),
    "ViTConfig": lambda **options: dataclasses.replace(test_vit.SMALL, **options),
    "ViT": of_model(m.ViT, "x", "mask", config=test_vit.SMALL, x=FLOAT),
    "DUST": of_model(m.DUST, "x", "mask", dim=4, num_atoms=7, num_layers=3, x=FLOAT, mask=MASK_5),
    "UnrolledTransformer": of_model(m.UnrolledTransformer, "x", "mask", dim=4, num_layers=1, x=FLOAT),
    "LISTA": of_model(m.LISTA, "x", "z", dim=4, num_atoms=7, num_layers=3, x=FLOAT),
    "Sampling": m.Sampling,
    "row_keys": lambda key: sampling.row_keys(key, 3),
    "next_tokens": lambda keys: sampling.next_tokens(np.zeros((1, 3)), m.Sampling(1.0), keys, np.zeros(1, int)),
    "log_probabilities": lambda temperature: sampling.log_probabilities(np.zeros((1, 3)), m.Sampling(temperature)),
    "generate": generate,
    "speculate": speculate,
}
# Options by model or function; the last is bad.
VALUES = """
DeepOptEq: num_classes=0; features=0; channels=0; norm_steps=0; pool=0; regulariser_smoothness=0.0; skip=0.0;
    max_norm=0.0; regulariser_step=0.0; tol=0.0; widths=(); widths=(4, 0); input_layers=(0, 1); input_layers=(3,);
    way="unrolled", num_steps=0; way="explicit"; way="unrolled", adjoint="gmres"; way="averaged", solver="picard";
    way="averaged", regulariser="half_square", regulariser_smoothness=2.0; regulariser="l1"; activation="gelu";
    convolutional=True, kernel_size=2; convolutional=True, pool=5
MonotoneOperatorNetwork: num_classes=0; channels=0; margin=-1.0; convolutional=True, kernel_size=2;
    convolutional=True, pool=9
FeedForwardNetwork: num_classes=0; widths=(0,); features=-1; activation="gelu"
NeuralODE: augment=-1; tol=0.0; max_steps=0
FullyConvolutionalNetwork: num_classes=0; widths=(0,)
DeepOptEqSegmenter: num_classes=0; stem=(4, 0); way="both"
BehindStem: stem=(4, 0)
DecoderConfig: dim=0; num_key_value_heads=5; num_heads=24; head_dim=7; rotary_base=1.0; norm_epsilon=2.0
RotaryScaling: kind="yarn"; factor=0.5; low_frequency_factor=5.0; original_positions=0
Decoder: tokens=np.ones((2, 41), np.int32); segments=np.ones((2, 4), np.int32); perturbation=np.ones((2, 5))
decode: last=4; first=1; inputs=INTS[:, :4]; cache=m.empty_cache(DECODER, 3, 4)
empty_cache: batch=0; capacity=41
low_rank_changes: rank=0
EncoderConfig: dim=0; num_heads=5; token_types=-1; activation="mish"; norm_epsilon=2.0; padding_token=30
Encoder: tokens=np.ones((2, 11), np.int32); tokens=np.ones((2, 0), np.int32); mask=np.ones((2, 4), bool);
    token_types=np.ones(5, np.int32); perturbation=np.ones((2, 5))
Classifier: num_classes=0; pooling="last"; hidden="gelu"
UnrolledClassifier: mask=MASK[:, :0], tokens=TOKENS[:, :0]; token_types=TOKENS[:1]; mask=MASK[:1];
    perturbation=np.zeros((2, 5, 1)); max_positions=0; max_positions=4
ViTConfig: num_patches=0; num_heads=3; activation="mish"; reading="decoder"; reading="state", dim=6; std=0.0; mean=NAN
ViT: x=np.ones((2, 6, 4), np.float32); x=FLOAT[0]; mask=np.ones(6, bool)
DUST: num_layers=0; num_atoms=0; sparsity=-1.0; attention_scale=0.0; train_attention=True, attention_scale=0.0;
    form="softmax", self_loops=False; x=FLOAT[:, :3]; x=FLOAT[0];
    mask=np.ones(6, bool)
UnrolledTransformer: num_layers=0; rank=0; x=FLOAT[:, :3]; x=FLOAT[0]; mask=np.ones(6, bool)
LISTA: num_atoms=0; num_layers=0; sparsity=-0.1; sparsity=NAN; noise=-1.0; x=FLOAT[:, :3];
    z=np.ones((4, 7), np.float32)
Sampling: temperature=-1.0; temperature=NAN; temperature=1.0, top_k=0; top_p=0.9; temperature=1.0, top_p=0.0;
    temperature=1.0, top_p=1.5
row_keys: key=jax.random.split(jax.random.key(0))
next_tokens: keys=None
log_probabilities: temperature=0.0
generate: max_tokens=0; max_tokens=60; noise=-0.1; temperature=-1.0; key=0, temperature=1.0, top_k=31;
    noise=0.1, key=None; temperature=1.0, key=None; prompts=[]
speculate: exit_layer=0; exit_layer=4; draft_length=0; temperature=1.0, key=None
"""
TYPES = """
DeepOptEq: regulariser=3
Decoder: positions=np.ones((2, 5))
Encoder: tokens=np.ones((2, 5), np.float32); mask=INTS; perturbation=np.ones((2, 5, 8), int)
UnrolledClassifier: tokens=TOKENS.astype(np.float32); mask=MASK.astype(np.int32);
    perturbation=np.zeros((2, 5, 4), np.int32)
ViT: x=np.ones((5, 4), np.uint8); mask=np.ones(5, np.int32)
DUST: x=np.ones((5, 4), np.uint8); mask=np.ones(5, np.int32)
UnrolledTransformer: x=np.ones((5, 4), np.uint8); mask=np.ones(5, np.int32)
LISTA: x=np.ones((5, 4), int)
row_keys: key=jax.random.PRNGKey(0)
"""
ROWS = [
    (error, *line.split(": ", 1))
    for error, table in ((ValueError, VALUES), (TypeError, TYPES))
    for line in table.strip().replace("\n    ", " ").splitlines()
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("error", "name", "rows"), ROWS, ids=lambda value: getattr(value, "__name__", value)[:20])
def test_a_bad_option_is_named(error, name, rows):
    for options in rows.split(";"):
        assert_names(error, CALLS[name], eval(f"dict({options})", globals()))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("prompts", [[[1], []], [[3], [1] * 56], [[3], [1, 30]], [[3], [0.5]]], ids=str)
def test_a_bad_prompt_is_named_by_its_number(prompts):
    with pytest.raises(ValueError, match="prompt 1 must"):
        m.generate(GENERATING, {}, prompts, max_tokens=5)


@pytest.mark.usefixtures("unchecked")
def test_options_that_exclude_each_other_are_refused():
    averaged = {"way": "averaged", "regulariser": "half_square"}
    for options in ({"solver": fp.averaged(), **averaged}, {"way": "averaged", "regulariser": "absolute"}):
        assert_names(ValueError, network(m.DeepOptEq), options, name="regulariser")


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
