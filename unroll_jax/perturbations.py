"""Perturbations of a layer's output, the ``perturb`` of `unroll`: noise on it, or the layer left out."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from unroll_jax.arguments import at_least, checked, in_interval

__all__ = ["Perturbation", "in_turn", "layer_dropout", "layer_dropout_rates", "layer_noise", "lost_layer"]

#: ``(layer, before, after) -> after``: replaces a layer's output; layers are counted from 1.
Perturbation = Callable[[Int[Array, ""], Any, Any], Any]


@checked(scale=at_least(0.0))
def layer_noise(key: jax.Array, scale: float | Float[Array, ""]) -> Perturbation:
    """Gaussian noise on every layer's output, drawn anew for each layer.

    Args:
      key: of the noise; or one for each row of the state's first axis, so that a row's noise depends on its key alone.
      scale: its standard deviation, in units of the state, at least 0; may be traced.

    Returns:
      ``(layer, before, after) -> after + noise``.

    Raises:
      ValueError: if a known ``scale`` is negative or not finite.

    Source: Hadou, NaderiAlizadeh, Ribeiro, "Robust stochastically-descending unrolled networks" (2024).

    Example:
      >>> import jax, jax.numpy as jnp, unroll_jax
      >>> noise = layer_noise(jax.random.key(0), 0.1)
      >>> y, _ = unroll_jax.unroll(lambda params, y, x: y, None, jnp.zeros(4), num_layers=3, record=None, perturb=noise)
      >>> bool((y != 0.0).all())
      True
    """

    def perturb(layer: Int[Array, ""], before: Any, after: Any) -> Any:
        leaves, structure = jax.tree.flatten(after)
        noises = [_normal(key, (layer, place), leaf) for place, leaf in enumerate(leaves)]
        noisy = [leaf + jnp.asarray(scale, leaf.dtype) * noise for leaf, noise in zip(leaves, noises, strict=True)]
        return jax.tree.unflatten(structure, noisy)

    return perturb


def lost_layer(lost: int | Int[Array, ""]) -> Perturbation:
    """One layer left out: its output is its input.

    Args:
      lost: the layer, counted from 1; may be traced, so that one program serves all. No layer has the number 0.

    Returns:
      ``(layer, before, after) -> before`` where ``layer == lost``, else ``after``.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> double = lambda params, y, x: 2.0 * y
      >>> unroll_jax.unroll(double, None, jnp.ones(2), num_layers=3, record=None, perturb=lost_layer(2))[0].tolist()
      [4.0, 4.0]
    """

    def perturb(layer: Int[Array, ""], before: Any, after: Any) -> Any:
        return jax.tree.map(lambda old, new: jnp.where(layer == lost, old, new), before, after)

    return perturb


def layer_dropout(key: jax.Array, rates: Float[Array, "layers"] | tuple[float, ...]) -> Perturbation:
    """Layers left out at random, for each row of the state's first axis by itself; nothing is scaled.

    Args:
      key: of the draws; or one for each row, so that a row's draws depend on its key alone.
      rates: probability that a row skips layer 1, 2, ..., in [0, 1], such as `layer_dropout_rates`; may be traced.

    Returns:
      ``(layer, before, after) -> before`` in the rows that skip the layer, ``after`` in the others.

    Source: Huang et al., "Deep networks with stochastic depth" (2016); Elhoushi et al., "LayerSkip" (2024), equation 1.

    Example:
      >>> import jax, jax.numpy as jnp, unroll_jax
      >>> double, drop = (lambda params, y, x: 2.0 * y), layer_dropout(jax.random.key(0), (0.0, 1.0, 0.0))
      >>> unroll_jax.unroll(double, None, jnp.ones((2, 1)), num_layers=3, record=None, perturb=drop)[0].ravel().tolist()
      [4.0, 4.0]
    """
    rates = jnp.asarray(rates, jnp.float32)

    def perturb(layer: Int[Array, ""], before: Any, after: Any) -> Any:
        rows = jax.tree.leaves(after)[0].shape[0]
        keys = jax.vmap(jax.random.fold_in, (0, None))(key, layer) if key.ndim else jax.random.fold_in(key, layer)
        drawn = jax.vmap(jax.random.uniform)(keys) if key.ndim else jax.random.uniform(keys, (rows,))
        skips = drawn < rates[layer - 1]

        def kept(old: Array, new: Array) -> Array:
            return jnp.where(skips.reshape(-1, *(1,) * (new.ndim - 1)), old, new)

        return jax.tree.map(kept, before, after)

    return perturb


@checked(num_layers=at_least(1), largest=in_interval("[0, 1]"), progress=in_interval("[0, 1]"))
def layer_dropout_rates(num_layers: int, largest: float, *, progress: float = 1.0) -> tuple[float, ...]:
    r"""Rates of `layer_dropout` that grow with depth: :math:`p_l = S\, (2^{(l-1)/(L-1)} - 1)\, p_{max}`.

    Args:
      num_layers: L, at least 1.
      largest: the rate of the last layer, in [0, 1].
      progress: share of training that is over, in [0, 1]: :math:`S = 2^{progress} - 1`. LayerSkip raises it where it
        trains from random weights; 1 where it starts from a pretrained model.

    Returns:
      The rates of layers 1 to L.

    Raises:
      ValueError: naming the argument, its value and the values allowed.

    Source: Elhoushi et al., "LayerSkip" (2024), section 4.1.1.

    Example:
      >>> [round(rate, 3) for rate in layer_dropout_rates(3, 0.2)]
      [0.0, 0.083, 0.2]
    """
    scale = (2.0**progress - 1.0) * largest
    return tuple(scale * math.expm1(math.log(2.0) * layer / max(num_layers - 1, 1)) for layer in range(num_layers))


def in_turn(*perturbations: Perturbation) -> Perturbation:
    """Several perturbations, each applied to the result of the one before; none changes nothing.

    Args:
      *perturbations: each ``(layer, before, after) -> after``, the first one first.

    Returns:
      One such function.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> double, both_lost = (lambda params, y, x: 2.0 * y), in_turn(lost_layer(1), lost_layer(3))
      >>> unroll_jax.unroll(double, None, jnp.ones(2), num_layers=3, record=None, perturb=both_lost)[0].tolist()
      [2.0, 2.0]
    """

    def perturb(layer: Int[Array, ""], before: Any, after: Any) -> Any:
        for one in perturbations:
            after = one(layer, before, after)
        return after

    return perturb


def _normal(key: jax.Array, numbers: tuple[Any, ...], like: jax.Array) -> jax.Array:
    if key.ndim > 0:
        return jax.vmap(lambda row_key, row: _normal(row_key, numbers, row))(key, like)
    for number in numbers:
        key = jax.random.fold_in(key, number)
    return jax.random.normal(key, like.shape, like.dtype)
