"""When a solve ends: residuals of rows, and the outcome that they mean."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.fixed_point.program import Program
from unroll_jax.fixed_point.rows import dot, largest, norm, squares
from unroll_jax.fixed_point.status import (
    CONVERGED,
    MAX_STEPS,
    NONFINITE,
    STALLED,
    EquilibriumInfo,
    fail_where,
)
from unroll_jax.numerics import over, powers_of_two

__all__ = [
    "IDLE_CHECKS",
    "ROUND_OFF",
    "Sizes",
    "Stall",
    "StopRule",
    "check_stall",
    "measure",
    "outcome",
    "relative_sizes",
    "round_off",
    "row_info",
    "row_units",
]

# A relative residual of this many epsilons may be round-off of a map's values and sums.
ROUND_OFF = 16.0
# Stop after so many checks without improvement near round-off.
IDLE_CHECKS = 10
# A diverging state makes |f(z) - z| / |f(z)| small. Beyond this growth, residuals are
# relative to the initial scale.
GROWTH = 30.0
# Units of rows are at least this share of their scale: a state on its way to 0 keeps
# differences that can be squared.
LEAST_UNIT = 1e-6
# Scales are at least this many roots of the least normal number, in units of a row.
LEAST_SCALE = 8.0
# A row is far from the accuracy of the whole state beyond this many tolerances.
FAR = 100.0


class StopRule(NamedTuple):
    """When a loop ends.

    Attributes:
      tol: relative tolerance of a row.
      max_steps: cap of evaluations.
      epsilon: relative spacing of the numbers that the map is computed in; of the
        coarsest, if leaves of the state differ.
      atol: absolute tolerance; None is the default of `equilibrium`.
      linear: residuals are relative to 1, as of a linear system whose right-hand sides
        are unit rows.
      spacings: columns and epsilon of each leaf, where these differ.
    """

    tol: float
    max_steps: int
    epsilon: float
    atol: float | None = None
    linear: bool = False
    spacings: tuple[tuple[Any, float], ...] = ()


class Stall(NamedTuple):
    """Progress near round-off: the least residual, and the checks since."""

    least: Float[Array, " b"]
    checks: Int[Array, " b"]


class Sizes(NamedTuple):
    """Sizes of f(z) - z for each row.

    Attributes:
      residual: relative to f(z).
      gap: relative to the scale.
      inverse: reciprocal of the unit of the row, see `row_units`.
      scale: typical size of the states so far.
    """

    residual: Float[Array, " b"]
    gap: Float[Array, " b"]
    inverse: Float[Array, " b"]
    scale: Float[Array, " b"]


def row_units(fz: Float[Array, "b m"], scale: Float[Array, " b"]) -> Float[Array, " b"]:
    """Reciprocals of units of rows: powers of two near their largest entries.

    Products with them are exact. Differences of such products do not underflow, as
    those of states near the end of the range do.
    """
    inverse, _ = powers_of_two(jnp.maximum(largest(fz), LEAST_UNIT * scale))
    return inverse


def measure(
    rule: StopRule,
    fz: Float[Array, "b m"],
    z: Float[Array, "b m"],
    scale: Float[Array, " b"],
    *,
    first: Bool[Array, ""] | bool,
    frozen: Bool[Array, ""] | bool,
) -> Sizes:
    """The sizes of rows after one evaluation, see `relative_sizes`."""
    if rule.linear:
        residual = jnp.sqrt(dot(fz - z, fz - z))
        ones = jax.lax.optimization_barrier(jnp.ones_like(residual))
        return Sizes(residual, residual, ones, scale)

    inverse = jax.lax.optimization_barrier(row_units(fz, scale))
    image = fz * inverse[:, None]
    square, size = squares(image - z * inverse[:, None], image)
    return relative_sizes(
        rule, square, size, inverse, scale, first=first, frozen=frozen
    )


def relative_sizes(
    rule: StopRule,
    square: Float[Array, " b"],
    size: Float[Array, " b"],
    inverse: Float[Array, " b"],
    scale: Float[Array, " b"],
    *,
    first: Bool[Array, ""] | bool,
    frozen: Bool[Array, ""] | bool,
) -> Sizes:
    """The sizes of rows from squares of |f(z) - z| and |f(z)|, in the rows' units.

    The scale comes from the first state or step. Later steps may at most double it, and
    not while it is ``frozen``. It never falls.
    """
    # Squares, in units of the row.
    past = (scale * inverse) ** 2
    step = jnp.where(frozen, past, jnp.minimum(square, 4.0 * past))
    step = jnp.where(first, square, step)
    grown = jnp.fmax(past, step)
    # An infinite scale would make every residual 0.
    limits = jnp.finfo(inverse.dtype)
    reached = jnp.minimum(jnp.sqrt(grown), limits.max * inverse) / inverse
    scale = jax.lax.optimization_barrier(jnp.maximum(scale, reached))

    # An outgrown state is known only to round-off of its size. After a jump by 1e19 the
    # square of the scale would be 0, and every residual relative to the state.
    least = jnp.where(scale > 0.0, LEAST_SCALE * limits.tiny**0.5, 0.0)
    known = jnp.maximum(scale * inverse, least) ** 2
    limit = GROWTH**2 * known
    known_to = jnp.maximum(square, rule.epsilon**2 * size)
    square = jnp.where(size > limit, known_to, square)

    reference = jnp.minimum(size, limit)
    if rule.atol:
        reference = (jnp.sqrt(reference) + rule.atol / rule.tol * inverse) ** 2
    residual = jnp.sqrt(square / jnp.where(reference > 0.0, reference, 1.0))
    gap = jnp.sqrt(square / jnp.where(known > 0.0, known, 1.0))
    return Sizes(residual, gap, inverse, scale)


def round_off(rule: StopRule, fz: Float[Array, "b m"]) -> Float[Array, " b"] | float:
    """The residual up to which it may be round-off.

    Where leaves have other dtypes, each contributes by its size and its own epsilon.
    """
    if not rule.spacings:
        return ROUND_OFF * rule.epsilon

    spacings = [jnp.full(columns, epsilon) for columns, epsilon in rule.spacings]
    image = over(fz, largest(fz)[:, None])
    rounded = ROUND_OFF * jnp.concatenate(spacings).astype(fz.dtype) * image
    return jnp.sqrt(over(dot(rounded, rounded), dot(image, image)))


def check_stall(
    rule: StopRule,
    stall: Stall,
    residual: Float[Array, " b"],
    fz: Float[Array, "b m"],
    patience: int | None = None,
) -> tuple[Stall, Bool[Array, " b"]]:
    """Rows near round-off that have not improved for ``patience`` checks.

    None is `IDLE_CHECKS`.
    """
    patience = IDLE_CHECKS if patience is None else patience
    checks = jnp.where(residual < stall.least, 0, stall.checks + 1)
    least = jnp.fmin(stall.least, residual)
    stalled = (checks >= patience) & (least <= round_off(rule, fz))
    return Stall(least, checks), stalled


def outcome(
    rule: StopRule,
    residual: Float[Array, " b"],
    steps: Any,
    *,
    stalled: Bool[Array, " b"] | bool = False,
    lost: Bool[Array, " b"] | bool = False,
) -> EquilibriumInfo:
    """The diagnostics of rows with a residual.

    Args:
      stalled: rows that ended since nothing improved, near round-off. A row that only
        reached its cap has not.
      lost: rows that ended in a value that is not finite.
    """
    status = jnp.where(stalled, STALLED, MAX_STEPS)
    status = jnp.where(lost, NONFINITE, status)
    status = jnp.where(residual <= rule.tol, CONVERGED, status)
    status = jnp.where(residual < jnp.inf, status, NONFINITE).astype(jnp.int32)
    return EquilibriumInfo(residual, steps, status)


def row_info(
    program: Program, y: Float[Array, "b m"], fy: Float[Array, "b m"], rule: StopRule
) -> EquilibriumInfo | None:
    """The residual of each row of the first axis, for a state that is one example.

    A row has failed if it is far from its fixed point and the whole state is near. None
    if the leaves do not share a first axis.
    """
    before = program.leaves(y)
    count = before[0].shape[:1]
    if any(leaf.ndim < 2 or leaf.shape[:1] != count for leaf in before):
        return None

    by_rows = program._replace(batch_ndim=1)
    image = by_rows.flatten(program.leaves(fy))
    gaps = norm(image - by_rows.flatten(before))
    sizes = norm(image)
    offset = (rule.atol or 0.0) / rule.tol
    limit = max(FAR * rule.tol, ROUND_OFF * rule.epsilon)
    is_far = gaps > limit * (sizes + offset)
    is_near = norm(gaps[None]) <= limit * (norm(sizes[None]) + offset)
    return fail_where(is_far & is_near, over(gaps, sizes + offset))
