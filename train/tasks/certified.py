"""Lipschitz constants of whole networks, from pixels to logits: what no attack within a radius can do."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.certificates import (
    conv_norm_bound,
    equilibrium_lipschitz,
    matrix_norm_bound,
    spectral_normalise,
)
from unroll_jax.energies.equilibrium.opteq_params import OptEqParams

from ..config.networks import OptEqConfig
from ..task import Params

ImageShape = tuple[int, int]


def lipschitz_bound(network: Any, params: Params, image_shape: ImageShape, std: Any) -> Float[Array, ""]:
    """A Lipschitz constant of the logits in pixels of [0, 1], both in the Euclidean norm; of a certifiable network.

    It is the product of those of its parts: 1 / std of the pixels, every convolution and dense layer, activations
    (1-Lipschitz, all of `MONOTONES`), the equilibrium (`equilibrium_lipschitz`), and the head. A convolution of stride
    2 leaves out outputs of the one that `conv_norm_bound` is of; the mean over n places has norm 1 / sqrt(n).

    Args:
      network: its options.
      params: of the module that `build` makes of them.
      image_shape: height and width of the pictures.
      std: what each channel is divided by.

    Returns:
      The constant, which can be differentiated in the parameters.
    """
    return _bound(params["params"], network, image_shape) / float(np.min(std))


def certified_radius(margin: Float[np.ndarray, "*batch"], lipschitz: float) -> Float[np.ndarray, "*batch"]:
    r"""Returns the radius in which pixels can move without changing the class: :math:`margin / (\sqrt 2 L)`.

    ``margin`` is the logit of the class less the largest other. It is a difference of two logits, which moves by at
    most :math:`\sqrt 2` times as much as all of them.

    Source: Tsuzuku, Sato, Sugiyama (2018), "Lipschitz-margin training", Proposition 1.
    """
    return margin / (np.sqrt(2.0) * lipschitz)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _bound(tree: Any, network: Any, image_shape: ImageShape) -> Float[Array, ""]:
    bound = jnp.ones(())
    if network.stem:
        for place in range(len(network.stem)):
            bound = bound * _features(tree["stem"][f"Features_{place}"], image_shape)
            image_shape = (-(-image_shape[0] // 2), -(-image_shape[1] // 2))
        tree = tree["network"]
    if network.features is not None:
        bound = bound * _features(tree["features"], image_shape)
    names = [f"layer_{place}" for place in range(1, len(network.widths) + 1)]
    if isinstance(network, OptEqConfig):
        shape = image_shape if network.convolutional else None
        layers = [OptEqParams(tree[name]["W"], tree[name].get("U"), jnp.zeros(1)) for name in names]
        held = [spectral_normalise(layer, bound=network.max_norm or 1.0, image_shape=shape) for layer in layers]
        bound = bound * equilibrium_lipschitz(held, skip=network.skip, image_shape=shape)
    else:
        for name in names:
            bound = bound * _features(tree[name], image_shape)
    places = image_shape[0] * image_shape[1] if network.convolutional else 1
    return bound * matrix_norm_bound(tree["head"]["Dense_0"]["kernel"]) / np.sqrt(places)


def _features(layer: Any, image_shape: ImageShape) -> Float[Array, ""]:
    """Bounds the norm of a `Features`, which has one convolution or dense layer."""
    ((_, weights),) = layer.items()
    kernel = weights["kernel"]
    return conv_norm_bound(kernel, image_shape) if kernel.ndim == 4 else matrix_norm_bound(kernel)
