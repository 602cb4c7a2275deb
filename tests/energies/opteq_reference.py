"""OptEq in float64 NumPy, written from Xie et al. (2021): rows of flat states,
convolutions as matrices, no JAX."""

import numpy as np

SIGMA = {
    "identity": lambda t: t,
    "leaky_relu": lambda t: np.where(t > 0.0, t, 0.01 * t),
    "relu": lambda t: np.maximum(t, 0.0),
    "sigmoid": lambda t: 1.0 / (1.0 + np.exp(-t)),
    "tanh": np.tanh,
}
ANTIDERIVATIVE = {
    "identity": lambda t: 0.5 * t**2,
    "leaky_relu": lambda t: 0.5 * t * SIGMA["leaky_relu"](t),
    "relu": lambda t: 0.5 * np.maximum(t, 0.0) ** 2,
    "sigmoid": lambda t: np.logaddexp(0.0, t) - np.log(2.0),
    "tanh": lambda t: np.logaddexp(t, -t) - np.log(2.0),
}


def dense_matrix(W, image):
    return np.asarray(W, np.float64)


def conv_matrix(kernel, image, *, wraps=False):
    """The matrix of a convolution on flattened images, zero-padded or wrapping around:
    every output pixel, tap and pair of channels."""
    kernel = np.asarray(kernel, np.float64)
    (height, width), (rows, columns, inner, outer) = image, kernel.shape
    matrix = np.zeros((height, width, outer, height, width, inner))
    for i, j, k, m in np.ndindex(height, width, rows, columns):
        p = i + k - (rows - 1) // 2
        q = j + m - (columns - 1) // 2
        if wraps or (0 <= p < height and 0 <= q < width):
            matrix[i, j, :, p % height, q % width] += kernel[k, m].T
    return matrix.reshape(height * width * outer, height * width * inner)


def step(z, W, U, b, x, *, activation="relu", skip=1.0):
    """Eq. 5: a W^T sigma(W z + U x + b) + (1 - a) z."""
    return skip * SIGMA[activation](z @ W.T + x @ U.T + b) @ W + (1.0 - skip) * z


def energy(z, W, U, b, x, *, activation="relu"):
    """|z|^2 / 2 - 1^T s(W z + U x + b)."""
    hidden = ANTIDERIVATIVE[activation](z @ W.T + x @ U.T + b)
    return 0.5 * np.sum(z**2, axis=-1) - np.sum(hidden, axis=-1)
