"""Graphs, tokens and a rho of a user's own, for tests of attention."""

import numpy as np

import unroll_jax as uj
from tests import reference

CAUCHY = uj.Rho(value=lambda z: z / (1.0 + z))  # slope by autodiff, no logarithm given
GRAPHS = {
    "complete": None,
    "empty": np.zeros((6, 6), bool),
    "star": np.array([[(u == 0) != (v == 0) for v in range(6)] for u in range(6)]),
    "two components": np.kron(np.eye(2, dtype=bool), np.ones((3, 3), bool)),
    "isolated token": np.pad(np.ones((5, 5), bool), (0, 1)),
    "random": reference.random_graph(np.random.default_rng(7), 6),
}


def tokens(seed, shape, scale=1.0):
    return scale * np.random.default_rng(seed).normal(size=shape)
