"""An encoder as its papers have it, in float64 NumPy: one sequence without padding,
head by head."""

import math

import numpy as np

from tests.models.decoder_reference import of_layer, softmax

ACTIVATIONS = {
    "gelu": lambda x: 0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0))),
    "gelu_tanh": lambda x: (
        0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "relu": lambda x: np.maximum(x, 0.0),
    "silu": lambda x: x / (1.0 + np.exp(-x)),
}


def layer_norm(x, params, epsilon):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return scaled * params["scale"] + params["bias"]


def dense(x, params):
    return x @ params["kernel"] + params["bias"]


def embed(params, tokens, config, *, token_types=None, perturbation=None):
    total = params["word"]["embedding"][tokens]
    if perturbation is not None:
        total = total + perturbation
    total = (
        total
        + params["position"]["embedding"][
            np.arange(len(tokens)) + config.position_offset
        ]
    )
    if config.token_types:
        kinds = np.zeros(len(tokens), int) if token_types is None else token_types
        total = total + params["token_type"]["embedding"][kinds]
    return layer_norm(total, params["norm"], config.norm_epsilon)


def attention(params, y, config):
    queries, keys, values = np.split(dense(y, params["query_key_value"]), 3, axis=-1)
    size = config.dim // config.num_heads
    heads = []
    for head in range(config.num_heads):
        columns = slice(head * size, (head + 1) * size)
        scores = queries[:, columns] @ keys[:, columns].T / math.sqrt(size)
        heads.append(softmax(scores) @ values[:, columns])
    return dense(np.concatenate(heads, axis=-1), params["attention_output"])


def feed_forward(params, y, config):
    return dense(
        ACTIVATIONS[config.activation](dense(y, params["hidden"])), params["output"]
    )


def layer(params, y, config, factors=(1.0, 1.0)):
    epsilon = config.norm_epsilon
    y = y + factors[0] * attention(params, y, config)
    y = layer_norm(y, params["attention_norm"], epsilon)
    y = y + factors[1] * feed_forward(params, y, config)
    return layer_norm(y, params["output_norm"], epsilon)


def layer_norm_first(params, y, config, factors=(1.0, 1.0)):
    epsilon = config.norm_epsilon
    normed = layer_norm(y, params["attention_norm"], epsilon)
    y = y + factors[0] * attention(params, normed, config)
    normed = layer_norm(y, params["output_norm"], epsilon)
    return y + factors[1] * feed_forward(params, normed, config)


def outputs(params, tokens, config, **inputs):
    """The outputs of layers 0..L, (L + 1, n, dim). Params are the module's, as
    float64 NumPy arrays."""
    states = [embed(params["embeddings"], np.asarray(tokens), config, **inputs)]
    for place in range(config.num_layers):
        states.append(layer(of_layer(params["layers"], place), states[-1], config))
    return np.stack(states)
