"""Sizes of rows: when a state has converged, and how its solve ended."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from unroll_jax.fixed_point.program import Program
from unroll_jax.fixed_point.reports import (
    CONVERGED,
    MAX_STEPS,
    NONFINITE,
    ROUND_OFF,
    STALLED,
    EquilibriumInfo,
)
from unroll_jax.numerics import over

__all__ = [
    "Rule",
    "Sizes",
    "dot",
    "filled",
    "judge",
    "largest",
    "measure",
    "per_row",
    "relative_sizes",
    "row_info",
]

# States may grow to this many times their scale. Beyond it residuals are relative to
# the scale and no more to |f(z)|: |f(z) - z| is small next to |f(z)| because z is
# large, as of a map without a fixed point.
GROWTH = 30.0
# times the tolerance, beyond which a row is far from the accuracy of the whole state
FAR = 100.0


class Rule(NamedTuple):
    """The end of a loop."""

    tol: float
    max_steps: int
    epsilon: float  # relative spacing of the numbers that the map is computed in
    atol: float | None = None  # None is the default of `equilibrium`
    # residuals are relative to 1, as of a linear system whose right-hand sides are unit
    # rows
    linear: bool = False


class Sizes(NamedTuple):
    """Of f(z) - z, per row: squared relative residual, squared size in units of the
    scale, unit, and the scale."""

    residual: Float[Array, " b"]
    gap: Float[Array, " b"]
    unit: Float[Array, " b"]
    scale: Float[Array, " b"]


def dot(a: Float[Array, "b m"], b: Float[Array, "b m"]) -> Float[Array, " b"]:
    """Inner products of rows."""
    return jnp.sum(a * b, axis=-1)


def per_row(
    condition: Bool[Array, " b"], yes: Float[Array, "b m"], no: Float[Array, "b m"]
) -> Float[Array, "b m"]:
    """`jnp.where` by rows."""
    return jnp.where(condition[:, None], yes, no)


def filled(z: Float[Array, "b ..."], value: Any) -> Array:
    """``value`` for every row, on the axes of a mesh where the rows are, as carries
    of loops must be."""
    row = jnp.sum(z, axis=-1) if z.ndim > 1 else z
    mask = (row == row) & False
    kind = {bool: jnp.bool_, int: jnp.int32}.get(type(value), z.dtype)
    return (
        mask | value
        if kind == jnp.bool_
        else mask.astype(kind) + jnp.asarray(value, kind)
    )


def largest(z: Float[Array, "b m"]) -> Float[Array, " b"]:
    """The largest entry of each row, without its sign."""
    return jnp.max(jnp.abs(z), axis=-1, initial=0.0)


def measure(
    rule: Rule,
    fz: Array,
    z: Array,
    scale: Array,
    *,
    first: Bool[Array, ""] | bool,
    frozen: Bool[Array, ""] | bool,
) -> Sizes:
    """The sizes of rows after one evaluation, see `relative_sizes`."""
    d = fz - z
    if rule.linear:
        square = dot(d, d)
        return Sizes(square, square, jnp.ones_like(square), scale)
    unit = jnp.maximum(largest(fz), 1e-6 * scale)
    unit = jnp.where(unit > 0.0, unit, 1.0)
    d, f = over(d, unit[:, None]), over(fz, unit[:, None])
    return relative_sizes(
        rule, dot(d, d), dot(f, f), unit, scale, first=first, frozen=frozen
    )


def relative_sizes(
    rule: Rule,
    square: Float[Array, " b"],
    size: Float[Array, " b"],
    unit: Float[Array, " b"],
    scale: Float[Array, " b"],
    *,
    first: Bool[Array, ""] | bool,
    frozen: Bool[Array, ""] | bool,
) -> Sizes:
    """The sizes of rows with squares of |f(z) - z| and |f(z)| in units of ``unit``.

    The scale comes from the first state or step. Later steps may at most double it, and
    not while it is ``frozen``.
    """
    past = (scale / unit) ** 2
    step = jnp.where(
        first, square, jnp.where(frozen, past, jnp.minimum(square, 4.0 * past))
    )
    grown = jnp.fmax(past, step)
    limit = GROWTH**2 * grown
    # An outgrown state is known only to round-off of its size.
    square = jnp.where(
        size > limit, jnp.maximum(square, rule.epsilon**2 * size), square
    )
    below = jnp.sqrt(jnp.minimum(size, limit))
    if rule.atol:
        below = below + rule.atol / rule.tol / unit
    residual = square / jnp.where(below > 0.0, below, 1.0) ** 2
    # of an infinite one residuals are 0
    scale = jnp.minimum(unit * jnp.sqrt(grown), jnp.finfo(unit.dtype).max)
    return Sizes(residual, square / jnp.where(grown > 0.0, grown, 1.0), unit, scale)


def judge(
    rule: Rule, residual: Array, steps: Array, lost: Bool[Array, " b"] | bool = False
) -> EquilibriumInfo:
    """The outcome of rows with a squared residual; ``lost`` are those that ended in
    a value that is not finite."""
    failed = jnp.where(lost, NONFINITE, MAX_STEPS)
    status = jnp.where(residual <= (ROUND_OFF * rule.epsilon) ** 2, STALLED, failed)
    status = jnp.where(residual <= rule.tol**2, CONVERGED, status)
    status = jnp.where(residual < jnp.inf, status, NONFINITE).astype(jnp.int32)
    return EquilibriumInfo(jnp.sqrt(residual), steps, status)


def row_info(
    program: Program, y: Array, fy: Array, rule: Rule
) -> EquilibriumInfo | None:
    """The residual of each row of the first axis; a failure if it is far and the
    state as a whole is near."""
    leaves, after = program.leaves(y), program.leaves(fy)
    if any(leaf.ndim < 2 or leaf.shape[0] != leaves[0].shape[0] for leaf in leaves):
        return None

    def squares(leaves: list[Any]) -> Array:
        return sum(
            (
                jnp.sum(jnp.abs(leaf.reshape(leaf.shape[0], -1)) ** 2, -1)
                for leaf in leaves
            ),
            jnp.zeros(()),
        )

    unit = jnp.maximum(jnp.max(jnp.abs(fy)), jnp.finfo(fy.dtype).tiny)
    wide = [
        over(leaf.astype(jnp.promote_types(leaf.dtype, fy.dtype)), unit)
        for leaf in after
    ]
    gaps = squares(
        [b - over(a.astype(b.dtype), unit) for a, b in zip(leaves, wide, strict=True)]
    )
    offset, sizes = (rule.atol or 0.0) / rule.tol / unit, squares(wide)
    residual = jnp.sqrt(gaps) / jnp.maximum(
        jnp.sqrt(sizes) + offset, jnp.finfo(fy.dtype).tiny
    )
    whole = jnp.sqrt(jnp.sum(gaps)) / jnp.maximum(
        jnp.sqrt(jnp.sum(sizes)) + offset, jnp.finfo(fy.dtype).tiny
    )
    limit = max(FAR * rule.tol, ROUND_OFF * program.epsilon)
    far = (residual > limit) & (whole <= limit)
    status = jnp.where(far, MAX_STEPS, CONVERGED).astype(jnp.int32)
    return EquilibriumInfo(residual, jnp.zeros_like(status), status)
