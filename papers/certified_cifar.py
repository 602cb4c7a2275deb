"""Certified accuracy of CIFAR-10 by convolutional steps on convex potentials."""

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

import unroll_jax as uj
from papers.certified import spread
from papers.command import run_command
from papers.digits import table
from papers.xie2021.robustness import attack
from unroll_jax.certificates import (
    certified_radius,
    lipschitz,
    margin_loss,
    pad_channels,
    space_to_depth,
    unit_columns,
)
from unroll_jax.train.config.options import Count, NonNegative, Positive, options
from unroll_jax.train.tasks.images import data as pictures
from unroll_jax.train.tasks.images.options import ImageConfig

__all__ = ["CifarConfig", "main"]

LAYERS, CHANNELS, CLASSES = 6, 64, 10
# Pixels of a block that become channels: 32 x 32 x 3 is 8 x 8 x 48.
FACTOR, SIDE = 4, 8
BATCH, TEST_BATCH, SHIFT = 100, 2500, 4
RADII = (0.05, 0.1, 36 / 255, 0.25, 72 / 255, 108 / 255)
ATTACKS = (0.1, 0.25, 108 / 255)
# Images that are attacked, and those that judge a trial.
ATTACKED, JUDGED = 500, 2000
ATTACK_STEPS = 20
LAYER = uj.convex_potential_conv(CHANNELS, CHANNELS)
# Where the images are below the folder that UNROLL_DATA names.
ARCHIVE = Path("cifar10", "cifar10_images.tar.gz")
VALIDATION = 0.1  # share of the training images

Params = dict[str, Any]


class Images(NamedTuple):
    """Images (n, 32, 32, 3), uint8, and their classes."""

    pixels: np.ndarray
    labels: np.ndarray


@options
class CifarConfig:
    """Certify CIFAR-10: train a network, and print its certified accuracy."""

    offset: NonNegative = 1.0
    """Offset of the margin loss, in units of a radius times sqrt(2)."""
    temperature: Positive = 0.3
    """Temperature of the margin loss, in the same units."""
    rate: Positive = 1e-2
    """Largest learning rate of a one-cycle schedule of Adam."""
    epochs: Count = 12
    """Passes over the training images."""
    images: Count = 10_000
    """Training images, at most 45,000."""
    seeds: Count = 1
    """Runs, from seed 0 on."""
    search: bool = False
    """Compares short trials on validation images; the other options of training do not
    count."""
    root: str | None = None
    """Images in folders of classes, or an archive of them; by default
    cifar10/cifar10_images.tar.gz in the folder that UNROLL_DATA names."""


# Short runs that choose the offset and the temperature.
TRIALS = (
    CifarConfig(0.15, 0.1, epochs=2),
    CifarConfig(0.3, 0.1, epochs=2),
    CifarConfig(0.6, 0.2, epochs=2),
    CifarConfig(1.0, 0.3, epochs=2),
)


def load(config: CifarConfig) -> tuple[Images, Images, Images]:
    """Training images, 5,000 validation images and the test images."""
    root = config.root or str(Path(os.environ.get("UNROLL_DATA", ""), ARCHIVE))
    source = ImageConfig("image_folder", root, validation_share=VALIDATION)
    data = pictures.load(source)
    data.keep("train", min(config.images, data.num_examples("train")))
    splits = (data.whole(split) for split in ("train", "validation", "test"))
    train, validation, test = (Images(*split) for split in splits)
    return train, validation, test


def evenly(data: Images, count: int) -> Images:
    """Images evenly spread over the data, which are in the order of their classes."""
    chosen = np.arange(count) * len(data.labels) // count
    return Images(data.pixels[chosen], data.labels[chosen])


def init(key: Array) -> Params:
    """Kernels of the layers, stacked, and a head with biases."""
    key_layers, key_head = jax.random.split(key)
    size = SIDE * SIDE * CHANNELS
    return {
        "layers": jax.vmap(LAYER.init)(jax.random.split(key_layers, LAYERS)),
        "head": jax.random.normal(key_head, (size, CLASSES)) / np.sqrt(size),
        "bias": jnp.zeros(CLASSES),
    }


def to_blocks(images: Float[Array, "n 32 32 3"]) -> Float[Array, "n 8 8 channels"]:
    """Images with blocks of 4 x 4 pixels as channels, and channels of zeros."""
    return pad_channels(space_to_depth(images, FACTOR), CHANNELS)


def flatten(z: Float[Array, "n 8 8 channels"]) -> Float[Array, "n features"]:
    """The states as rows."""
    return z.reshape(len(z), -1)


def logits_of(
    params: Params, images: Float[Array, "n 32 32 3"]
) -> Float[Array, "n 10"]:
    """Logits of images (n, 32, 32, 3) with pixels in [0, 1]."""
    z, _ = uj.unroll(
        LAYER,
        params["layers"],
        to_blocks(images),
        num_layers=LAYERS,
        tied=False,
        record=None,
    )
    return flatten(z) @ unit_columns(params["head"]) + params["bias"]


def augment(key: Array, images: Float[Array, "n 32 32 3"]) -> Array:
    """Images moved by up to 4 pixels in each direction and mirrored, at random."""
    key_shift, key_mirror = jax.random.split(key)
    margins = ((0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT), (0, 0))
    padded = jnp.pad(images, margins, mode="reflect")
    corners = jax.random.randint(key_shift, (len(images), 2), 0, 2 * SHIFT + 1)

    def cut(image: Array, corner: Array) -> Array:
        return jax.lax.dynamic_slice(image, (corner[0], corner[1], 0), (32, 32, 3))

    moved = jax.vmap(cut)(padded, corners)
    mirrored = jax.random.bernoulli(key_mirror, shape=(len(images), 1, 1, 1))
    return jnp.where(mirrored, moved[:, :, ::-1], moved)


def train(setting: CifarConfig, data: Images, seed: int) -> Params:
    """Parameters after training."""
    batches = len(data.labels) // BATCH
    schedule = optax.cosine_onecycle_schedule(setting.epochs * batches, setting.rate)
    optimizer = optax.chain(optax.clip_by_global_norm(5.0), optax.adam(schedule))

    def loss(params: Params, images: Array, labels: Array) -> Array:
        losses = margin_loss(
            logits_of(params, images),
            labels,
            unit_columns(params["head"]),
            offset=setting.offset,
            temperature=setting.temperature,
        )
        return jnp.mean(losses)

    @jax.jit
    def step(params: Params, state: Any, key: Array, rows: Images) -> tuple[Any, Any]:
        images = augment(key, jnp.asarray(rows.pixels, jnp.float32) / 255.0)
        gradient = jax.grad(loss)(params, images, rows.labels)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    key_init, key_steps = jax.random.split(jax.random.key(seed))
    params = init(key_init)
    state = optimizer.init(params)
    order = np.random.default_rng(seed)
    for epoch in range(setting.epochs):
        places = order.permutation(len(data.labels))[: batches * BATCH]
        for number, chosen in enumerate(places.reshape(batches, BATCH)):
            key = jax.random.fold_in(key_steps, epoch * batches + number)
            rows = Images(data.pixels[chosen], data.labels[chosen])
            params, state = step(params, state, key, rows)
    return params


def certified(params: Params, data: Images) -> np.ndarray:
    """Accuracy and certified accuracies at the radii, of the network in float64."""
    right, radii = [], []
    logits = jax.jit(logits_of)
    for start in range(0, len(data.labels), TEST_BATCH):
        pixels, labels = (part[start : start + TEST_BATCH] for part in data)
        images = pixels.astype(np.float64) / 255.0
        bound = lipschitz(
            to_blocks,
            params["layers"],
            x=images,
            radius=1.1 * max(RADII),
            dtype="float64",
        )
        with jax.enable_x64(True):
            wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, "float64"), params)
            outputs = logits(wide, jnp.asarray(images))
            head = unit_columns(wide["head"])
            radius = certified_radius(outputs, head, labels=labels, bound=bound)
            right.append(np.argmax(outputs, axis=-1) == labels)
            radii.append(np.asarray(radius))
    radius = np.concatenate(radii)
    shares = [np.mean(radius > limit) for limit in RADII]
    return np.array([np.mean(np.concatenate(right)), *shares])


def attacked(params: Params, data: Images) -> np.ndarray:
    """Accuracies under projected gradients."""
    images = jnp.asarray(data.pixels, jnp.float32) / 255.0
    labels = jnp.asarray(data.labels)
    keys = jax.random.split(jax.random.key(0), len(labels))

    @jax.jit
    def robust(params: Params, radius: Array) -> Array:
        outcome = attack(
            lambda moved: logits_of(params, moved),
            images,
            labels,
            keys,
            radius,
            num_steps=ATTACK_STEPS,
        )
        return outcome.robust

    return np.array([np.mean(robust(params, limit)) for limit in ATTACKS])


def compare(
    settings: Iterable[CifarConfig],
    data: Images,
    test: Images,
    seeds: int,
    attacks: bool,
) -> str:
    """A table of accuracies under each setting, in percent. Each run is printed when it
    ends, with the seconds of CPU of its training."""
    header = ["%", "clean", *(f"certified {limit:.3g}" for limit in RADII)]
    if attacks:
        header += [f"attacked {limit:.3g}" for limit in ATTACKS]
    rows = []
    for setting in settings:
        name = f"offset {setting.offset:g}, temperature {setting.temperature:g}"
        runs = []
        for seed in range(seeds):
            start = time.process_time()
            params = jax.block_until_ready(train(setting, data, seed))
            seconds = time.process_time() - start
            shares = [*certified(params, test)]
            if attacks:
                shares += [*attacked(params, evenly(test, ATTACKED))]
            runs.append([100.0 * float(share) for share in shares])
            shown = " ".join(f"{share:.1f}" for share in runs[-1])
            print(f"{name}, seed {seed}: {shown}; {seconds:.0f} s", flush=True)
        rows.append(
            [name, *(spread(list(shares)) for shares in zip(*runs, strict=True))]
        )
    return table(header, rows)


def certify(config: CifarConfig) -> None:
    """Prints accuracies on the test images, or of the trials on validation images."""
    data, validation, test = load(config)
    if config.search:
        judges = evenly(validation, JUDGED)
        print(compare(TRIALS, data, judges, config.seeds, attacks=False))
    else:
        print(compare([config], data, test, config.seeds, attacks=True))


def main(arguments: list[str]) -> int:
    """Certifies, and returns the exit code."""
    program = "python -m papers.certified_cifar"
    spelled = {"data.root": "--root"}
    return run_command(certify, CifarConfig, arguments, program, spelled)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
