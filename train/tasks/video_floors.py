r"""Floors of video denoising: one linear layer and a classical denoiser on the noise of the models."""

import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8
from skimage.restoration import denoise_tv_chambolle

from ..data.video import frames_from
from ..task import Row
from .common import add_noise, to_unit
from .video_samples import BATCH_SIZE, keyed_batches

LINEAR, CLASSICAL = "linear layer", "total variation"
# The classical denoiser sees a square of at most so many patches a side of at most so many windows: a second for each
# noise level, where all of UCSD Ped2 would take eleven.
MOST_WINDOWS, MOST_PATCHES, PLACES_SEED = 20, 5, 0
# Weight of total variation over the noise's standard deviation, and iterations: chosen on validation frames of the
# built-in clips and of UCSD Ped2, of 0.3 to 2 and 10 to 200, and the same for every data set and noise level.
TV_WEIGHT, TV_ITERATIONS = 0.8, 20

Sequences = Float[Array, "batch frames pixels"]


class LinearLayer(NamedTuple):
    r"""Predicts a clean patch as :math:`A y_t + B \bar y + c` from a noisy one and its temporal mean.

    Attributes:
      frame: A, (pixels, pixels).
      mean: B, (pixels, pixels).
      constant: c, (pixels,).
    """

    frame: np.ndarray
    mean: np.ndarray
    constant: np.ndarray

    def __call__(self, noisy: Sequences) -> Sequences:
        """The prediction for every frame of every sequence."""
        frame, mean, constant = (jnp.asarray(part, noisy.dtype) for part in self)
        product = functools.partial(jnp.matmul, precision="highest")
        return product(noisy, frame.T) + (product(noisy.mean(axis=1), mean.T) + constant)[:, None]


def fit_linear(batches: Iterable[UInt8[np.ndarray, "batch frames pixels"]], variance: float) -> LinearLayer:
    r"""Least squares for clean patches under white noise of a variance, over sequences that are read once.

    The noise enters by its expectation, so none is drawn. As deviations :math:`x_t - \bar x` sum to zero over a
    sequence, the normal equations fall apart into those of the mean and those of the deviations, each a Wiener filter:

    .. math:: \hat x_t = \mu + M (M + \tfrac{s^2}{T})^+ (\bar y - \mu)
                             + D (D + s^2 (1 - \tfrac1T))^+ (y_t - \bar y)

    with M the covariance of the clean temporal means, D that of the deviations, and s^2 the noise's variance.

    Args:
      batches: clean sequences; all have T frames.
      variance: of the noise, pixels being in [0, 1].

    Returns:
      The layer of the smallest expected squared error.
    """
    count, length = 0, 1
    total, squares, of_means = np.zeros(()), np.zeros(()), np.zeros(())
    for batch in batches:
        clean = batch.astype(np.float64) / 255.0
        means, length = clean.mean(axis=1), clean.shape[1]
        rows = clean.reshape(-1, clean.shape[-1])
        count, total = count + len(rows), total + rows.sum(axis=0)
        squares, of_means = squares + rows.T @ rows, of_means + length * (means.T @ means)
    centre = total / count
    across = of_means / count - np.outer(centre, centre)
    mean = _wiener(across, variance / length)
    frame = _wiener((squares - of_means) / count, variance * (1.0 - 1.0 / length))
    return LinearLayer(frame, mean - frame, centre - mean @ centre)


def total_variation(noisy: Float[np.ndarray, "frames height width"], deviation: float) -> np.ndarray:
    """Frames without noise of a known standard deviation, by total variation in space and time together.

    Source: Rudin, Osher, Fatemi, 1992, by the iteration of Chambolle, 2004, from scikit-image.
    """
    if deviation == 0.0:
        return noisy
    return denoise_tv_chambolle(noisy, weight=TV_WEIGHT * deviation, eps=0.0, max_num_iter=TV_ITERATIONS)


@functools.lru_cache(maxsize=1)  # the plain and the constrained run of one command are judged by the same
def floors(data: Any, train_gamma: float, gammas: tuple[float, ...]) -> Row:
    """RMSE of both floors on the test split at every noise level, as evaluation.json has it.

    Args:
      data: a `train.data.video.VideoData`.
      train_gamma: the noise that the linear layer is fitted for, on the train split.
      gammas: those of the test; the noise is that which the models meet.

    Returns:
      ``floors``: RMSE on the 0-255 scale by name and gamma; ``floor_shares``: of how much of the split each is.
    """
    layer = fit_linear(data.examples("train", batch_size=BATCH_SIZE), train_gamma * data.spec.pixel_std)
    patches, side = data.spec.frame_side // math.isqrt(data.spec.token_dim), math.isqrt(data.spec.token_dim)
    chosen = some_squares(data.num_sequences("test"), patches)
    rmse = {gamma: _rmse(data, layer, chosen, side, gamma * data.spec.pixel_std) for gamma in gammas}
    return {
        "floors": {name: {str(gamma): both[name] for gamma, both in rmse.items()} for name in (LINEAR, CLASSICAL)},
        "floor_shares": {LINEAR: 1.0, CLASSICAL: chosen.size / data.num_sequences("test")},
    }


def some_squares(num_sequences: int, patches: int) -> np.ndarray:
    """The numbers of the sequences of squares, one a window, in the order of `patch_sequences`: (windows, positions).

    Windows are evenly spaced. Squares tile the frame; every tile is taken as often as others, but for one time, in an
    order that is drawn: before a fixed camera places differ most, before a moving one windows, often in a cycle.

    Args:
      num_sequences: of the split.
      patches: on a side of a frame.
    """
    count, side = num_sequences // patches**2, min(patches, MOST_PATCHES)
    windows = np.linspace(0, count - 1, min(count, MOST_WINDOWS)).round().astype(int)
    tiles = np.random.default_rng(PLACES_SEED).permutation(len(windows)) % (patches // side) ** 2
    corners = side * np.stack(np.divmod(tiles, patches // side))
    row, column = corners[..., None] + np.indices((side, side)).reshape(2, 1, -1)
    return windows[:, None] * patches**2 + row * patches + column


def _rmse(data: Any, layer: LinearLayer, chosen: np.ndarray, side: int, variance: float) -> dict[str, float]:
    """Returns the RMSE of both floors on the test split, in one pass over its batches."""
    errors, kept, first = [], [], 0
    for batch, key in keyed_batches(data, "test"):
        *pixels, squares = _noisy(layer, batch, variance, key)
        errors.append(np.asarray(squares, np.float64))
        rows = np.flatnonzero(np.isin(chosen, np.arange(first, first + len(batch))))
        kept.append([np.asarray(each)[chosen.flat[rows] - first] for each in pixels])
        first += len(batch)
    clean, noisy = (
        np.concatenate(parts).reshape(*chosen.shape, data.spec.num_tokens, side**2) for parts in zip(*kept, strict=True)
    )
    squares = [
        np.square(total_variation(one, math.sqrt(variance)) - other).mean(dtype=np.float64)
        for one, other in zip(_frames(noisy, side), _frames(clean, side), strict=True)
    ]
    return {LINEAR: _on_bytes(np.concatenate(errors)), CLASSICAL: _on_bytes(np.asarray(squares))}


@jax.jit
def _noisy(layer: LinearLayer, batch: Array, variance: float, key: Array) -> tuple[Array, Array, Array]:
    """Clean and noisy pixels, and the mean squared error of the layer on every sequence."""
    clean = to_unit(batch)
    noisy = add_noise(clean, variance, key)
    return clean, noisy, jnp.mean((layer(noisy) - clean) ** 2, axis=(1, 2))


def _frames(squares: np.ndarray, side: int) -> Iterator[np.ndarray]:
    """The frames of every square, whose patches have ``side`` pixels a side."""
    pixels = math.isqrt(squares.shape[1]) * side
    return (frames_from(sequences, (pixels, pixels), side=side) for sequences in squares)


def _wiener(covariance: np.ndarray, variance: float) -> np.ndarray:
    """C (C + variance I)^+, which shrinks every principal direction by its share of noise."""
    noisy = covariance + variance * np.eye(len(covariance))
    return covariance @ np.linalg.pinv(noisy, hermitian=True)


def _on_bytes(squares: np.ndarray) -> float:
    return 255.0 * math.sqrt(squares.mean())
