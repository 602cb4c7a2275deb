"""Denoisers of sequences of patches or sets of images without a network: a linear
layer, a mixture of Gaussians."""

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8
from scipy.special import softmax

LINEAR = "linear layer"

Sequences = Float[Array, "batch tokens pixels"]


class LinearLayer(NamedTuple):
    r"""Predicts a clean token as :math:`A y_t + B \bar y + c` from a noisy one and
    the mean of its sequence."""

    frame: np.ndarray  # A, (pixels, pixels)
    mean: np.ndarray  # B, (pixels, pixels)
    constant: np.ndarray  # c, (pixels,)

    def __call__(self, noisy: Sequences) -> Sequences:
        """The prediction for every frame of every sequence."""
        frame, mean, constant = (jnp.asarray(part, noisy.dtype) for part in self)
        product = functools.partial(jnp.matmul, precision="highest")
        return (
            product(noisy, frame.T)
            + (product(noisy.mean(axis=1), mean.T) + constant)[:, None]
        )


def fit_linear(
    batches: Iterable[UInt8[np.ndarray, "batch frames pixels"]], variance: float
) -> LinearLayer:
    r"""Least squares for clean patches under white noise of a variance, over sequences
    that are read once.

    The noise enters by its expectation, so none is drawn. As deviations
    :math:`x_t - \bar x` sum to zero over a sequence, the normal equations separate into
    one for the mean and one for the deviations, each a Wiener filter:

    .. math:: \hat x_t = \mu + M (M + \tfrac{s^2}{T})^+ (\bar y - \mu)
                             + D (D + s^2 (1 - \tfrac1T))^+ (y_t - \bar y)

    with M and D the covariances of the clean temporal means and of the deviations, and
    s^2 the noise's variance. All sequences have T frames. The variance is of pixels in
    [0, 1].
    """
    count, length = 0, 1
    total, squares, of_means = np.zeros(()), np.zeros(()), np.zeros(())
    for batch in batches:
        clean = batch.astype(np.float64) / 255.0
        means, length = clean.mean(axis=1), clean.shape[1]
        rows = clean.reshape(-1, clean.shape[-1])
        count, total = count + len(rows), total + rows.sum(axis=0)
        squares, of_means = (
            squares + rows.T @ rows,
            of_means + length * (means.T @ means),
        )
    centre = total / count
    across = of_means / count - np.outer(centre, centre)
    mean = _wiener(across, variance / length)
    frame = _wiener((squares - of_means) / count, variance * (1.0 - 1.0 / length))
    return LinearLayer(frame, mean - frame, centre - mean @ centre)


class ClassGaussians(NamedTuple):
    r"""A mixture with a Gaussian for each class of images, whose posterior mean
    denoises single images.

    With :math:`\mu_k` and :math:`C_k` the mean and the covariance of class k, to which
    a ridge r is added, the image under white noise of variance :math:`s^2` is

    .. math::
      \hat x = \sum_k p(k \mid y) \,
               (\mu_k + (C_k + r) (C_k + r + s^2)^{-1} (y - \mu_k))

    Source: Yu, Sapiro, Mallat, "Solving inverse problems with piecewise linear
    estimators" (2012), with given classes.
    """

    shares: np.ndarray  # (classes,), of the images
    means: np.ndarray  # (classes, pixels)
    axes: np.ndarray  # (classes, pixels, pixels): principal axes in columns
    variances: np.ndarray  # (classes, pixels), along these, the ridge included

    @classmethod
    def fit(cls, classes: Sequence[np.ndarray], ridge: float) -> Self:
        """Fits images (n, pixels) in [0, 1] of each class."""
        count = sum(map(len, classes))
        squares = [np.cov(images, rowvar=False, bias=True) for images in classes]
        variances, axes = map(np.stack, zip(*map(np.linalg.eigh, squares), strict=True))
        shares = np.array([len(images) / count for images in classes])
        return cls(
            shares,
            np.stack([images.mean(0) for images in classes]),
            axes,
            np.maximum(variances, 0.0) + ridge,
        )

    def __call__(self, noisy: np.ndarray, variance: float) -> np.ndarray:
        """The posterior means of images (n, pixels) under noise of a variance."""
        likelihoods, estimates = [], []
        for share, mean, axes, variances in zip(*self, strict=True):
            along = (noisy - mean) @ axes
            spread = variances + variance
            likelihoods.append(
                np.log(share) - 0.5 * (along**2 / spread + np.log(spread)).sum(1)
            )
            estimates.append(mean + (along * (variances / spread)) @ axes.T)
        return np.einsum(
            "kn,kni->ni", softmax(np.stack(likelihoods), axis=0), np.stack(estimates)
        )


def _wiener(covariance: np.ndarray, variance: float) -> np.ndarray:
    """C (C + variance I)^+, which shrinks every principal direction by its share of
    noise."""
    noisy = covariance + variance * np.eye(len(covariance))
    return covariance @ np.linalg.pinv(noisy, hermitian=True)
