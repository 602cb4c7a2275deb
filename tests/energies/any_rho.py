"""A rho whose number in a list is traced, so that one program serves all of them."""

from collections.abc import Sequence

import jax

import unroll_jax as uj
from unroll_jax.energies.rho import RhoLike, resolve_rho

__all__ = ["any_rho"]


def any_rho(index: jax.Array, rhos: Sequence[RhoLike] = tuple(uj.RHOS)) -> uj.Rho:
    """The rho of this number; meant for ``jax.lax.map`` over numbers, where one of the branches runs."""
    entries = [resolve_rho(rho) for rho in rhos]
    fields = ([getattr(entry, field) for entry in entries] for field in ("value", "slope", "log_slope"))
    return uj.Rho(*(lambda z, of=of: jax.lax.switch(index, of, z) for of in fields))
