"""Networks of images and scenes, their augmentation, norms of weights, Lipschitz
constants, and scores."""

import dataclasses
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, UInt8

from unroll_jax import models
from unroll_jax.certificates import (
    conv_norm_bound,
    equilibrium_lipschitz,
    matrix_norm_bound,
    spectral_normalise,
)
from unroll_jax.certificates.weights import weight_norm, weight_norm_bound
from unroll_jax.energies.equilibrium.opteq_params import OptEqParams
from unroll_jax.energies.equilibrium.regularisers import REGULARISERS
from unroll_jax.fixed_point import EquilibriumInfo, Probe, zero_probe

from ...core.task import Params
from ...data.pictures import NOT_COUNTED
from .options import (
    ClassifierConfig,
    EquilibriumConfig,
    FcnConfig,
    FeedForwardConfig,
    MonConfig,
    Network,
    OdeConfig,
    OptEqConfig,
    SegmenterConfig,
)

ImageShape = tuple[int, int]
# Figures of an equilibrium or adjoint solve: relative residual, evaluations, whether
# the tolerance was met.
SOLVE = ("residual", "iterations", "converged")
# Means of |z| and z^2 over the entries of an equilibrium, which Xie et al. print in
# Table 1a.
FEATURES = ("feature_absolute", "feature_square")
SHIFT = 4  # pixels that images are moved by at most

MODULES = {
    OptEqConfig: models.DeepOptEq,
    SegmenterConfig: models.DeepOptEqSegmenter,
    MonConfig: models.MonotoneOperatorNetwork,
    OdeConfig: models.NeuralODE,
    FeedForwardConfig: models.FeedForwardNetwork,
    FcnConfig: models.FullyConvolutionalNetwork,
}


def standardise(
    pixels: Float[Array, "*batch height width channels"], mean: Any, std: Any
) -> Array:
    """Pixels in unit scale as ``(pixels - mean) / std``, with the mean and deviation
    of each channel."""
    return (pixels - jnp.asarray(mean)) / jnp.asarray(std)


def flip_and_shift(
    key: jax.Array, images: UInt8[Array, "batch height width channels"]
) -> UInt8[Array, "batch height width channels"]:
    """Mirrors every other image, left to right, and moves each by up to 4 pixels along
    both axes, black behind.

    Source: He et al., Deep Residual Learning (2016), Section 4.2: 4 pixels are padded
      on each side, and a 32 x 32 crop is taken from the padded image or its mirror
      image.
    """
    padded = jnp.pad(images, ((0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT), (0, 0)))
    of_flips, *keys = jax.random.split(key, 3)
    # Both ends of the range are taken.
    corners = [
        jax.random.randint(one, (len(images),), 0, 2 * SHIFT + 1) for one in keys
    ]

    def cut(picture: Array, row: Array, column: Array) -> Array:
        return jax.lax.dynamic_slice(picture, (row, column, 0), images.shape[1:])

    return _mirrored(of_flips, jax.vmap(cut)(padded, *corners))


def flip(
    key: jax.Array,
    images: UInt8[Array, "batch height width 3"],
    labels: UInt8[Array, "batch height width"],
) -> tuple[Array, Array]:
    """Mirrors every other scene with its map of labels, left to right."""
    of_flips, *_ = jax.random.split(key, 3)
    return _mirrored(of_flips, images), _mirrored(of_flips, labels)


def _mirrored(key: jax.Array, pictures: Array) -> Array:
    mirrored = jax.random.bernoulli(
        key, 0.5, (len(pictures), *[1] * (pictures.ndim - 1))
    )
    return jnp.where(mirrored, pictures[:, :, ::-1], pictures)


def build(network: Any, num_classes: int) -> nn.Module:
    """Builds the module of a configuration: ``x -> (logits, EquilibriumInfo or None)``.
    Training continues where an equilibrium is not found. Every row of its metrics has
    the residual.
    """
    options = {
        field.name: getattr(network, field.name)
        for field in dataclasses.fields(network)
    }
    if isinstance(network, EquilibriumConfig | MonConfig):
        options["on_failure"] = "accept"
    if isinstance(network, EquilibriumConfig):
        options["gradient"] = options.pop("way")
    stem = options.pop("stem") if isinstance(network, ClassifierConfig) else ()
    model = MODULES[type(network)](num_classes=num_classes, **options)
    return models.BehindStem(model, stem) if stem else model


def sees_vectors(network: Network) -> bool:
    """Returns whether images are flattened before the network sees them."""
    return not getattr(network, "convolutional", True)


def adjoint_probe(network: Network, batch_size: int) -> Probe | None:
    """Returns the probe for statistics of the adjoint solve of a gradient, or None
    without such a solve."""
    if not isinstance(network, EquilibriumConfig) or network.way != "implicit":
        return None
    whole = (
        network.regulariser is not None
        and REGULARISERS[network.regulariser]().couples_examples
    )
    return zero_probe() if whole else zero_probe(batch_size)


def solve_figures(info: EquilibriumInfo | None, size: int) -> dict[str, Array]:
    """Returns the figures of the equilibrium solve by sample, NaN for a network
    without one."""
    values = (
        [jnp.nan] * 3 if info is None else [info.residual, info.steps, info.converged]
    )
    return {
        name: jnp.broadcast_to(jnp.asarray(value, jnp.float32), (size,))
        for name, value in zip(SOLVE, values, strict=True)
    }


def feature_figures(states: Params, size: int) -> dict[str, Array]:
    """Returns `FEATURES` by sample, of the equilibrium that a module sowed."""
    (z,) = jax.tree.leaves(states)
    entries = z.reshape(size, -1).astype(jnp.float32)
    means = jnp.mean(jnp.abs(entries), axis=1), jnp.mean(entries**2, axis=1)
    return dict(zip(FEATURES, means, strict=True))


def weight_norms(
    params: Any, image_shape: tuple[int, int], *, stem: int = 0, certified: bool = False
) -> dict[str, float]:
    """Spectral norm of every W of an OptEq layer, as parametrised (before `max_norm`
    scales it), by its name. Convolutions see images of ``image_shape`` halved, and
    rounded up, by each of ``stem`` strided convolutions. From below, by power
    iteration. ``certified`` gives upper bounds, which `max_norm` divides by.
    """
    norms, image_shape = {}, tuple(-(-side // 2**stem) for side in image_shape)
    size = _weight_norm_bound if certified else _weight_norm
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        names = [str(getattr(entry, "key", entry)) for entry in path]
        if names[-1] == "W":
            norms[names[-2]] = float(
                size(leaf, image_shape if leaf.ndim == 4 else None)
            )
    return norms


def lipschitz_bound(
    network: Any, params: Params, image_shape: ImageShape, std: Any
) -> Float[Array, ""]:
    """A Lipschitz constant of the logits in pixels of [0, 1], both in the Euclidean
    norm, of a certifiable network. The product over its parts: 1 / std of the pixels,
    every convolution and dense layer, activations (1-Lipschitz, all of `MONOTONES`),
    the equilibrium (`equilibrium_lipschitz`), and the head. A convolution of stride 2
    drops outputs of the one in `conv_norm_bound`. The mean over n places has norm 1 /
    sqrt(n). Differentiable in the parameters.
    """
    return _network_bound(params["params"], network, image_shape) / float(np.min(std))


class Scores(NamedTuple):
    """Shares in [0, 1], from a confusion matrix. Means over classes leave out those
    that do not occur."""

    accuracy: float  # share of images, or of pixels (aAcc), that are right
    class_accuracy: float  # mean over classes of the share that is right (mAcc)
    # mean over classes of labels and predictions, intersection over union (mIoU)
    intersection_over_union: float


class Label(NamedTuple):
    """The most probable class of an image, and the probabilities of all, (classes,)."""

    label: str
    probabilities: np.ndarray


def counted(labels: Int[Array, "*places"]) -> Bool[Array, "*places"]:
    """True at labels that count."""
    return labels != NOT_COUNTED


def cross_entropies(
    logits: Float[Array, "*places classes"], labels: Int[Array, "*places"]
) -> Float[Array, "*places"]:
    """-log p(label), in nats, 0 where a label does not count."""
    counts = counted(labels)
    known = jnp.where(counts, labels, 0).astype(jnp.int32)
    return jnp.where(
        counts,
        optax.softmax_cross_entropy_with_integer_labels(
            logits.astype(jnp.float32), known
        ),
        0.0,
    )


def confusion(
    logits: Float[Array, "*places classes"], labels: Int[Array, "*places"]
) -> Int[Array, "classes classes"]:
    """Counts how often each label (row) was taken for each class (column)."""
    classes = logits.shape[-1]
    pairs = labels.astype(jnp.int32) * classes + jnp.argmax(logits, axis=-1)
    beyond = classes**2  # the place of labels that do not count
    counts = jnp.bincount(
        jnp.where(counted(labels), pairs, beyond).ravel(), length=beyond + 1
    )
    return counts[:beyond].reshape(classes, classes)


def scores(matrix: Any) -> Scores:
    """Returns the scores of a confusion matrix (label, prediction)."""
    matrix = np.asarray(matrix, np.float64)
    right, of_label, of_prediction = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    either = of_label + of_prediction - right
    return Scores(
        accuracy=float(right.sum() / max(matrix.sum(), 1.0)),
        class_accuracy=_mean_where(right, of_label),
        intersection_over_union=_mean_where(right, either),
    )


@functools.partial(jax.jit, static_argnums=(1, 2))
def _network_bound(
    tree: Any, network: Any, image_shape: ImageShape
) -> Float[Array, ""]:
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
        layers = [
            OptEqParams(tree[name]["W"], tree[name].get("U"), jnp.zeros(1))
            for name in names
        ]
        held = [
            spectral_normalise(layer, bound=network.max_norm or 1.0, image_shape=shape)
            for layer in layers
        ]
        bound = bound * equilibrium_lipschitz(
            held, skip=network.skip, image_shape=shape
        )
    else:
        for name in names:
            bound = bound * _features(tree[name], image_shape)
    places = image_shape[0] * image_shape[1] if network.convolutional else 1
    return (
        bound * matrix_norm_bound(tree["head"]["Dense_0"]["kernel"]) / np.sqrt(places)
    )


def _features(layer: Any, image_shape: ImageShape) -> Float[Array, ""]:
    """Bounds the norm of a `Features`, which has one convolution or dense layer."""
    ((_, weights),) = layer.items()
    kernel = weights["kernel"]
    return (
        conv_norm_bound(kernel, image_shape)
        if kernel.ndim == 4
        else matrix_norm_bound(kernel)
    )


_weight_norm = jax.jit(weight_norm, static_argnums=1)
_weight_norm_bound = jax.jit(weight_norm_bound, static_argnums=1)


def _mean_where(above: np.ndarray, below: np.ndarray) -> float:
    there = below > 0.0
    return float(np.mean(above[there] / below[there])) if there.any() else 0.0
