"""Deep OptEq: layers one after another, or all at once on blocks, with the same
equilibria."""

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

    .. math:: T = f_L \circ \dots \circ f_1 , \qquad E(z) = \tfrac12 |T(z) - z|^2 \quad (L > 1) ,

    and for L = 1 the layer itself. **No step raises E** if every :math:`|W_l|_2 \le 1`:
    then T is nonexpansive, and :math:`|T(T(z)) - T(z)| \le |T(z) - z|`. With one below
    1, T contracts, and E is stationary only at its fixed point.

    In general T does not descend a convex function: by Theorem 2 of the source an
    equilibrium solves :math:`0 \in \partial \Phi(\tilde z) + (I - P) \tilde z`, and for
    L > 2 the shift P is not symmetric. For L = 2 a step is a round of alternating
    minimisation of :math:`\Phi(z_1, z_0) + \tfrac12 |z_1 - z_0|^2`
    (`deep_opteq_objective`). Its value takes an inner solve; so the energy is the
    residual for every L > 1.

    Args:
      layers: what `opteq` or `opteq_conv` returned (skip connections, activations and
        which layers see x are theirs), or any `Descent` whose step is nonexpansive; all
        on states of one shape.

    Returns:
      A `Descent` whose params are a tuple of the layers' params.

    Source: Xie et al. (2021), eqs. 4 and 5; the two energies are ours, the first of
    all, the second from Corollary 1.

    Example:
      >>> import jax
      >>> from unroll_jax.energies import opteq
      >>> layer = deep_opteq([opteq(4, 8), opteq(4, 6, 3, skip=0.5)])
      >>> params, x = (
      ...     layer.init(jax.random.key(0)),
      ...     jax.random.normal(jax.random.key(1), (5, 3)),
      ... )
      >>> z = jax.numpy.zeros((5, 4))
      >>> bool(
      ...     (
      ...         layer.energy(params, layer.step(params, z, x), x)
      ...         < layer.energy(params, z, x)
      ...     ).all()
      ... )
      True
    """
    chain = _checked(layers)
    first, rest = chain[0], chain[1:]

    def step(params: Params, z: Array, x: Any = None) -> Array:
        for layer, layer_params in zip(chain, params, strict=True):
            z = layer.step(layer_params, z, x)
        return z

    def first_energy(params: Params, z: Array, x: Any = None) -> Float[Array, "*batch"]:
        return first.energy(params[0], z, x)

    if rest:
        return _of_layers(
            chain,
            residual_energy(step, first_energy),
            step,
            lambda z: (z,) * len(chain),
        )
    factored = first.factored
    only_factored = (
        None if factored is None else lambda params, x: factored(params[0], x)
    )
    layer = _of_layers(chain, first_energy, step, lambda z: (z,))
    return layer._replace(factored=only_factored, symmetric=first.symmetric)


def multi_block(layers: Sequence[Descent]) -> Descent:
    r"""All layers of a deep OptEq at once, each on its own block: a single wide layer
    behind a cyclic shift.

    .. math:: \tilde z = (z_1, \dots, z_L) , \qquad \tilde z' = F(P \tilde z) , \qquad
              P \tilde z = (z_L, z_1, \dots, z_{L-1}) , \qquad F = (f_1, \dots, f_L) ,

    with the energy :math:`\tfrac12 |F(P \tilde z) - \tilde z|^2`, which no step raises
    if every :math:`|W_l|_2 \le 1`. At its fixed points :math:`z_L` is one of T,
    :math:`z_l = f_l \circ \dots \circ f_1 (z_L)`. One step does the work of one step of
    `deep_opteq`, with independent layers; it takes L times as many.

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
      >>> params = blocks.init(jax.random.key(0))
      >>> bool(
      ...     jnp.allclose(
      ...         blocks.step(params, z, None)[0], layer.step(params[0], z[1], None)
      ...     )
      ... )  # the shift
      True
    """
    chain = _checked(layers)

    def step(params: Params, z: tuple[Array, ...], x: Any = None) -> tuple[Array, ...]:
        if not isinstance(z, tuple) or len(z) != len(chain):
            raise ValueError(
                f"z must be a tuple of {len(chain)} blocks, got {type(z).__name__} of"
                f" {len(z)}"
            )
        shifted = (z[-1], *z[:-1])
        return tuple(
            layer.step(of_layer, z, x)
            for layer, of_layer, z in zip(chain, params, shifted, strict=True)
        )

    energy = residual_energy(
        step, lambda params, z, x: chain[0].energy(params[0], z[0], x)
    )
    return _of_layers(chain, energy, step, lambda blocks: blocks)


def residual_energy(
    step: Callable[[Params, Any, Any], Any],
    like: Callable[[Params, Any, Any], Float[Array, "*batch"]],
) -> Callable[..., Float[Array, "*batch"]]:
    """E(z) = |T(z) - z|^2 / 2 of a step T on pytrees; no nonexpansive T raises it.
    ``like`` has the batch axes."""

    def energy(params: Params, z: Any, x: Any = None) -> Float[Array, "*batch"]:
        batch = jax.eval_shape(like, params, z, x).shape
        dtype = compute_dtype(*jax.tree.leaves(z))
        wide = jax.tree.map(lambda leaf: leaf.astype(dtype), z)
        moved = jax.tree.map(jnp.subtract, step(params, wide, x), wide)
        squares = [
            jnp.sum(leaf**2, axis=tuple(range(len(batch), leaf.ndim)))
            for leaf in jax.tree.leaves(moved)
        ]
        return 0.5 * sum(squares, jnp.zeros(batch, dtype))

    return energy


def deep_opteq_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Two layers; only the second sees the input. Initial weights have norms below
    1."""
    _, z, x = opteq_example(key, batch)
    return deep_opteq([opteq(DIM, DIM), opteq(DIM, 2 * DIM, DIM - 1, skip=0.8)]), z, x


def _checked(layers: Sequence[Descent]) -> tuple[Descent, ...]:
    if not isinstance(layers, Sequence) or not all(
        isinstance(layer, Descent) for layer in layers
    ):
        raise TypeError(f"layers must be a sequence of Descents, got {layers!r}")
    require(layers, "layers", "hold at least one layer", "none")
    return tuple(layers)


def _of_layers(
    layers: tuple[Descent, ...],
    energy: Callable,
    step: Callable,
    states_of: Callable[[Any], tuple[Any, ...]],
) -> Descent:
    """A `Descent` on a tuple of params, one per layer; its check runs each layer's
    check on the layer's state."""

    def check_all(params: Params) -> None:
        check_kind(params, tuple)
        allowed = f"hold those of {len(layers)} layers"
        require(
            len(params) == len(layers),
            "params",
            allowed,
            len(params),
            "init(key) makes them",
        )

    def check(params: Params, state: Any) -> None:
        for place, (layer, layer_params, z) in enumerate(
            zip(layers, params, states_of(state), strict=True), start=1
        ):
            try:
                if layer.check is not None:
                    layer.check(layer_params, z)
            except ValueError as error:
                raise ValueError(f"layer {place} of {len(layers)}: {error}") from None

    def init(key: jax.Array) -> tuple[Params, ...]:
        keys = jax.random.split(key, len(layers))
        return tuple(
            layer.init(layer_key) for layer, layer_key in zip(layers, keys, strict=True)
        )

    checks = None if all(layer.check is None for layer in layers) else check
    return with_param_check(Descent(init, energy, step, check=checks), check_all)
