"""A small decoder, prompts of different lengths, and answers of full passes of the reference, without a cache."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.models import decoder_reference
from tests.models.drawing import drawn, float64
from unroll_jax.models import Decoder, DecoderConfig
from unroll_jax.models.language.sampling import position_noise

SMALL = DecoderConfig(
    30, dim=8, num_layers=4, num_heads=4, num_key_value_heads=2, hidden_dim=12, max_positions=60, rotary_base=100.0
)
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [5]]


def small_params(seed=0, dtype=jnp.float32, config=SMALL):
    model = Decoder(config, param_dtype=dtype)
    return drawn(model, jax.ShapeDtypeStruct((1, 1), jnp.int32), scale=0.6, seed=seed)["params"]


def named_by_layers(params, text, key=None, noise=0.0, config=SMALL):
    added = None
    if key is not None:
        added = noise * np.asarray(position_noise(key[None], jnp.arange(len(text))[None], config.dim)[0], np.float64)
    weights = float64(params)
    states = decoder_reference.outputs(weights, text, config, perturbation=added)
    return np.argmax(decoder_reference.logits(weights, states, config), axis=-1)


def expected_answer(params, prompt, count, key=None, noise=0.0):
    text = list(prompt)
    while len(text) < len(prompt) + count:
        text.append(int(named_by_layers(params, text, key, noise)[-1, -1]))
    return text[len(prompt) :]
