"""Deep OptEq: layers one after another, or all at once on blocks."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import require
from unroll_jax.descent import Descent, Params
from unroll_jax.energies.equilibrium.opteq import opteq, opteq_example
from unroll_jax.energies.examples import DIM, Example
from unroll_jax.energies.tokens import check_kind, with_param_check
from unroll_jax.numerics import compute_dtype

__all__ = ["deep_opteq", "deep_opteq_example", "multi_block", "residual_energy"]


def deep_opteq(layers: Sequence[Descent]) -> Descent:
    r"""Deep OptEq: one step applies every layer once.

    .. math:: T = f_L \circ \dots \circ f_1 ,
              \qquad E(z) = \tfrac12 |T(z) - z|^2 \quad (L > 1) ,

    and for L = 1 the layer itself. **No step raises E** if every :math:`|W_l|_2 \le 1`:
    then T is nonexpansive, and :math:`|T(T(z)) - T(z)| \le |T(z) - z|`. With one below
    1, T contracts, and E is stationary only at its fixed point.

    In general T does not descend a convex function: by Theorem 2 of the source an
    equilibrium solves :math:`0 \in \partial \Phi(\tilde z) + (I - P) \tilde z`, and for
    L > 2 the shift P is not symmetric. For L = 2 a step is a round of alternating
    minimisation of :math:`\Phi(z_1, z_0) + \tfrac12 |z_1 - z_0|^2`
    (`deep_opteq_objective`). Its value needs an inner solve, so the energy is the
    residual for every L > 1.

    Args:
      layers: of `opteq` or `opteq_conv`, with their skip connections, activations and
        input widths, or any `Descent` whose step is nonexpansive. All have states of
        one shape.

    Returns:
      A `Descent` whose params are a tuple of the layers' params.

    Source: Xie et al. (2021), eqs. 4 and 5. The two energies are ours, the first of
    all, the second from Corollary 1.

    Example:
      >>> import jax
      >>> from unroll_jax.energies import opteq
      >>> layer = deep_opteq([opteq(4, 8), opteq(4, 6, 3, skip=0.5)])
      >>> params = jax.jit(layer.init)(jax.random.key(0))
      >>> x, z = jax.random.normal(jax.random.key(1), (5, 3)), jax.numpy.zeros((5, 4))
      >>> after = jax.jit(layer.step)(params, z, x)
      >>> energy = jax.jit(layer.energy)
      >>> fell = energy(params, after, x) < energy(params, z, x)
      >>> bool(fell.all())
      True
    """
    chain = _as_layers(layers)
    first, rest = chain[0], chain[1:]

    def step(params: Params, z: Array, x: Any = None) -> Array:
        for layer, layer_params in zip(chain, params, strict=True):
            z = layer.step(layer_params, z, x)
        return z

    def first_energy(params: Params, z: Array, x: Any = None) -> Float[Array, "*batch"]:
        return first.energy(params[0], z, x)

    def states(z: Array) -> tuple[Array, ...]:
        return (z,) * len(chain)

    if rest:
        return _of_layers(chain, residual_energy(step, first_energy), step, states)
    layer = _of_layers(chain, first_energy, step, states)
    layer = layer._replace(symmetric=first.symmetric)
    factored = first.factored
    if factored is None:
        return layer
    return layer._replace(factored=lambda params, x: factored(params[0], x))


def multi_block(layers: Sequence[Descent]) -> Descent:
    r"""All layers of a deep OptEq at once, each on its own block.

    They are a single wide layer behind a cyclic shift:

    .. math:: \tilde z = (z_1, \dots, z_L) , \qquad \tilde z' = F(P \tilde z) , \qquad
              P \tilde z = (z_L, z_1, \dots, z_{L-1}) , \qquad F = (f_1, \dots, f_L) ,

    with the energy :math:`\tfrac12 |F(P \tilde z) - \tilde z|^2`, which no step raises
    if every :math:`|W_l|_2 \le 1`. At its fixed points :math:`z_L` is one of T,
    :math:`z_l = f_l \circ \dots \circ f_1 (z_L)`. One step costs as much as one step of
    `deep_opteq`, and its layers are independent. It takes L times as many steps.

    Args:
      layers: as in `deep_opteq`.

    Returns:
      A `Descent` whose state is a tuple of L blocks and whose params are a tuple of the
      layers' params.

    Source: Xie et al. (2021), Lemma 3 and eq. 6, where z_0 is our z_L.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax.energies import opteq
      >>> layer, z = opteq(2, 3), (jnp.zeros(2), jnp.ones(2))
      >>> blocks = multi_block([layer, layer])
      >>> params = jax.jit(blocks.init)(jax.random.key(0))
      >>> first, _ = blocks.step(params, z, None)  # sees the last block
      >>> bool(jnp.allclose(first, layer.step(params[0], z[1], None)))
      True
    """
    chain = _as_layers(layers)

    def step(params: Params, z: tuple[Array, ...], x: Any = None) -> tuple[Array, ...]:
        if not isinstance(z, tuple) or len(z) != len(chain):
            raise ValueError(
                f"z must be a tuple of {len(chain)} blocks, got {type(z).__name__} of"
                f" {len(z)}"
            )
        shifted = (z[-1], *z[:-1])
        after = []
        for layer, layer_params, block in zip(chain, params, shifted, strict=True):
            after.append(layer.step(layer_params, block, x))
        return tuple(after)

    def first_energy(params: Params, z: Any, x: Any) -> Float[Array, "*batch"]:
        return chain[0].energy(params[0], z[0], x)

    energy = residual_energy(step, first_energy)
    return _of_layers(chain, energy, step, lambda blocks: blocks)


def residual_energy(
    step: Callable[[Params, Any, Any], Any],
    like: Callable[[Params, Any, Any], Float[Array, "*batch"]],
) -> Callable[..., Float[Array, "*batch"]]:
    """E(z) = |T(z) - z|^2 / 2 of a step T on pytrees. No nonexpansive T raises it.

    The value of ``like`` has the batch axes.
    """

    def energy(params: Params, z: Any, x: Any = None) -> Float[Array, "*batch"]:
        batch = jax.eval_shape(like, params, z, x).shape
        dtype = compute_dtype(*jax.tree.leaves(z))
        wide = jax.tree.map(lambda leaf: leaf.astype(dtype), z)
        residual = jax.tree.map(jnp.subtract, step(params, wide, x), wide)
        total = jnp.zeros(batch, dtype)
        for leaf in jax.tree.leaves(residual):
            total = total + jnp.sum(leaf**2, axis=tuple(range(len(batch), leaf.ndim)))
        return 0.5 * total

    return energy


def deep_opteq_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Two layers, of initial norms below 1. Only the second sees the input."""
    _, z, x = opteq_example(key, batch)
    return deep_opteq([opteq(DIM, DIM), opteq(DIM, 2 * DIM, DIM - 1, skip=0.8)]), z, x


def _as_layers(layers: Sequence[Descent]) -> tuple[Descent, ...]:
    is_sequence = isinstance(layers, Sequence)
    if not is_sequence or not all(isinstance(layer, Descent) for layer in layers):
        raise TypeError(f"layers must be a sequence of Descents, got {layers!r}")
    require(layers, "layers", "hold at least one layer", "none")
    return tuple(layers)


def _of_layers(
    layers: tuple[Descent, ...],
    energy: Callable,
    step: Callable,
    states_of: Callable[[Any], tuple[Any, ...]],
) -> Descent:
    """A `Descent` on a tuple of params, one per layer.

    Its check runs each layer's check on the layer's state.
    """

    def check_all(params: Params) -> None:
        check_kind(params, tuple)
        fits = len(params) == len(layers)
        allowed = f"hold those of {len(layers)} layers"
        require(fits, "params", allowed, len(params), "init(key) makes them")

    def check(params: Params, state: Any) -> None:
        each = zip(layers, params, states_of(state), strict=True)
        for place, (layer, layer_params, z) in enumerate(each, start=1):
            try:
                if layer.check is not None:
                    layer.check(layer_params, z)
            except ValueError as error:
                raise ValueError(f"layer {place} of {len(layers)}: {error}") from None

    def init(key: jax.Array) -> tuple[Params, ...]:
        keys = jax.random.split(key, len(layers))
        return tuple(layer.init(keys[place]) for place, layer in enumerate(layers))

    checks = None if all(layer.check is None for layer in layers) else check
    return with_param_check(Descent(init, energy, step, check=checks), check_all)
