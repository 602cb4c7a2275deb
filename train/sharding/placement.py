"""A recipe on its mesh: states made, batches put and steps compiled where their arrays live."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from train.recipe import Recipe
from train.sharding.mesh import BATCH, replicated, rows
from train.sharding.rules import shardings

__all__ = ["Placed", "own_rows", "place", "put_beside"]


class Placed(NamedTuple):
    """What the loop needs of a recipe on a mesh.

    Attributes:
      like: the state's shapes and dtypes with their shardings: what a checkpoint is restored as.
      init: ``() -> state``, every array made where it lives, none of them whole on one device first.
      put: ``batch -> batch`` on the devices; each process gives its own rows.
      step: ``(state, batch) -> (state, metrics)``, jitted; it consumes (donates) its state.
    """

    like: Any
    init: Callable[[], Any]
    put: Callable[[Any], Any]
    step: jax.stages.Wrapped


def place(recipe: Recipe) -> Placed:
    """Places a recipe on its mesh.

    Raises:
      UserError: if its parameters do not divide over the mesh.
    """
    mesh = recipe.mesh
    shapes = jax.eval_shape(recipe.init)
    placed = shardings(shapes, mesh)
    batches = rows(mesh)

    def put(batch: Any) -> Any:
        return jax.tree.map(lambda part: jax.make_array_from_process_local_data(batches, part), batch)

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return recipe.step(state, batch)

    compiled = jax.jit(step, in_shardings=(placed, batches), out_shardings=(placed, replicated(mesh)), donate_argnums=0)
    like = jax.tree.map(lambda leaf, where: leaf.update(sharding=where), shapes, placed)
    return Placed(like, jax.jit(recipe.init, out_shardings=placed), put, compiled)


def own_rows(mesh: Mesh, batch_size: int) -> np.ndarray | None:
    """Which rows of a batch this process's devices hold; None for all of them."""
    parts = rows(mesh).addressable_devices_indices_map((batch_size,)).values()
    found = np.unique(np.concatenate([np.arange(batch_size)[part] for part in parts]))
    return None if len(found) == batch_size else found


def put_beside(params: Any, examples: Any) -> Any:
    """Examples put on the mesh of the parameters; each device gets some rows where they divide, else all of them.

    Every process gives all examples. Parameters that are on no mesh leave the examples as they are.
    """
    found = jax.tree.leaves(params)[0].sharding
    if not isinstance(found, NamedSharding):
        return examples
    mesh = found.mesh
    assert isinstance(mesh, Mesh)
    ways = mesh.shape[BATCH[0]] * mesh.shape[BATCH[1]]
    divide = all(np.shape(part)[0] % ways == 0 for part in jax.tree.leaves(examples))
    where = rows(mesh) if divide else replicated(mesh)

    def put(part: Any) -> jax.Array:
        # device_put would compare the arrays of all processes.
        whole = np.asarray(part)
        return jax.make_array_from_callback(whole.shape, where, lambda index: whole[index])

    return jax.tree.map(put, examples)
