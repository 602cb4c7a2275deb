"""A decoder as its papers have it, in float64 NumPy: one text, head by head,
rotations by complex numbers."""

import math

import jax
import numpy as np
import scipy.special


def rms_norm(x, scale, epsilon):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * scale


def softmax(scores):
    return scipy.special.softmax(scores, axis=-1)


def frequency(place, size, base, scaling):
    """The frequency of pair ``place`` of a head, as Meta's code of Llama 3.1
    computes it."""
    unscaled = 1.0 / base ** (2 * place / size)
    if scaling is None:
        return unscaled
    if scaling.kind == "linear":
        return unscaled / scaling.factor
    wavelength = 2 * math.pi / unscaled
    if wavelength < scaling.original_positions / scaling.high_frequency_factor:
        return unscaled
    if wavelength > scaling.original_positions / scaling.low_frequency_factor:
        return unscaled / scaling.factor
    smooth = scaling.original_positions / wavelength - scaling.low_frequency_factor
    smooth /= scaling.high_frequency_factor - scaling.low_frequency_factor
    return (1 - smooth) * unscaled / scaling.factor + smooth * unscaled


def rotated(x, positions, config):
    half = x.shape[-1] // 2
    speeds = np.array(
        [
            frequency(j, 2 * half, config.rotary_base, config.rotary_scaling)
            for j in range(half)
        ]
    )
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(
        1j * np.asarray(positions)[:, None] * speeds
    )
    return np.concatenate([turned.real, turned.imag], axis=-1)


def layer(params, y, config, positions, factors=(1.0, 1.0)):
    size = config.head_size
    shared = config.num_heads // config.num_key_value_heads
    normed = rms_norm(y, params["attention_norm"]["scale"], config.norm_epsilon)
    queries, keys, values = (
        normed @ params[name]["kernel"] + params[name].get("bias", 0.0)
        for name in ("query", "key", "value")
    )
    hidden = np.triu(np.full((len(y), len(y)), -np.inf), 1)

    def turned(x, name):
        if config.qk_norm:
            x = rms_norm(x, params[f"{name}_norm"]["scale"], config.norm_epsilon)
        return rotated(x, positions, config)

    heads = []
    for head in range(config.num_heads):
        columns, group = (
            slice(place * size, (place + 1) * size) for place in (head, head // shared)
        )
        query = turned(queries[:, columns], "query")
        key = turned(keys[:, group], "key")
        scores = query @ key.T / math.sqrt(size) + hidden
        heads.append(softmax(scores) @ values[:, group])
    attended = np.concatenate(heads, axis=-1) @ params["output"]["kernel"]
    y = y + factors[0] * attended
    normed = rms_norm(y, params["feedforward_norm"]["scale"], config.norm_epsilon)
    gate = normed @ params["gate"]["kernel"]
    active = gate / (1 + np.exp(-gate)) * (normed @ params["up"]["kernel"])
    return y + factors[1] * (active @ params["down"]["kernel"])


def of_layer(layers, place):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[place], layers)


def outputs(params, tokens, config, *, positions=None, perturbation=None):
    """The outputs of layers 0..L, (L + 1, n, dim). Params are the module's, as
    float64 NumPy arrays."""
    positions = np.arange(len(tokens)) if positions is None else positions
    states = [
        params["embedding"][np.asarray(tokens)]
        + (0.0 if perturbation is None else perturbation)
    ]
    for place in range(config.num_layers):
        weights = of_layer(params["layers"], place)
        states.append(layer(weights, states[-1], config, positions))
    return np.stack(states)


def logits(params, states, config):
    head = params["embedding"] if config.tied else params["head"]["embedding"]
    return rms_norm(states, params["norm"]["scale"], config.norm_epsilon) @ head.T
