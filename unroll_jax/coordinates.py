"""Optimisation in other coordinates: an optax transformation in orthonormal bases."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jaxtyping import Array, Float

from unroll_jax.arguments import require
from unroll_jax.arrays import check_square

__all__ = ["Sides", "in_coordinates"]


class Sides(NamedTuple):
    """Orthonormal bases of the two sides of a matrix (*layers, rows, columns).

    Basis vectors are rows.

    Attributes:
      left: basis of the space of the columns, (rows, rows). None keeps it.
      right: basis of the space of the rows, (columns, columns). None keeps it.

    Example: see `in_coordinates`.
    """

    left: Float[Array | np.ndarray, "rows rows"] | None = None
    right: Float[Array | np.ndarray, "columns columns"] | None = None


def in_coordinates(
    optimizer: optax.GradientTransformation, bases: Any
) -> optax.GradientTransformationExtraArgs:
    r"""Runs an optimiser on :math:`L W R^T` in place of W, for orthonormal L and R.

    Its updates are turned back. Rules that work entry by entry, such as Adam, depend on
    the coordinates of the parameters. Functions, initial values and plain gradient
    descent do not. If the entries of a row are pixels of a patch, Adam changes all of
    them alike, and so the brightness. In the coordinates of the cosine transform it
    does not.

    Args:
      optimizer: any optax transformation. Its state is of the rotated parameters,
        shaped as these are.
      bases: a pytree of `Sides` like the parameters or a prefix of them. None keeps the
        parameters below it.

    Returns:
      A transformation with the state of ``optimizer``. It adds one product per side for
      the gradient, for the update, and for the parameters if they are passed.

    Raises:
      ValueError: if a basis is not orthonormal (to 1e-4), or, in ``init`` and
        ``update``, does not fit its parameter.
      TypeError: if ``bases`` holds anything but `Sides` and None.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> basis = jnp.array([[0.6, 0.8], [-0.8, 0.6]])
      >>> bases = {"W": Sides(right=basis), "b": None}
      >>> optimizer = in_coordinates(optax.sign_sgd(1.0), bases)
      >>> params = {"W": jnp.zeros((1, 2)), "b": jnp.zeros(2)}
      >>> gradient = {"W": jnp.array([[3.0, 4.0]]), "b": jnp.ones(2)}
      >>> updates, _ = optimizer.update(gradient, optimizer.init(params))
      >>> updates["W"].round(1), updates["b"]
      (Array([[-0.6, -0.8]], dtype=float32), Array([-1., -1.], dtype=float32))
    """
    for sides in jax.tree.leaves(bases, is_leaf=_is_sides):
        if not isinstance(sides, Sides):
            raise TypeError(
                "bases must hold Sides or None for each parameter, got"
                f" {type(sides).__name__}"
            )
        for name, basis in sides._asdict().items():
            _check_orthonormal(name, basis)
    inner = optax.with_extra_args_support(optimizer)

    def turn(tree: Any, *, back: bool = False) -> Any:
        """Turns every array by its bases. Masked parameters have no arrays and stay."""

        def turn_below(sides: Sides | None, below: Any) -> Any:
            if sides is None:
                return below
            return jax.tree.map(lambda leaf: _turn(sides, leaf, back=back), below)

        def ends(node: Any) -> bool:
            return node is None or _is_sides(node)

        return jax.tree.map(turn_below, bases, tree, is_leaf=ends)

    def init(params: optax.Params) -> optax.OptState:
        return inner.init(turn(params))

    def update(
        updates: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
        **extra: Any,
    ) -> tuple[optax.Updates, optax.OptState]:
        turned_params = None if params is None else turn(params)
        # optax mixes its counters, int32, with floats
        with jax.numpy_dtype_promotion("standard"):
            turned, state = inner.update(turn(updates), state, turned_params, **extra)
        return turn(turned, back=True), state

    return optax.GradientTransformationExtraArgs(init, update)


def _is_sides(node: Any) -> bool:
    return isinstance(node, Sides)


def _turn(sides: Sides, matrix: Float[Array, "..."], *, back: bool) -> Array:
    """Returns L W R^T, or L^T W R if ``back``."""
    for name, axis, subscripts in (
        ("right", -1, "...j,kj->...k"),
        ("left", -2, "...ij,ki->...kj"),
    ):
        basis = getattr(sides, name)
        if basis is not None:
            fits = matrix.ndim >= -axis and matrix.shape[axis] == basis.shape[0]
            allowed = f"fit the parameter, of shape {matrix.shape}"
            require(fits, name, allowed, f"a basis of R^{basis.shape[0]}")
            basis = jnp.asarray(basis.T if back else basis, matrix.dtype)
            # On accelerators the default precision would lose digits of the update in
            # each step.
            matrix = jnp.einsum(
                subscripts, matrix, basis, precision=jax.lax.Precision.HIGHEST
            )
    return matrix


def _check_orthonormal(name: str, basis: Any) -> None:
    if basis is None or isinstance(basis, Tracer):
        return
    wide = np.asarray(basis, np.float64)
    check_square(name, wide)
    error = np.max(np.abs(wide @ wide.T - np.eye(len(wide))), initial=0.0)
    if not error <= 1e-4:
        raise ValueError(
            f"{name} must be orthonormal, but its rows' products differ from those by"
            f" {error:.2g}"
        )
