"""Equilibrium layers for flax.linen. Imported on first use, as flax is optional."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import FrozenDict

from unroll_jax.fixed_point import equilibrium

__all__ = ["Equilibrium"]


class Equilibrium(nn.Module):
    """The fixed point z = cell(z, x) of a module, see `unroll_jax.equilibrium`.

    Its parameters are the cell's. The cell is called as a function of its variables: no
    tracer outlives the solve. Variables that it changes, such as batch norms, stay.
    Dropout has one mask for a solve. "intermediates" has the `EquilibriumInfo` as
    "equilibrium".

    Attributes:
      cell: a module of ``(z, x) -> z'``.
      options: keyword arguments of `unroll_jax.equilibrium`, such as ``{"tol": 1e-4}``.
        ``batch_ndim`` is 1 by default.
      rngs: names of the random streams that the cell needs, such as ("dropout",).

    Example:
      >>> import flax.linen as nn, jax, jax.numpy as jnp
      >>> class Cell(nn.Module):
      ...     @nn.compact
      ...     def __call__(self, z, x):
      ...         return jnp.tanh(0.3 * nn.Dense(x.shape[-1])(z) + x)
      >>> layer, x = Equilibrium(Cell()), jnp.ones((4, 3))
      >>> variables = jax.jit(layer.init)(jax.random.key(0), x)
      >>> z, state = layer.apply(variables, x, mutable="intermediates")
      >>> z.shape, bool(state["intermediates"]["equilibrium"][0].converged.all())
      ((4, 3), True)
    """

    cell: nn.Module
    options: Any = FrozenDict()
    rngs: tuple[str, ...] = ()

    @nn.compact
    def __call__(self, x: Any, z0: Any = None) -> Any:
        """Returns the equilibrium for x from the initial state z0. None is zeros."""
        z0 = jax.tree.map(jnp.zeros_like, x) if z0 is None else z0
        if self.is_initializing():
            self.cell(z0, x)
        cell, variables = self.cell.unbind()
        keys = {name: self.make_rng(name) for name in self.rngs if self.has_rng(name)}

        def step(params: Any, z: Any, x: Any) -> Any:
            variables, keys = params
            return cell.apply(variables, z, x, rngs=keys)

        options = {"batch_ndim": 1, **self.options}
        z, info = equilibrium(step, (variables, keys), z0, x, **options)
        self.sow("intermediates", "equilibrium", info)
        return z
