"""Systems w - A w = v for any A: the Neumann series while it is quick, then generalised conjugate residuals."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.fixed_point.flat_states import filled, norm, per_example, put, repeat_while
from unroll_jax.fixed_point.problem import CONVERGED, MAX_STEPS, NONFINITE, Linear, SolveInfo
from unroll_jax.fixed_point.progress import looks

__all__ = ["gcr", "neumann_gcr"]

FALL = 1.25  # times smaller, a term of the series must make every residual; as `picard_anderson` has it forward
# A windowed cycle that leaves more than this share of the residual will not end: the next ones are much like it.
STAGNANT = 0.999
SLOW = 0.9  # a step that leaves more than this share of the residual extends the space by its own image next


class _Series(NamedTuple):
    number: Int[Array, ""]
    ahead: Int[Array, ""]
    w: Float[Array, "b m"]
    residual: Float[Array, " b"]
    steps: Int[Array, " b"]
    quick: Bool[Array, ""]


class _GCR(NamedTuple):
    """``directions`` P and ``images`` Q = (I - A) P, orthonormal, of which a row uses those since step ``begun``.

    ``fresh`` are the rows that began again at the last check.
    """

    number: Int[Array, ""]
    w: Float[Array, "b m"]
    residual: Float[Array, "b m"]
    direction: Float[Array, "b m"]
    directions: Float[Array, "b r m"]
    images: Float[Array, "b r m"]
    best: Float[Array, "b m"]
    lowest: Float[Array, " b"]
    fresh: Bool[Array, " b"]
    begun: Int[Array, " b"]
    going: Bool[Array, " b"]
    steps: Int[Array, " b"]


def neumann_gcr(
    operator: Linear, v: Float[Array, "b m"], *, tol: float, max_steps: int, window: int
) -> tuple[Float[Array, "b m"], SolveInfo]:
    """Solves w - A w = v, row by row to |residual| <= tol |v|; the residual is true. Steps are products with A.

    Terms of the series are added as long as each makes every residual `FALL` times smaller, though not each residual
    is looked at, see `looks`; where rows are then left, `gcr` takes over. It is in a loop of one turn or none: under
    vmap that is skipped where no example needs it, as a condition would not be, and it makes no memory where the series
    has done.
    """
    size = norm(v)
    bound, scale = tol * size, jnp.where(size > 0.0, size, 1.0)

    def add(carry: _Series) -> _Series:
        going = carry.residual > bound

        def term(_: Any, pair: tuple[Array, Array]) -> tuple[Array, Array]:
            return pair[1], per_example(going, v + operator(pair[1]), pair[1])

        w, following = jax.lax.fori_loop(0, carry.ahead, term, (carry.w, carry.w))
        residual = jnp.where(going, norm(following - w), carry.residual)
        going_on = residual > bound
        count, quick = looks(carry.residual, residual, bound, going_on, carry.ahead, FALL)
        number = carry.number + carry.ahead
        count = jnp.minimum(count, jnp.maximum(max_steps - 1 - number, 1))
        return _Series(
            number, count, per_example(going_on, following, w), residual, carry.steps + carry.ahead * going, quick
        )

    none = jnp.zeros_like(size, jnp.int32)
    first = jnp.max(none, initial=0)
    unknown = jnp.where(size > 0.0, jnp.inf, size)
    series = jax.lax.while_loop(
        lambda carry: carry.quick & jnp.any(carry.residual > bound) & (carry.number < max_steps - 1),
        add,
        _Series(first, first + 1, v, unknown, none, jnp.all(none == 0)),
    )

    def again(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        w, _, steps, turn = carry
        left = max_steps - series.number
        w, residual, more = gcr(operator, v, w, bound=bound, max_steps=left, window=window)
        return w, residual, steps + more, turn & False

    left = jnp.any(~(series.residual <= bound))
    w = per_example(series.residual < size, series.w, jnp.zeros_like(v))  # where the series grows, from 0
    w, residual, steps, _ = repeat_while(lambda carry: carry[-1], again, (w, series.residual, series.steps, left))
    residual = residual / scale
    status = jnp.where(residual <= tol, CONVERGED, MAX_STEPS)
    return w, SolveInfo(residual, steps, jnp.where(jnp.isfinite(residual), status, NONFINITE).astype(jnp.int32))


def gcr(
    operator: Linear,
    v: Float[Array, "b m"],
    start: Float[Array, "b m"],
    *,
    bound: Float[Array, " b"],
    max_steps: int | Int[Array, ""],
    window: int,
) -> tuple[Float[Array, "b m"], Float[Array, " b"], Int[Array, " b"]]:
    """Generalised conjugate residuals from ``start``: least residual over the last ``window`` directions.

    In exact arithmetic and with a window that never fills they are GMRES. The next vector is the residual, or, where
    that has hardly fallen, the last image, with which the method cannot break down. A product in ``window`` + 1 is
    spent on the true residual, and the best iterate by that is returned: ``(w, |residual|, steps)``.

    Source: Eisenstat, Elman and Schultz (1983), Orthomin; Jiranek and Rozloznik (2010) for the choice of vectors.
    """

    def body(carry: _GCR) -> _GCR:
        active = carry.going & (norm(carry.residual) > bound)
        check = (carry.number % (window + 1) == 0) | ~jnp.any(active) | (carry.number + 1 >= max_steps)
        point = jnp.where(check, carry.w, carry.direction)
        image = point - operator(point)
        true = v - image
        after = norm(true)
        better = check & carry.going & (after < carry.lowest)
        idle = check & ~(after < STAGNANT * carry.lowest)
        going = carry.going & ~(check & (after <= bound)) & ~(idle & carry.fresh) & jnp.isfinite(after)
        begun = jnp.where(idle, carry.number, carry.begun)
        q, p = _conjugate(carry, image, usable=~check)
        along = jnp.where(active & ~check, jnp.sum(q * carry.residual, -1), 0.0)[:, None]
        residual = jnp.where(check, true, carry.residual - along * q)
        w = carry.w + along * p
        size = norm(residual)
        slow = (size > SLOW * norm(carry.residual)) & ~check
        direction = jnp.where(slow[:, None], q, residual / jnp.where(size > 0.0, size, 1.0)[:, None])
        return _GCR(
            carry.number + 1,
            w,
            residual,
            direction,
            put(carry.directions, p, carry.number % window),
            put(carry.images, q, carry.number % window),
            per_example(better, carry.w, carry.best),
            jnp.where(better, after, carry.lowest),
            jnp.where(check, idle, carry.fresh),
            begun,
            going,
            carry.steps + carry.going,
        )

    end = jax.lax.while_loop(
        lambda carry: jnp.any(carry.going) & (carry.number < max_steps), body, _begin(v, start, bound, window)
    )
    return end.best, end.lowest, end.steps


def _begin(v: Array, start: Array, bound: Array, window: int) -> _GCR:
    none = jnp.zeros_like(bound, jnp.int32)
    zeros, history = jnp.zeros_like(v), jnp.repeat(jnp.zeros_like(v)[:, None], window, axis=1)
    return _GCR(
        jnp.zeros((), jnp.int32),
        start,
        zeros,
        zeros,
        history,
        history,
        start,
        filled(v, jnp.inf),
        bound < 0.0,
        none,
        bound >= 0.0,
        none,
    )


def _conjugate(carry: _GCR, image: Array, usable: Array) -> tuple[Array, Array]:
    """The image of the direction, of unit length and orthogonal to those before, and the direction that it is of."""
    window = carry.images.shape[1]
    taken = carry.number - 1 - (carry.number - 1 - jnp.arange(window)) % window  # the step that wrote each place
    shares = jnp.einsum("bim,bm->bi", carry.images, image) * (taken > carry.begun[:, None])
    q = image - jnp.einsum("bi,bim->bm", shares, carry.images)
    p = carry.direction - jnp.einsum("bi,bim->bm", shares, carry.directions)
    length = norm(q)
    usable = usable & (length > 4.0 * jnp.finfo(q.dtype).eps * norm(image))  # else the space is complete
    inverse = jnp.where(usable, 1.0 / jnp.where(usable, length, 1.0), 0.0)[:, None]
    return inverse * q, inverse * p
