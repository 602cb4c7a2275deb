"""Bad arguments of models: one line each, which names the argument."""

import dataclasses
import traceback

import jax
import numpy as np
import pytest

from tests.hostile.calls import calls
from tests.marks import types_unchecked
from tests.models.test_decoder import SMALL as DECODER
from tests.models.test_encoder import SMALL as ENCODER
from tests.models.test_generation import PROMPTS
from tests.models.test_generation import SMALL as GENERATING
from tests.models.test_unrolled_transformer import MASK, TOKENS, classifier
from tests.models.test_vit import SMALL as VIT
from unroll_jax import fixed_point as fp
from unroll_jax import models as m
from unroll_jax.models.language import sampling
from unroll_jax.models.language.low_rank import low_rank_changes

VECTORS = np.ones((2, 4), np.float32)
IMAGES = np.ones((2, 4, 4, 1), np.float32)
FLOAT = np.ones((5, 4), np.float32)
INTS = np.ones((2, 5), np.int32)


def shaped(model, *inputs, **named):
    jax.eval_shape(
        lambda inputs, named: model.init(jax.random.key(0), *inputs, **named),
        inputs,
        named,
    )


def of_vectors(cls, **options):
    shaped(cls(num_classes=3, convolutional=False, **options), VECTORS)


def of_images(cls, images=IMAGES, **options):
    shaped(cls(num_classes=3, **options), images)


def decode(inputs=INTS, cache=None, **options):
    cache = m.empty_cache(DECODER, 2, 4) if cache is None else cache
    m.decode(DECODER, {}, inputs=inputs, cache=cache, positions=INTS, **options)


def generate(prompts=PROMPTS, max_tokens=5, **options):
    m.generate(GENERATING, {}, prompts, max_tokens=max_tokens, **options)


def speculate(exit_layer=1, **options):
    m.speculate(
        GENERATING,
        {},
        PROMPTS,
        max_tokens=5,
        exit_layer=exit_layer,
        draft_length=2,
        **options,
    )


NAMES = {
    "TOKENS": TOKENS,
    "MASK": MASK,
    "classifier": classifier,
    "fp": fp,
    "sampling": sampling,
    "low_rank_changes": low_rank_changes,
    "vit_config": lambda **options: dataclasses.replace(VIT, **options),
    "decoder": m.Decoder(DECODER),
    "encoder": m.Encoder(ENCODER),
    "vit": m.ViT(VIT),
    "dust": lambda num_layers=3, **options: m.DUST(4, 7, num_layers, **options),
    "unrolled": lambda num_layers=1: m.UnrolledTransformer(4, num_layers),
    "lista": lambda num_atoms=7: m.LISTA(4, num_atoms, 3),
}
TABLE = """
TypeError
regulariser: of_vectors(m.DeepOptEq, regulariser=3)
positions: shaped(decoder, INTS, positions=np.ones((2, 5)))
tokens: shaped(classifier(), TOKENS.astype(np.float32), MASK)
mask: shaped(encoder, INTS, mask=INTS); shaped(unrolled(), FLOAT, mask=np.ones(5, np.int32))
perturbation: shaped(encoder, INTS, perturbation=np.ones((2, 5, 8), int))
x: shaped(vit, FLOAT.astype(np.uint8)); shaped(unrolled(), FLOAT.astype(np.uint8)); shaped(lista(), FLOAT.astype(int));
    of_images(m.FeedForwardNetwork, IMAGES.astype(np.uint8))
key: sampling.row_keys(jax.random.PRNGKey(0), 3)
ValueError
widths: of_vectors(m.DeepOptEq, widths=()); of_vectors(m.FeedForwardNetwork, widths=(0,))
input_layers: of_vectors(m.DeepOptEq, input_layers=(4,))
adjoint: of_vectors(m.DeepOptEq, gradient="unrolled", adjoint="gmres")
solver: of_vectors(m.DeepOptEq, gradient="averaged", solver="picard")
regulariser: of_vectors(m.DeepOptEq, gradient="averaged", regulariser="half_square", solver=fp.averaged());
    of_vectors(m.DeepOptEq, gradient="averaged", regulariser="absolute")
regulariser_smoothness: of_vectors(m.DeepOptEq, gradient="averaged", regulariser="half_square", regulariser_smoothness=2.0)
max_norm: of_vectors(m.DeepOptEq, max_norm=0.0)
gradient: of_vectors(m.DeepOptEq, gradient="explicit")
reading: vit_config(reading="decoder")
std: vit_config(std=0.0)
rotary_base: m.DecoderConfig(30, rotary_base=1.0)
norm_epsilon: m.DecoderConfig(30, norm_epsilon=2.0); m.EncoderConfig(30, norm_epsilon=2.0)
sparsity: shaped(m.LISTA(4, 7, 3, sparsity=-0.1), FLOAT)
noise: generate(noise=-0.1, key=jax.random.key(0))
dropout: shaped(m.Encoder(ENCODER, dropout=1.0), INTS); shaped(m.Encoder(ENCODER, dropout=-0.1), INTS)
dropout_key: shaped(m.Encoder(ENCODER, dropout=0.3), INTS, dropout_key=jax.random.split(jax.random.key(0), 3))
tol: of_vectors(m.NeuralODE, tol=0.0)
pool: of_images(m.DeepOptEq, pool=5)
augment: of_vectors(m.NeuralODE, augment=-1)
stem: of_images(m.DeepOptEqSegmenter, stem=(4, 0))
num_key_value_heads: m.DecoderConfig(30, num_key_value_heads=5)
num_heads: m.DecoderConfig(30, num_heads=24); m.EncoderConfig(30, num_heads=5)
head_dim: m.DecoderConfig(30, head_dim=7)
kind: m.RotaryScaling("yarn", 8.0)
factor: m.RotaryScaling("llama3", 0.5)
low_frequency_factor: m.RotaryScaling("llama3", 8.0, low_frequency_factor=5.0)
tokens: shaped(decoder, np.ones((2, 41), np.int32)); shaped(encoder, INTS[:, :0])
segments: shaped(decoder, INTS, segments=INTS[:, :4])
perturbation: shaped(decoder, INTS, perturbation=np.ones((2, 5)))
last: decode(last=4)
first: decode(first=1)
inputs: decode(inputs=INTS[:, :4])
cache: decode(cache=m.empty_cache(DECODER, 3, 4))
capacity: m.empty_cache(DECODER, 1, 41)
rank: low_rank_changes(jax.random.key(0), DECODER, rank=0)
padding_token: m.EncoderConfig(30, padding_token=30)
mask: shaped(encoder, INTS, mask=np.ones((2, 4), bool)); shaped(unrolled(), FLOAT, mask=np.ones(6, bool))
token_types: shaped(encoder, INTS, token_types=np.ones(5, np.int32))
max_positions: shaped(classifier(max_positions=4), TOKENS, MASK)
dim: vit_config(reading="state", dim=6)
num_layers: shaped(dust(num_layers=0), FLOAT)
num_atoms: shaped(lista(num_atoms=0), FLOAT)
self_loops: shaped(dust(form="softmax", self_loops=False), FLOAT)
x: shaped(vit, np.ones((2, 6, 4), np.float32)); shaped(dust(), FLOAT[0]); shaped(lista(), FLOAT[:, :3]);
    of_images(m.FullyConvolutionalNetwork, VECTORS)
z: shaped(lista(), FLOAT, np.ones((4, 7), np.float32))
top_p: m.Sampling(top_p=0.9); m.Sampling(1.0, top_p=1.5)
temperature: m.Sampling(np.nan); sampling.log_probabilities(np.zeros((1, 3)), m.Sampling(0.0))
key: sampling.row_keys(jax.random.split(jax.random.key(0)), 3); generate(noise=0.1); speculate(temperature=1.0)
keys: sampling.next_tokens(np.zeros((1, 3)), m.Sampling(1.0), None, np.zeros(1, int))
max_tokens: generate(max_tokens=60)
top_k: generate(temperature=1.0, key=jax.random.key(0), top_k=31)
prompts: generate(prompts=[])
prompt 1: generate([[1], []]); generate([[3], [1, 30]])
exit_layer: speculate(exit_layer=4)
"""


@types_unchecked
@pytest.mark.parametrize(("error", "name", "expression"), list(calls(TABLE)))
def test_a_bad_argument_is_named(error, name, expression):
    with pytest.raises(error, match=rf"\b{name}\b") as caught:
        eval(expression, globals() | NAMES)
    assert "\n" not in str(caught.value)
    assert (
        "unroll_jax" in traceback.extract_tb(caught.value.__traceback__)[-1].filename
    ), "raised by JAX or Flax"
