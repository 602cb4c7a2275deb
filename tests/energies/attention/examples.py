"""Graphs, tokens and a rho of a user's own, and one program for every rho, for tests
of attention."""

from collections.abc import Callable, Sequence

import jax
import numpy as np

import unroll_jax as uj
from tests import reference
from tests.reference import compiled
from unroll_jax.energies import AttentionParams
from unroll_jax.energies.attention.rho import RhoLike, resolve_rho

NO_WEIGHT = AttentionParams(None)
# Slope by autodiff, no logarithm given. Checks of a rho compile each operation of a
# function that is not jitted.
CAUCHY = uj.Rho(value=jax.jit(lambda z: z / (1.0 + z)))
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


def jitted(rho: uj.Rho) -> uj.Rho:
    """One program for all functions of a rho."""
    of_all = jax.jit(lambda z: [part and part(z) for part in rho[:3]])
    of = lambda part, n: part and (lambda z: of_all(z)[n])
    return uj.Rho(*map(of, rho[:3], range(3)))


def of_every_rho(
    function: Callable, rhos: Sequence[RhoLike] = tuple(uj.RHOS)
) -> Callable:
    """One program whose rho is traced: a number in the list."""

    def of_all(*args):
        return jax.lax.map(
            lambda index: function(numbered(index, rhos), *args), np.arange(len(rhos))
        )

    return compiled(of_all)


def numbered(index: jax.Array, rhos: Sequence[RhoLike]) -> uj.Rho:
    entries = [resolve_rho(rho) for rho in rhos]
    fields = (
        [getattr(entry, field) for entry in entries]
        for field in ("value", "slope", "log_slope")
    )
    return uj.Rho(*(lambda z, of=of: jax.lax.switch(index, of, z) for of in fields))
