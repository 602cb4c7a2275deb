"""Steps on convex potentials in float64 NumPy, written from Araujo et al. (2023), of
rows of flat states; convolutions as matrices."""

import numpy as np

from tests.energies.opteq_reference import ANTIDERIVATIVE, SIGMA, conv_matrix


def dense_scaling(W, q):
    """T_i = sum_j |W W^T|_ij q_j / q_i."""
    overlaps = np.abs(W @ W.T)
    return np.array([overlaps[i] @ q / q[i] for i in range(len(q))])


def conv_scaling(kernel, q):
    """The same with sums of products of the kernel and its shifted copies, shift by
    shift."""
    rows, columns, _, hidden = kernel.shape
    overlaps = np.zeros((hidden, hidden))
    for down in range(1 - rows, rows):
        for right in range(1 - columns, columns):
            products = np.zeros((hidden, hidden))
            for i in range(max(0, -down), min(rows, rows - down)):
                for j in range(max(0, -right), min(columns, columns - right)):
                    products += kernel[i, j].T @ kernel[i + down, j + right]
            overlaps += np.abs(products)
    return np.array([overlaps[i] @ q / q[i] for i in range(hidden)])


def matrix_and_scaling(W, log_q, image):
    """W as a matrix on flat states, and T with a number for each of its rows."""
    W = np.asarray(W, np.float64)
    q = np.exp(np.asarray(log_q, np.float64))
    if W.ndim == 2:
        return W, dense_scaling(W, q)
    return conv_matrix(W, image), np.tile(conv_scaling(W, q), image[0] * image[1])


def potential(z, W, scaling, b, *, activation="relu"):
    return np.sum(ANTIDERIVATIVE[activation](z @ W.T + b) / scaling, axis=-1)


def gradient(z, W, scaling, b, *, activation="relu"):
    return SIGMA[activation](z @ W.T + b) / scaling @ W
