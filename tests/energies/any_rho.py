"""One program for every rho, whose number in a list is traced. Its users also have tests that take rhos by name."""

from collections.abc import Callable, Sequence

import jax
import numpy as np

import unroll_jax as uj
from unroll_jax.energies.attention.rho import RhoLike, resolve_rho

__all__ = ["of_every_rho"]


def of_every_rho(function: Callable, rhos: Sequence[RhoLike] = tuple(uj.RHOS)) -> Callable:
    def of_all(*args):
        return jax.lax.map(lambda index: function(_numbered(index, rhos), *args), np.arange(len(rhos)))

    return jax.jit(of_all)


def _numbered(index: jax.Array, rhos: Sequence[RhoLike]) -> uj.Rho:
    entries = [resolve_rho(rho) for rho in rhos]
    fields = ([getattr(entry, field) for entry in entries] for field in ("value", "slope", "log_slope"))
    return uj.Rho(*(lambda z, of=of: jax.lax.switch(index, of, z) for of in fields))
