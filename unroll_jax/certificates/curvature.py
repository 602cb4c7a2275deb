"""Extreme curvatures of an energy, from Hessian-vector products."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import eigh_tridiagonal
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, checked
from unroll_jax.certificates.per_example import Energy, batch_rank, gradient
from unroll_jax.numerics import compute_dtype, full_precision, powers_of_two
from unroll_jax.spectral import inner, norm, random_like, scale, unit

__all__ = ["Curvature", "curvature"]

# Probability, over the random start, that an extreme eigenvalue lies beyond
# `Curvature.error`.
FAILURE_PROBABILITY = 1e-6
# Rounding of Lanczos, in epsilons of the largest eigenvalue. Each step adds one.
ROUNDING = 16


class Curvature(NamedTuple):
    """Extreme eigenvalues of a Hessian, one per example.

    Attributes:
      smallest: the smallest one found, which is c of a strongly convex quadratic.
      largest: the largest one found, which is L of a convex quadratic. The larger of
        -smallest and largest is a Lipschitz constant of the gradient.
      error: how far beyond the two the extremes may lie, with probability 1 - 1e-6. It
        includes rounding, and is inf if unknown.

    Example: see `curvature`.
    """

    smallest: Float[Array, "*batch"]
    largest: Float[Array, "*batch"]
    error: Float[Array, ""]


def hessian_product(f: Energy, y: Any, v: Any) -> Any:
    """The Hessian of each example's energy times ``v``, by two reverse passes.

    f may have a custom_vjp.

    Args:
      f: ``y -> (*batch,)``, twice differentiable in reverse mode.
      y: a pytree of arrays whose leading axes are the batch of ``f(y)``.
      v: of the structure and shapes of y.

    Example:
      >>> import jax.numpy as jnp
      >>> cubes = lambda y: jnp.sum(y**3, axis=-1)
      >>> hessian_product(cubes, jnp.array([1.0, 2.0]), jnp.ones(2)).tolist()  # 6 y v
      [6.0, 12.0]
    """
    return jax.vjp(lambda state: gradient(f, state), y)[1](v)[0]


@checked(num_steps=at_least(2))
@full_precision()
def curvature(
    f: Energy, y: Any, *, num_steps: int = 64, key: jax.Array | None = None
) -> Curvature:
    r"""Smallest and largest eigenvalue of :math:`\nabla^2 f(y)`, by Lanczos.

    For a quadratic f these are its convexity c and smoothness L, at every y. For any
    other f they hold only at y.

    Every vector is orthogonalised against all before it. The two are exact to rounding
    once ``num_steps`` reaches the number D of entries of an example, or of distinct
    eigenvalues. With m = ``num_steps`` below that they lie inside the spectrum. The
    probability over the start that one is off by more than a fraction e of the
    spectrum's width is at most :math:`1.648 \sqrt{D} \exp(-(2 m - 1) \sqrt{e})`.

    Args:
      f, y: as in `hessian_product`.
      num_steps: number of Hessian products, at least 2. As many states are kept in
        memory.
      key: of the random start. None is a fixed one.

    Source: Lanczos (1950). The error: Kuczynski and Wozniakowski (1992), "Estimating
    the largest eigenvalue by the power and Lanczos algorithms with a random start",
    Section 4, for the Hessian shifted to be positive semidefinite.

    Example:
      >>> import jax.numpy as jnp
      >>> energy = lambda y: 0.5 * jnp.sum(jnp.array([1.0, 2.0, 5.0]) * y**2)
      >>> extremes: Curvature = curvature(energy, jnp.zeros(3), num_steps=3)
      >>> round(float(extremes.smallest), 3), round(float(extremes.largest), 3)
      (1.0, 5.0)
    """
    y = jax.tree.map(lambda leaf: jnp.asarray(leaf, compute_dtype(leaf)), y)
    rank = batch_rank(f, y)
    start = random_like(y, key)
    size = sum(math.prod(leaf.shape[rank:]) for leaf in jax.tree.leaves(start))

    def product(v: Any) -> Any:
        return hessian_product(f, y, v)

    tridiagonal = _lanczos(product, start, min(num_steps, size), rank)
    values = _tridiagonal_eigenvalues(*tridiagonal)
    smallest = values[..., 0]
    largest = values[..., -1]

    rounding = (num_steps + ROUNDING) * float(jnp.finfo(values.dtype).eps)
    error = rounding * jnp.max(jnp.maximum(jnp.abs(smallest), jnp.abs(largest)))
    error = error + _missed_fraction(size, num_steps) * jnp.max(largest - smallest)
    return Curvature(smallest, largest, error)


def _missed_fraction(size: int, num_steps: int) -> float:
    """Returns how far the extremes may lie beyond those found, over the width found."""
    if num_steps >= size:
        return 0.0
    chance = FAILURE_PROBABILITY / (1.648 * math.sqrt(size))
    of_true_width = (math.log(chance) / (2 * num_steps - 1)) ** 2
    # So much may be missing at either end.
    if of_true_width >= 0.5:
        return math.inf
    return of_true_width / (1.0 - 2.0 * of_true_width)


def _lanczos(
    apply: Callable[[Any], Any], start: Any, num_steps: int, rank: int
) -> tuple[Array, Array]:
    """The tridiagonal matrix of each example, its diagonal and the one above."""
    start = unit(start, rank)
    basis = jax.tree.map(
        lambda leaf: jnp.zeros((num_steps, *leaf.shape), leaf.dtype), start
    )

    def step(
        carry: tuple[Any, Any], place: Array
    ) -> tuple[tuple[Any, Any], tuple[Array, Array]]:
        basis, v = carry
        basis = jax.tree.map(lambda rows, row: rows.at[place].set(row), basis, v)
        image = apply(v)
        diagonal = inner(v, image, rank)

        # The second pass removes the rounding of the first.
        remainder = _remove(basis, _remove(basis, image, rank), rank)
        length = norm(remainder, rank)

        # A small remainder may belong to eigenvalues near 0, or be round-off in an
        # invariant space. Either is a direction to go on in, unless it lies in the
        # space of the basis.
        direction = _remove(basis, unit(remainder, rank), rank)
        is_new = norm(direction, rank) > 0.5
        v = scale(is_new.astype(length.dtype), unit(direction, rank))
        return (basis, v), (diagonal, jnp.where(is_new, length, 0.0))

    places = jnp.arange(num_steps)
    _, (diagonal, off_diagonal) = jax.lax.scan(step, (basis, start), places)

    # Without a new direction all later rows are 0. The first diagonal entry, which lies
    # within the spectrum, replaces theirs.
    exhausted = (off_diagonal == 0.0).astype(jnp.int32)
    ended = jnp.cumsum(exhausted, axis=0) > exhausted
    diagonal = jnp.where(ended, diagonal[0], diagonal)
    return jnp.moveaxis(diagonal, 0, -1), jnp.moveaxis(off_diagonal, 0, -1)[..., :-1]


def _remove(basis: Any, v: Any, rank: int) -> Any:
    """Returns v less its projection onto the rows of an orthonormal basis."""
    coefficients = jax.vmap(lambda row: inner(row, v, rank))(basis)
    parts = jax.vmap(scale)(coefficients, basis)
    return jax.tree.map(lambda leaf, part: leaf - jnp.sum(part, axis=0), v, parts)


def _tridiagonal_eigenvalues(diagonal: Array, off_diagonal: Array) -> Array:
    """Returns ascending eigenvalues, by bisection.

    LAPACK may not run several calls at a time.
    """
    if diagonal.shape[-1] == 1:
        return diagonal

    # Bisection squares the entries: those of 1e-30 or 1e30 leave the range of float32.
    entries = jnp.concatenate([diagonal, off_diagonal], axis=-1)
    largest = jnp.max(jnp.abs(entries), axis=-1, keepdims=True)
    smaller, back = powers_of_two(largest)

    def solve(d: Array, e: Array) -> Any:
        return eigh_tridiagonal(d, e, eigvals_only=True)

    for _ in range(diagonal.ndim - 1):
        solve = jax.vmap(solve)
    return back * solve(smaller * diagonal, smaller * off_diagonal)
