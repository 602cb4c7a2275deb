"""The systems of factored layers: conjugate gradients, helped where they are slow by one inverse for all examples."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.conjugate_gradients import continue_conjugate_gradient
from unroll_jax.fixed_point.flat_states import norm
from unroll_jax.steps import vary_like

__all__ = ["Shared", "inverse", "prepare", "product", "solve"]

# Sides of blocks within blocks. LAPACK inverts the smallest alone: on more than 16 rows its threads and XLA's get in
# each other's way (20 ms for 32 rows were seen on two busy cores), and from 256 rows on products are quicker.
BLOCKS = (64, 16)
UNKNOWN = 64  # examples, that a batch of unknown size is taken to have when the quicker way is chosen
STRIP = 128  # rows changed at once, which bounds the memory next to the matrix


class Shared(NamedTuple):
    """One square matrix that all examples of a layer share; None for the parts that do not pay.

    Attributes:
      made: whether the table holds an inverse; until then it holds G = W W^T, if that is the quicker way to it.
      root: the diagonal of R, the root of mean slopes that the inverse is for.
      table: (I - R G R)^{-1}; or (I - W^T R^2 W)^{-1} where the state is much narrower than the hidden layer.
    """

    made: Bool[Array, ""]
    root: Float[Array, " h"]
    table: Float[Array, "k k"]


class _Round(NamedTuple):
    number: Int[Array, ""]
    q: Array
    residual: Array
    steps: Array
    shared: Shared


def prepare(matrix: Float[Array, "h m"], states: Float[Array, "b _"]) -> Shared | None:
    """Returns the initial state of `solve`; None for a single example (or none), with nobody to share the cost."""
    if (rows := _rows(states)) <= 1:
        return None
    side = matrix.shape[0] if _wide(matrix) else matrix.shape[1]
    table = matrix @ matrix.T if _squared(matrix, rows) else jnp.zeros((side, side), matrix.dtype)
    return vary_like(Shared(jnp.zeros((), bool), jnp.zeros(matrix.shape[0], matrix.dtype), table), states)


def product(matrix: Float[Array, "h m"], shared: Shared | None) -> Callable[[Float[Array, "b h"]], Float[Array, "b h"]]:
    """u -> G u, on rows, the quickest way that ``shared`` offers."""

    def twice(u: Array) -> Array:
        return (u @ matrix) @ matrix.T

    if shared is None:
        return twice
    made, _, table = shared
    return lambda u: jax.lax.cond(made, twice, lambda u: u @ table, u) if _squared(matrix, _rows(u)) else twice(u)


def solve(
    matrix: Float[Array, "h m"],
    root: Float[Array, "b h"],
    right: Float[Array, "b h"],
    shared: Shared | None,
    *,
    tol: float | Float[Array, " b"],
    max_steps: int,
) -> tuple[Float[Array, "b h"], Int[Array, " b"], Shared | None]:
    r"""q - D^{1/2} G D^{1/2} q = r for every example, to a relative residual of ``tol``; D^{1/2} is ``root``.

    Plain conjugate gradients for as many steps as an inverse costs; then, where an example is not done, conjugate
    gradients preconditioned by the inverse for the mean D of all examples. So a solve costs at most about twice the
    better of the two, and where much the same units are active in all examples a few steps are enough, for any |W|.

    Returns:
      ``(q, steps, shared)``; pass ``shared`` on to the next solve with the same W. An inverse that has grown slow is
      made anew.
    """
    size = norm(right)
    # Squares of sizes far from 1 leave the range of float32; the barrier keeps XLA from taking them all the same.
    right = jax.lax.optimization_barrier(right / jnp.where(size > 0.0, size, 1.0)[:, None])
    bound, zero = jnp.broadcast_to(jnp.square(tol), size.shape), jnp.zeros_like(right)

    def twice(u: Array) -> Array:
        return u - root * (((root * u) @ matrix) @ matrix.T)

    if shared is None:
        q, _, steps = continue_conjugate_gradient(twice, zero, right, bound=bound, max_steps=max_steps)
        return size[:, None] * q, steps, None
    patience, (made, _, gram) = _patience(matrix, _rows(right)), shared

    def once(u: Array) -> Array:
        return u - root * ((root * u) @ gram)

    q, residual, steps = continue_conjugate_gradient(
        once if _squared(matrix, _rows(right)) else twice,
        zero,
        right,
        bound=bound,
        max_steps=jnp.where(made, 0, min(patience, max_steps)),
    )

    begin = _Round(jnp.zeros((), jnp.int32), q, residual, steps, shared)
    end = _helped(matrix, root, twice, begin, bound, max_steps, patience)
    return size[:, None] * end.q, end.steps, end.shared


def _helped(
    matrix: Array,
    root: Array,
    twice: Callable[[Array], Array],
    begin: _Round,
    bound: Array,
    max_steps: int,
    patience: int,
) -> _Round:
    """Rounds of preconditioned steps, the second with an inverse made anew, until every example is done."""

    def unfinished(carry: _Round) -> Array:
        going = jnp.any(jnp.sum(carry.residual**2, -1) > bound)
        return going & (carry.number < 2) & (jnp.max(carry.steps) < max_steps)

    def body(carry: _Round) -> _Round:
        stale = ~carry.shared.made | (carry.number > 0)
        going = jnp.sum(carry.residual**2, -1) > bound
        # A loop of one turn or none: unlike a condition it works in place, and under vmap it may be skipped.
        shared, _ = jax.lax.while_loop(
            lambda turn: turn[1], lambda turn: (_invert(matrix, root, going), False & turn[1]), (carry.shared, stale)
        )
        q, residual, steps = continue_conjugate_gradient(
            twice,
            carry.q,
            carry.residual,
            bound=bound,
            max_steps=jnp.minimum(jnp.where(stale, max_steps, patience), max_steps - jnp.max(carry.steps)),
            precondition=_preconditioner(matrix, shared),
        )
        return _Round(carry.number + 1, q, residual, carry.steps + steps, shared)

    return jax.lax.while_loop(unfinished, body, begin)


def inverse(matrix: Float[Array, "n n"], blocks: tuple[int, ...] = BLOCKS) -> Float[Array, "n n"]:
    """Gauss-Jordan elimination by blocks, in place, without pivots, which a positive definite matrix does not need.

    In 2 n^3 operations, nearly all of them in products; not finite where the matrix is not positive definite.

    Source: Golub and Van Loan (2013), Matrix Computations, Sections 3.2.11 and 4.2.
    """
    size, dtype = len(matrix), matrix.dtype
    if not blocks:
        return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(matrix), True), jnp.eye(size, dtype=dtype))
    block = blocks[0]
    if size <= block:
        return inverse(matrix, blocks[1:])
    strip = min(-(-size // block) * block, STRIP)
    whole = -(-size // strip) * strip
    padded = jnp.eye(whole, dtype=dtype).at[:size, :size].set(matrix) if whole > size else matrix

    def eliminate(index: Array, table: Array) -> Array:
        start = index * block
        rows = jax.lax.dynamic_slice_in_dim(table, start, block, 0)
        pivot = inverse(jax.lax.dynamic_slice_in_dim(rows, start, block, 1), blocks[1:])
        scaled = jax.lax.dynamic_update_slice_in_dim(pivot @ rows, pivot, start, 1)

        def subtract(number: Array, table: Array) -> Array:
            others = jax.lax.dynamic_slice_in_dim(table, number * strip, strip, 0)
            column = jax.lax.dynamic_slice_in_dim(others, start, block, 1)
            others = jax.lax.dynamic_update_slice_in_dim(others, jnp.zeros_like(column), start, 1)
            return jax.lax.dynamic_update_slice_in_dim(table, others - column @ scaled, number * strip, 0)

        table = jax.lax.fori_loop(0, whole // strip, subtract, table)
        return jax.lax.dynamic_update_slice_in_dim(table, scaled, start, 0)

    return jax.lax.fori_loop(0, whole // block, eliminate, padded)[:size, :size]


def _rows(states: Array) -> int:
    """The number of examples; of an unknown number, as `jax.export` may have, a guess."""
    rows = states.shape[0]
    return rows if isinstance(rows, int) else UNKNOWN


def _wide(matrix: Array) -> bool:
    """Returns whether one product with G is cheaper than two with W."""
    width, dim = matrix.shape
    return width < 2 * dim


def _squared(matrix: Array, rows: int) -> bool:
    """Returns whether making G pays off, which takes 20 products on ``rows`` examples."""
    width, dim = matrix.shape
    return rows > 1 and 20 * rows * (2 * dim - width) > width * dim


def _patience(matrix: Array, rows: int) -> int:
    """Steps that take the time of an inverse and of the slower steps with it: an easy system never pays for it."""
    return max(24, 2 * min(matrix.shape) // max(rows, 16))


def _invert(matrix: Array, root: Array, going: Array) -> Shared:
    """For the mean slopes of the examples that go on; the identity where |W| > 1 leaves the mean indefinite."""
    # A sum and no product, which explicit shardings of the examples would make ambiguous; and 0 times NaN is not 0.
    slopes = jnp.sum(jnp.where(going[:, None], root**2, 0.0), axis=0)
    mean = jnp.sqrt(slopes / jnp.maximum(jnp.sum(going.astype(root.dtype)), 1.0))
    scaled = mean[:, None] * matrix
    jacobian = scaled @ scaled.T if _wide(matrix) else scaled.T @ scaled
    identity = jnp.eye(len(jacobian), dtype=root.dtype)
    inverted = inverse(identity - jacobian)
    made = vary_like(jnp.ones((), bool), root)
    return Shared(made, mean, jnp.where(jnp.all(jnp.isfinite(inverted)), inverted, identity))


def _preconditioner(matrix: Array, shared: Shared) -> Callable[[Array], Array]:
    _, root, table = shared
    if _wide(matrix):
        return lambda r: r @ table
    return lambda r: r + root * (((root * r) @ matrix) @ table @ matrix.T)  # Woodbury
