"""Equilibrium layers for flax.nnx. Imported on first use, as flax is optional."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from unroll_jax.fixed_point import equilibrium

__all__ = ["Equilibrium"]


class Equilibrium(nnx.Module):
    """The fixed point z = cell(z, x) of a module, see `unroll_jax.equilibrium`.

    Its parameters are the cell's. Variables that the cell changes, such as averages of
    batch norms, stay as they are, but for the counts of its random streams: dropout has
    one mask for a solve, and another in the next call. Within `flax.nnx.capture` of
    ``nnx.Intermediate`` the `EquilibriumInfo` is kept as "equilibrium". ``layer(x,
    z0=None)`` returns the equilibrium.

    Args:
      cell: a module of ``(z, x) -> z'``.
      **options: of `unroll_jax.equilibrium`, such as ``tol=1e-4``. ``batch_ndim`` is 1
        by default.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> class Cell(nnx.Module):
      ...     def __init__(self, width, rngs):
      ...         self.linear = nnx.Linear(width, width, rngs=rngs)
      ...
      ...     def __call__(self, z, x):
      ...         return jnp.tanh(0.3 * self.linear(z) + x)
      >>> layer = Equilibrium(Cell(3, nnx.Rngs(0)))
      >>> call = nnx.capture(nnx.Intermediate)(lambda layer, x: layer(x))
      >>> z, kept = call(layer, jnp.ones((4, 3)))
      >>> z.shape, bool(kept["equilibrium"].get_value()[0].converged.all())
      ((4, 3), True)
    """

    def __init__(self, cell: Callable[[Any, Any], Any], **options: Any) -> None:
        self.cell = cell
        self.solve = functools.partial(equilibrium, **{"batch_ndim": 1, **options})

    def __call__(self, x: Any, z0: Any = None) -> Any:
        """Returns the equilibrium for x from the initial state z0. None is zeros."""
        z0 = jax.tree.map(jnp.zeros_like, x) if z0 is None else z0
        graph, state = nnx.split(self.cell)

        def step(state: Any, z: Any, x: Any) -> Any:
            return nnx.merge(graph, jax.tree.map(jnp.asarray, state))(z, x)

        z, info = self.solve(step, state, z0, x)
        counts = jax.tree.leaves(
            nnx.state(self.cell, nnx.RngCount),
            is_leaf=lambda node: isinstance(node, nnx.RngCount),
        )
        for count in counts:
            count.set_value(count.get_value() + 1)
        if hasattr(self, "__captures__"):  # sow outside of capture is deprecated
            self.sow(nnx.Intermediate, "equilibrium", info)
        return z
