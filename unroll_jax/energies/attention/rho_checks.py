"""Is a function concave and nondecreasing, as attention needs it? Checked on a grid."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["GRID", "check_rho"]

# Half squared distances from 0 over twelve orders of magnitude, twenty to each: a function is not seen between
# two of them or beyond the last.
GRID = np.concatenate([[0.0], np.logspace(-6, 6, 241)])

# Relative errors that a slope may have: far above round-off in float64, far below any curvature worth a name.
TOLERANCE = 1e-6


def check_rho(value: Callable[[Any], Any], slope: Callable[[Any], Any], log_slope: Callable[[Any], Any]) -> None:
    r"""Checks on `GRID`, in float64, that rho may give attention its weights.

    The steps need the tangent to lie above the function,
    :math:`\rho(b) \le \rho(a) + \rho'(a) (b - a)`, and :math:`\rho' \ge 0`. On neighbours a < b of the grid that is

    .. math:: \rho'(a) \ge \frac{\rho(b) - \rho(a)}{b - a} \ge \rho'(b) \ge 0 ,

    which also finds a slope that is not the derivative of the value. A slope must be finite, at 0 too (there in the
    default dtype as well): it is the weight of equal tokens. A function that depends on values being traced (such as a
    learned shift) cannot be looked at and passes unchecked.

    Args:
      value: ``z -> rho(z)``.
      slope: ``z -> rho'(z)``.
      log_slope: ``z -> log rho'(z)``.

    Raises:
      ValueError: if the functions are not elementwise, not finite, decreasing, not concave, of infinite slope at 0 or
        do not belong together; it names rho, where on the grid, and the values there.
    """
    name = f"rho {getattr(value, '__name__', repr(value))!r}"
    try:
        # Under jit as without: these numbers do not depend on traced values.
        with jax.ensure_compile_time_eval(), jax.enable_x64(True):
            z = jnp.asarray(GRID)
            values, slopes, logarithms = (
                np.asarray(_elementwise(name, what, function, z))
                for what, function in (("value", value), ("slope", slope), ("log_slope", log_slope))
            )
        with jax.ensure_compile_time_eval():
            at_zero = np.asarray(slope(jnp.zeros(1)))[0]
    except jax.errors.TracerArrayConversionError:
        return
    _check_values(name, values)
    _check_slopes(name, values, slopes)
    _check_logarithms(name, slopes, logarithms)
    _check_slope_at_zero(name, slopes[0])
    _check_slope_at_zero(name, at_zero)


def _elementwise(name: str, what: str, function: Callable[[Any], Any], z: jax.Array) -> jax.Array:
    """The function over the grid, checked to be the same at each point alone."""
    table = function(z)
    if jnp.shape(table) != z.shape:
        raise ValueError(f"{name} must be elementwise, but its {what} turns shape {z.shape} into {jnp.shape(table)}")
    # Every second point again, in reverse order and in other company.
    every_second = jnp.arange(z.size) % 2 == 0
    again = function(jnp.where(every_second, z, 1.0)[::-1])[::-1]
    _refuse(
        np.asarray(every_second & ~jnp.isclose(table, again, rtol=TOLERANCE, atol=0.0, equal_nan=True)),
        lambda i: (
            f"{name} must be elementwise, but its {what} at z={GRID[i]:g} is {table[i]:g} or {again[i]:g}, "
            "depending on what else is in the array"
        ),
    )
    return table


def _check_values(name: str, values: np.ndarray) -> None:
    _refuse(
        ~np.isfinite(values), lambda i: f"{name} must be finite on [0, inf), but at z={GRID[i]:g} it is {values[i]}"
    )
    secants, slack = _secants(values)
    _refuse(
        secants < -slack,
        lambda i: (
            f"{name} must be nondecreasing, but falls from {values[i]:.9g} to {values[i + 1]:.9g} "
            f"between {_between(i, i + 1)}"
        ),
    )
    bend = secants[1:] > secants[:-1] + slack[1:] + slack[:-1]
    _refuse(
        bend,
        lambda i: (
            f"{name} must be concave, but its mean slope rises from {secants[i]:.6g} to {secants[i + 1]:.6g} "
            f"between {_between(i, i + 2)}"
        ),
    )


def _check_slopes(name: str, values: np.ndarray, slopes: np.ndarray) -> None:
    secants, slack = _secants(values)
    _refuse(
        ~np.isfinite(slopes) & (GRID > 0.0),
        lambda i: f"{name} must have a finite slope beyond z=0, but at z={GRID[i]:g} it is {slopes[i]}",
    )
    # An infinite slope at 0, inf from a formula or NaN from autodiff, has its own error.
    left = np.where(np.isfinite(slopes[:-1]), slopes[:-1], np.inf)
    wrong = (left < secants - slack) | (slopes[1:] > secants + slack)
    _refuse(
        wrong,
        lambda i: (
            f"{name} must have the derivative of its value as slope, but between {_between(i, i + 1)} the value "
            f"rises by {secants[i]:.6g} per unit and the slope goes from {slopes[i]:.6g} to {slopes[i + 1]:.6g}"
        ),
    )


def _check_slope_at_zero(name: str, slope: Any) -> None:
    if not np.isfinite(slope):
        raise ValueError(
            f"{name} must have a finite slope at z=0, the weight of tokens that are equal, but there it is {slope} in "
            f"{slope.dtype}; for sqrt(z) use sqrt(z + eps), with eps > 0"
        )


def _check_logarithms(name: str, slopes: np.ndarray, logarithms: np.ndarray) -> None:
    known = np.isfinite(slopes)
    slopes = np.maximum(np.where(known, slopes, 0.0), 0.0)
    claimed = np.exp(np.where(known, logarithms, -np.inf))
    _refuse(
        ~np.isclose(claimed, slopes, rtol=TOLERANCE, atol=TOLERANCE**2 * np.max(slopes)),
        lambda i: (
            f"{name} must have log(slope) as log_slope, but at z={GRID[i]:g} log_slope is {logarithms[i]:.6g} "
            f"and the slope {slopes[i]:.6g}"
        ),
    )


def _secants(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean slope between neighbours of the grid, and what round-off (in the values' own precision) makes of it."""
    widths = np.diff(GRID)
    secants = np.diff(values.astype(np.float64)) / widths
    largest = np.maximum(np.abs(values[1:]), np.abs(values[:-1])).astype(np.float64)
    rounding = 64 * np.finfo(values.dtype).eps * largest / widths
    return secants, rounding + TOLERANCE * np.abs(secants) + TOLERANCE**2 * np.max(np.abs(secants))


def _between(start: int, end: int) -> str:
    return f"z={GRID[start]:g} and z={GRID[end]:g}"


def _refuse(wrong: np.ndarray, message: Callable[[int], str]) -> None:
    if np.any(wrong):
        raise ValueError(message(int(np.argmax(wrong))))
