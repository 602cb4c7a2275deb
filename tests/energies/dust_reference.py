"""Sparse coding in float64 NumPy, and draws for the tests of LISTA and DUST."""

import numpy as np

from tests import reference

N, DIM, ATOMS, RANK = 5, 3, 6, 4


def soft(y, threshold):
    return np.sign(y) * np.maximum(np.abs(y) - threshold, 0.0)


def coding_energy(H, D, x, sparsity):
    """|x - D^T h|^2 / 2 + lambda |h|_1 of each token, summed."""
    return 0.5 * np.sum((x - H @ D) ** 2) + sparsity * np.sum(np.abs(H))


def coding_step(H, D, x, sparsity, c=None):
    c = np.linalg.norm(D, 2) ** 2 if c is None else c
    return soft(H + (x - H @ D) @ D.T / c, sparsity / c)


def mixing_step(H, V, form, *, damping=1.0, graph=None, self_loops=True):
    if form != "plain":
        return reference.pair_step(
            H, form=form, W_a=V.T, step_size=damping, graph=graph
        )
    weights = np.exp(H @ V.T @ V @ H.T) * (1.0 if self_loops else 1.0 - np.eye(len(H)))
    return (1.0 - damping) * H + damping * weights / weights.sum(
        axis=1, keepdims=True
    ) @ H


def draw(seed, count=()):
    rng = np.random.default_rng(seed)
    return tuple(
        rng.normal(size=(*count, *shape))
        for shape in ((N, ATOMS), (ATOMS, DIM), (RANK, ATOMS), (N, DIM))
    )
