"""Classification of images with certified radii, beside plain and normalised networks;
attacks by projected gradients."""

import dataclasses
import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import unroll_jax as uj
from unroll_jax.certificates import (
    attack,
    certified_radius,
    lipschitz,
    margin_loss,
    pad_channels,
    space_to_depth,
    unit_columns,
)
from unroll_jax.energies import convex_potential, convex_potential_conv
from unroll_jax.norm_bounds import matrix_norm_bound

from ...config.errors import OptionError
from ...core.metrics import Predictions, write_predictions
from ...core.task import Log, Params, Row, Task
from ...data.pictures import ImageSpec
from ...system.distributed import fetch
from ..common import pictures_of, to_unit
from ..images.task import Classifier, classification, load_images, without_images
from .options import CertifiedConfig, CertifiedNetwork

ATTACK_SEED = 0  # of random starts, the same for every run
READ_TOGETHER = 2500  # images, in an evaluation
# of the default network: the numbers of an image up to which layers are dense, and the
# sides of blocks of larger ones, the first that divides an image
WIDEST_DENSE = 1024
BLOCKS = (4, 2, 1)
POINTS = 400  # of the curve of certified accuracy, at most


class Certified(NamedTuple):
    """The answer to an image.

    Attributes:
      label: of the most probable class.
      probabilities: of all, (classes,), the softmax of logits / temperature.
      radius: within which no disturbance of the image changes the label, in the
        Euclidean norm. The image is as the network sees it: scaled to the size of the
        train images, with pixels in [0, 1].
    """

    label: str
    probabilities: np.ndarray
    radius: float


def open_task(options: CertifiedConfig, log: Log) -> Task:
    """Returns the task on the data of its options, prepared on first use."""
    task = make(options, load_images(options, log))
    network = task.options.network
    if network != options.network:
        layers = f"--network.width {network.width}"
        if network.convolutional:
            layers += f" --network.convolutional --network.block {network.block}"
        log(f"default network for images of {task.inner.spec.shape}: {layers}")
    return task


def fitted(options: CertifiedConfig, shape: tuple[int, ...]) -> CertifiedConfig:
    """Returns the options with a default network that fits images of a shape: dense on
    small ones, else convolutions on blocks of pixels."""
    height, width, channels = shape
    numbers = height * width * channels
    if options.network != CertifiedNetwork() or numbers <= options.network.width:
        return options
    network = CertifiedNetwork(width=numbers)
    if numbers > WIDEST_DENSE:
        blocks = [one for one in BLOCKS if height % one == 0 and width % one == 0]
        network = CertifiedNetwork(
            convolutional=True,
            block=blocks[0],
            width=max(64, channels * blocks[0] ** 2),
        )
    return dataclasses.replace(options, network=network)


def rebuild(options: CertifiedConfig, spec: Row) -> Task:
    """Returns the task of `Task.spec` without data, to predict."""
    return make(options, without_images(spec))


def make(options: CertifiedConfig, data: Any) -> Task:
    """Returns the task: the margin loss of a network whose features are 1-Lipschitz.

    The margin of an answer over the distance of two columns of the head is a radius
    within which no disturbance of the image changes it.

    Source: Meunier et al. (2022), "A dynamical system perspective for Lipschitz neural
    networks"; Araujo et al. (2023), "A unified algebraic perspective on Lipschitz
    neural networks"; for the loss Prach and Lampert (2022).
    """
    spec: ImageSpec = data.spec
    options = fitted(options, spec.shape)
    network = options.network
    size = _state_size(network, spec.shape)
    bounded = network.kind != "plain"

    def head_of(params: Params) -> Float[Array, "features classes"]:
        return unit_columns(params["head"]) if bounded else params["head"]

    def init(key: jax.Array) -> Params:
        key_layers, key_head = jax.random.split(key)
        keys = jax.random.split(key_layers, network.num_layers)
        layers = jax.vmap(_layer(network).init)(keys)
        if not bounded:
            layers = layers._replace(W=math.sqrt(2.0) * layers.W)
        head = jax.random.normal(key_head, (size, spec.num_classes)) / math.sqrt(size)
        return {"layers": layers, "head": head, "bias": jnp.zeros(spec.num_classes)}

    def apply(params: Params, pixels: Array, probe: Any) -> tuple[Array, None]:
        z = _first_state(network, pixels)

        def act(z: Array, layer: Any) -> tuple[Array, None]:
            if network.kind == "steps":
                return _layer(network).step(layer, z, None), None
            return jax.nn.relu(z @ layer.W.T + layer.b), None

        z, _ = jax.lax.scan(act, z, _bounded_layers(network, params["layers"]))
        return z.reshape(len(z), -1) @ head_of(params) + params["bias"], None

    def loss(params: Params, logits: Array, labels: Any) -> Array:
        return margin_loss(
            logits,
            jnp.asarray(labels).astype(jnp.int32),
            head_of(params) if bounded else None,
            offset=options.offset,
            temperature=options.temperature,
        )

    base = classification(options, data, Classifier(init, apply, loss), make)

    @jax.jit
    def margins_of(
        params: Params, logits: Array, labels: Any, bound: Any = 1.0
    ) -> Array:
        return certified_radius(logits, head_of(params), labels=labels, bound=bound)

    def radii_of(
        params: Params, pictures: np.ndarray, labels: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns logits and radii, computed in float64: negative where a label is not
        the answer, 0 for a network without a useful bound."""
        with jax.enable_x64(True):
            wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
            pixels = np.asarray(pictures, np.float64) / 255.0
            logits, _ = _apply_wide(apply, wide, pixels)
            bound = lipschitz(
                *_parts(network, wide),
                x=pixels,
                # no two images are further apart
                radius=math.sqrt(math.prod(spec.shape)),
                dtype="float64",
            )
            radius = margins_of(wide, logits, labels, bound)
            return np.asarray(logits), np.asarray(radius)

    def read_test(params: Params) -> tuple[np.ndarray, np.ndarray]:
        """Returns of every test image whether the answer is right, and its radius."""
        right, radii = [], []
        for batch in data.examples("test", batch_size=READ_TOGETHER):
            labels = np.asarray(batch.labels)
            logits, radius = radii_of(params, batch.images, labels)
            right.append(logits.argmax(axis=-1) == labels)
            radii.append(radius)
        return np.concatenate(right), np.concatenate(radii)

    def row(params: Params, reading: Any) -> Row:
        """Radii of a validation leave out rounding. Unbounded networks have none."""
        figures = base.row(params, reading)
        if not bounded:
            return figures | {"certified": 0.0}
        host = fetch(params)
        found = []
        for batch in data.examples("validation", batch_size=READ_TOGETHER):
            logits = base.inner.read(params, batch.images)
            found.append(np.asarray(margins_of(host, logits, batch.labels)))
        shares = _shares(np.concatenate(found), options.radii)
        return figures | {"certified": float(np.mean(list(shares.values())))}

    def baselines(params: Params, readings: Any) -> Row:
        host = fetch(params)
        right, radii = read_test(host)
        shares = _shares(radii, options.radii)
        figures = base.baselines(params, readings) | {
            "clean_accuracy": float(np.mean(right)),
            "certified": float(np.mean(list(shares.values()))),
            "certified_accuracy": shares,
            "median_radius": float(np.median(radii)),
            "certified_curve": _curve(radii),
            # right answers that the smallest disturbances may change
            "smallest_radii": _smallest(radii),
        }
        if options.attacks:
            figures |= _attack(host, base, options)
        return figures

    def keep(params: Params, folder: Path, figures: Row) -> None:
        """Writes the images of the smallest radii."""
        numbers = np.array([*map(int, figures["smallest_radii"])], int)
        shown, labels = data.read("test", numbers)
        predicted = np.argmax(base.inner.read(params, shown), axis=-1)
        write_predictions(folder, Predictions(shown, labels, predicted))

    def predict(params: Params, inputs: Any) -> Any:
        """Returns the `Certified` of an image (a file, or a uint8 array), or of each of
        a list, scaled as the train images."""
        pictures, several = pictures_of(inputs, spec.shape)
        logits, radii = radii_of(fetch(params), pictures)
        shares = np.asarray(jax.jit(jax.nn.softmax)(logits / options.temperature))
        found = [
            Certified(spec.class_names[int(one.argmax())], share, float(radius))
            for one, share, radius in zip(logits, shares, radii, strict=True)
        ]
        return found if several else found[0]

    return base._replace(
        row=row,
        # without a bound, the accuracy decides
        best=lambda row: row["certified"] + 1e-3 * row["accuracy"] - 1e-9 * row["loss"],
        baselines=baselines,
        keep=keep,
        predict=predict,
        summary=summary,
    )


def summary(evaluation: Row) -> str:
    """Returns clean accuracy, and the certified one by radius."""
    shares = evaluation["certified_accuracy"].items()
    certified = ", ".join(f"{share:.1%} at {radius}" for radius, share in shares)
    return f"accuracy {evaluation['clean_accuracy']:.1%}, certified {certified}"


def _attack(params: Params, task: Task, options: CertifiedConfig) -> Row:
    """Returns accuracies under attacks."""
    data = task.inner.data
    total = data.num_examples("test")
    count = min(options.attack_examples, total)
    numbers = np.arange(count) * total // count
    batch = data.read("test", numbers)
    shares = {}
    for radius in sorted(options.attacks):
        least = _least_margins(
            task.inner.logits,
            params,
            *batch,
            radius,
            options.attack_steps,
        )
        shares[str(radius)] = float(np.mean(np.asarray(least) > 0.0))
    return {
        "attack_accuracy": shares,
        "attacked_examples": count,
        "attack_steps": options.attack_steps,
    }


@functools.partial(jax.jit, static_argnames=("logits", "num_steps"))
def _least_margins(
    logits: Any,
    params: Params,
    pictures: Array,
    labels: Array,
    radius: Any,
    num_steps: int,
) -> Array:
    key = jax.random.key(ATTACK_SEED)
    of = functools.partial(logits, params)
    return attack(of, to_unit(pictures), labels, radius, key, num_steps=num_steps)


def _smallest(radii: np.ndarray) -> dict[str, float]:
    """Returns the smallest radii above 0, ten at most, by the number of the image."""
    order = np.argsort(radii)
    chosen = order[radii[order] > 0.0][:10]
    return {str(place): float(radii[place]) for place in chosen}


def _curve(radii: np.ndarray) -> list[list[float]]:
    """Returns radii above 0, `POINTS` at most, each with the share of the images that
    have no smaller one."""
    order = np.sort(radii)
    first = np.searchsorted(order, 0.0, side="right")
    count = min(POINTS, len(order) - first)
    places = np.unique(np.linspace(first, len(order) - 1, count).astype(int))
    return [[float(order[place]), 1.0 - place / len(order)] for place in places]


def _shares(radii: np.ndarray, limits: tuple[float, ...]) -> dict[str, float]:
    return {str(limit): float(np.mean(radii > limit)) for limit in sorted(limits)}


def _layer(network: CertifiedNetwork) -> uj.Descent:
    make = convex_potential_conv if network.convolutional else convex_potential
    return make(network.width, network.width)


def _first_state(network: CertifiedNetwork, pixels: Array) -> Array:
    """Returns pixels padded with zeros, as rows or as images of blocks."""
    if not network.convolutional:
        return pad_channels(pixels.reshape(len(pixels), -1), network.width)
    return pad_channels(space_to_depth(pixels, network.block), network.width)


def _state_size(network: CertifiedNetwork, shape: tuple[int, ...]) -> int:
    """Returns the number of features. Raises `UserError` if an image does not fit."""
    height, width, channels = shape
    block = network.block
    if height % block or width % block:
        raise OptionError("network.block", f"a divisor of {height} and {width}", block)
    least = channels * block**2
    places = (height // block) * (width // block)
    if not network.convolutional:
        least, places = least * places, 1
    if network.width < least:
        allowed = f"at least the {least} numbers of a state's place in these images"
        raise OptionError("network.width", allowed, network.width)
    return network.width * places


def _bounded_layers(network: CertifiedNetwork, layers: Any) -> Any:
    """Returns the layers as they enter the products."""
    if network.kind != "spectral":
        return layers
    norms = jax.vmap(matrix_norm_bound)(layers.W)
    return layers._replace(W=layers.W / norms[:, None, None])


def _parts(network: CertifiedNetwork, params: Params) -> Iterator[Any]:
    """Yields the parts of the chain, for its Lipschitz constant."""
    yield lambda pixels: _first_state(network, pixels)
    layers = _bounded_layers(network, params["layers"])
    if network.kind == "steps":
        yield layers
    else:
        for W, b in zip(layers.W, layers.b, strict=True):
            yield W.T
            yield lambda z, b=b: jax.nn.relu(z + b)
    yield lambda z: z.reshape(len(z), -1)


_apply_wide = jax.jit(
    lambda apply, params, pixels: apply(params, pixels, None), static_argnums=0
)
