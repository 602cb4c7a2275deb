"""Checks on a grid that a function is concave and nondecreasing."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["GRID", "check_rho"]

# The half squared distances checked: 0, then 20 points for each of 12 orders of
# magnitude.
GRID = np.concatenate([[0.0], np.logspace(-6, 6, 241)])

# Relative errors that a slope may have: far above round-off in float64, far below the
# curvature of any useful rho.
TOLERANCE = 1e-6

Function = Callable[[Any], Any]


def check_rho(value: Function, slope: Function, log_slope: Function) -> None:
    r"""Checks on `GRID`, in float64, that the slopes of rho can be attention weights.

    The steps need the tangent to lie above the function,
    :math:`\rho(b) \le \rho(a) + \rho'(a) (b - a)`, and :math:`\rho' \ge 0`. For
    neighbours a < b of the grid this is

    .. math:: \rho'(a) \ge \frac{\rho(b) - \rho(a)}{b - a} \ge \rho'(b) \ge 0 .

    It also finds a slope that is not the derivative of the value. The slope at 0 is the
    weight of equal tokens. It must be finite, in the default dtype too. Functions of
    traced values pass unchecked.

    Raises:
      ValueError: if a function is not elementwise or not finite, if rho decreases, is
        not concave or has an infinite slope at 0, or if a slope is not its derivative.
        The message names rho, the point of the grid, and the values there.
    """
    rho = f"rho {getattr(value, '__name__', repr(value))!r}"
    try:
        # Inside jit too: these numbers do not depend on traced values.
        with jax.ensure_compile_time_eval(), jax.enable_x64(True):
            elementwise = f"{rho} must be elementwise, but its"
            values = _tabulate(f"{elementwise} value", value)
            slopes = _tabulate(f"{elementwise} slope", slope)
            logarithms = _tabulate(f"{elementwise} log_slope", log_slope)
        with jax.ensure_compile_time_eval():
            at_zero = np.asarray(slope(jnp.zeros(1)))
    except jax.errors.TracerArrayConversionError:
        return
    for wrong, message in _faults(values, slopes, logarithms, at_zero):
        if wrong.any():
            raise ValueError(f"{rho} must {message(int(np.argmax(wrong)))}")


def _tabulate(message: str, function: Function) -> np.ndarray:
    """Returns the function over the grid.

    Raises:
      ValueError: if a value depends on the other points.
    """
    table = np.asarray(function(jnp.asarray(GRID)))
    if table.shape != GRID.shape:
        raise ValueError(f"{message} turns shape {GRID.shape} into {table.shape}")
    # Every second point again, in reverse order, with 1 in place of the others.
    every_second = np.arange(GRID.size) % 2 == 0
    changed = jnp.where(every_second, GRID, 1.0)[::-1]
    again = np.asarray(function(changed))[::-1]
    same = np.isclose(table, again, rtol=TOLERANCE, atol=0.0, equal_nan=True)
    for i in np.flatnonzero(every_second & ~same):
        got = f"{table[i]:g} or {again[i]:g}, depending on what else is in the array"
        raise ValueError(f"{message} at z={GRID[i]:g} is {got}")
    return table


def _faults(
    values: np.ndarray, slopes: np.ndarray, logarithms: np.ndarray, at_zero: np.ndarray
) -> Iterator[tuple[np.ndarray, Callable[[int], str]]]:
    """Yields for each condition where it fails, and a function i -> message."""

    def between(i: int, steps: int = 1) -> str:
        return f"between z={GRID[i]:g} and z={GRID[i + steps]:g}"

    yield (
        ~np.isfinite(values),
        lambda i: f"be finite on [0, inf), but at z={GRID[i]:g} it is {values[i]}",
    )

    secants, slack = _secants(values)
    yield (
        secants < -slack,
        lambda i: (
            f"be nondecreasing, but falls from {values[i]:.9g} to {values[i + 1]:.9g}"
            f" {between(i)}"
        ),
    )
    yield (
        secants[1:] > secants[:-1] + slack[1:] + slack[:-1],
        lambda i: (
            f"be concave, but its mean slope rises from {secants[i]:.6g} to"
            f" {secants[i + 1]:.6g} {between(i, 2)}"
        ),
    )

    finite = np.isfinite(slopes)
    beyond = "have a finite slope beyond z=0, but at"
    yield ~finite & (GRID > 0.0), lambda i: f"{beyond} z={GRID[i]:g} it is {slopes[i]}"

    # An infinite slope at 0, inf from a formula or NaN from autodiff, has its own
    # error below.
    left_slopes = np.where(finite[:-1], slopes[:-1], np.inf)
    yield (
        (left_slopes < secants - slack) | (slopes[1:] > secants + slack),
        lambda i: (
            f"have the derivative of its value as slope, but {between(i)} the value"
            f" rises by {secants[i]:.6g} per unit and the slope goes from"
            f" {slopes[i]:.6g} to {slopes[i + 1]:.6g}"
        ),
    )

    # Round-off may leave a slope below 0.
    slopes_or_0 = np.maximum(np.where(finite, slopes, 0.0), 0.0)
    exponentials = np.exp(np.where(finite, logarithms, -np.inf))
    smallest = TOLERANCE**2 * np.max(slopes_or_0)
    yield (
        ~np.isclose(exponentials, slopes_or_0, rtol=TOLERANCE, atol=smallest),
        lambda i: (
            f"have log(slope) as log_slope, but at z={GRID[i]:g} it is"
            f" {logarithms[i]:.6g}, the slope {slopes_or_0[i]:.6g}"
        ),
    )

    for slope in (slopes[:1], at_zero):
        message = (
            "have a finite slope at z=0, the weight of tokens that are equal, but there"
            f" it is {slope[0]} in {slope.dtype}; for sqrt(z) use sqrt(z + eps), with"
            " eps > 0"
        )
        yield ~np.isfinite(slope), lambda i, message=message: message


def _secants(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean slopes between neighbours of the grid, and their round-off."""
    widths = np.diff(GRID)
    secants = np.diff(values.astype(np.float64)) / widths
    largest = np.maximum(np.abs(values[1:]), np.abs(values[:-1])).astype(np.float64)
    rounding = 64 * np.finfo(values.dtype).eps * largest / widths
    sizes = np.abs(secants)
    return secants, rounding + TOLERANCE * sizes + TOLERANCE**2 * np.max(sizes)
