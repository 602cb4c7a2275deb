"""Perturbations of layers, for ``perturb`` of `unroll`: noise, or one left out."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from unroll_jax.arguments import at_least, checked
from unroll_jax.keys import threefry_keys

__all__ = ["Perturbation", "layer_noise", "lost_layer"]

#: ``(layer, before, after) -> after``: replaces a layer's output. Layers are counted
#: from 1.
Perturbation = Callable[[Int[Array, ""], Any, Any], Any]


@checked(scale=at_least(0.0))
def layer_noise(key: jax.Array, scale: float | Float[Array, ""]) -> Perturbation:
    """Gaussian noise on every layer's output, drawn separately for each layer.

    Args:
      key: of the noise, of any implementation, typed or raw. With one for each row of
        the state's first axis, a row's noise depends only on its key.
      scale: its standard deviation, in units of the state, finite, at least 0 (else a
        ValueError). It may be traced.

    Returns:
      ``(layer, before, after) -> after + noise``.

    Source: Hadou, NaderiAlizadeh, Ribeiro, "Robust stochastically-descending unrolled
    networks" (2024).

    Example:
      >>> import jax, jax.numpy as jnp, unroll_jax
      >>> noise = layer_noise(jax.random.key(0), 0.1)
      >>> stay = lambda params, y, x: y
      >>> options = {"num_layers": 3, "record": None, "perturb": noise}
      >>> y, _ = unroll_jax.unroll(stay, None, jnp.zeros(4), **options)
      >>> bool((y != 0.0).all())
      True
    """
    # Rows are drawn under vmap, where other keys would depend on each other.
    keys = threefry_keys(key)

    def perturb(layer: Int[Array, ""], before: Any, after: Any) -> Any:
        leaves, structure = jax.tree.flatten(after)
        noisy = []
        for place, leaf in enumerate(leaves):
            noise = _normal(keys, (layer, place), leaf)
            noisy.append(leaf + jnp.asarray(scale, leaf.dtype) * noise)
        return jax.tree.unflatten(structure, noisy)

    return perturb


def lost_layer(lost: int | Int[Array, ""]) -> Perturbation:
    """One layer left out: its output is its input.

    Args:
      lost: the layer, counted from 1. 0 drops no layer. It may be traced, for one
        program of all layers.

    Returns:
      ``(layer, before, after) -> before`` where ``layer == lost``, else ``after``.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> double = lambda params, y, x: 2.0 * y
      >>> options = {"num_layers": 3, "record": None, "perturb": lost_layer(2)}
      >>> unroll_jax.unroll(double, None, jnp.ones(2), **options)[0].tolist()
      [4.0, 4.0]
    """

    def perturb(layer: Int[Array, ""], before: Any, after: Any) -> Any:
        is_lost = jnp.asarray(layer, jnp.int32) == jnp.asarray(lost, jnp.int32)
        return jax.tree.map(
            lambda old, new: jnp.where(is_lost, old, new), before, after
        )

    return perturb


def _normal(key: jax.Array, numbers: tuple[Any, ...], like: jax.Array) -> jax.Array:
    if key.ndim > 0:
        return jax.vmap(lambda row_key, row: _normal(row_key, numbers, row))(key, like)
    for number in numbers:
        key = jax.random.fold_in(key, number)
    return jax.random.normal(key, like.shape, like.dtype)
