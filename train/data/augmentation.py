"""Augmentation of training pictures on the device: random flips, shifts and crops; and pixels in unit scale."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray, UInt8


def normalise(
    images: UInt8[Array, "*batch height width channels"],
    mean: Float[ArrayLike, " channels"],
    std: Float[ArrayLike, " channels"],
) -> Float[Array, "*batch height width channels"]:
    """Pixels as ``(p / 255 - mean) / std``, float32; ``mean`` and ``std`` of each channel are in unit scale too."""
    return standardise(images.astype(jnp.float32) / 255.0, mean, std)


def standardise(
    pixels: Float[Array, "*batch height width channels"],
    mean: Float[ArrayLike, " channels"],
    std: Float[ArrayLike, " channels"],
) -> Float[Array, "*batch height width channels"]:
    """The same of pixels that are in unit scale already."""
    return (pixels - jnp.asarray(mean)) / jnp.asarray(std)


def flip_and_shift(
    key: PRNGKeyArray,
    images: UInt8[Array, "batch height width channels"],
    labels: Array,
    *,
    flip: bool = True,
    shift: int = 4,
) -> tuple[UInt8[Array, "batch height width channels"], Array]:
    """Mirrors every other image, left to right, and moves each by up to ``shift`` pixels along both axes, black behind.

    An image's fate depends on the key and on its place in the batch. Digits and letters must not be mirrored.

    Source: He et al., Deep Residual Learning (2016), Section 4.2: 4 pixels are padded on each side, and a 32 x 32 crop
      is taken from the padded image or its mirror image.
    """
    if shift < 0:
        raise ValueError(f"shift must be at least 0, got {shift}")
    padded = jnp.pad(images, ((0, 0), (shift, shift), (shift, shift), (0, 0)))
    (cropped,) = _flipped_crops(key, (padded,), images.shape[1:3], flip=flip)
    return cropped, labels


def flip_and_crop(
    key: PRNGKeyArray,
    images: UInt8[Array, "batch height width 3"],
    labels: UInt8[Array, "batch height width"],
    *,
    crop: tuple[int, int] | None = None,
    flip: bool = True,
) -> tuple[UInt8[Array, "batch rows columns 3"], UInt8[Array, "batch rows columns"]]:
    """Mirrors every other scene, left to right, and cuts a window from each, the same from its map of labels.

    A scene's fate depends on the key and on its place in the batch. Without a ``crop`` scenes stay whole.
    """
    size = images.shape[1:3]
    window = size if crop is None else crop
    if not all(1 <= side <= whole for side, whole in zip(window, size, strict=True)):
        raise ValueError(f"crop must lie between (1, 1) and the size of the images {size}, got {crop}")
    windows, maps = _flipped_crops(key, (images, labels[..., None]), window, flip=flip)
    return windows, maps[..., 0]


def _flipped_crops(
    key: PRNGKeyArray, groups: tuple[Array, ...], crop: tuple[int, ...], *, flip: bool
) -> tuple[Array, ...]:
    """Cuts one window from each picture, alike in all groups, each (batch, height, width, channels)."""
    batch, height, width, _ = groups[0].shape
    flip_key, row_key, column_key = jax.random.split(key, 3)
    mirrored = jax.random.bernoulli(flip_key, 0.5, (batch,)) & flip
    # Both ends of the range are taken: a window that just fits has one place.
    rows = jax.random.randint(row_key, (batch,), 0, height - crop[0] + 1)
    columns = jax.random.randint(column_key, (batch,), 0, width - crop[1] + 1)

    def cut(picture: Array, mirror: Array, row: Array, column: Array) -> Array:
        window = jax.lax.dynamic_slice(picture, (row, column, 0), (*crop, picture.shape[-1]))
        return jnp.where(mirror, window[:, ::-1], window)

    return tuple(jax.vmap(cut)(group, mirrored, rows, columns) for group in groups)
