"""Sums over pairs of tokens in a rectangle of the table, and means by log-weights."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from unroll_jax.energies.attention.rho import Rho
from unroll_jax.numerics import square_range

__all__ = ["combine", "rectangle_energy", "rectangle_sums", "square_exponential_sums"]

Sums = tuple[Array, Array, Array]

HIGHEST = jax.lax.Precision.HIGHEST


def rectangle_energy(
    rho: Rho,
    rows: Float[Array, "*batch b k"],
    columns: Float[Array, "*#batch m k"],
    neighbours: Bool[Array, "*#batch b m"],
) -> Float[Array, "*batch b 1"]:
    """Returns sum_v rho(|z_u - z_v|^2 / 2) over the neighbours v of each row u."""
    values = rho.value(_half_square_distances(rows, columns, neighbours))
    return jnp.sum(values, axis=-1, where=neighbours, keepdims=True)


def rectangle_sums(
    rho: Rho,
    rows: Float[Array, "*batch b k"],
    columns: Float[Array, "*#batch m k"],
    values: Float[Array, "*#batch m d"],
    neighbours: Bool[Array, "*#batch b m"],
    *,
    bounded: bool,
) -> Sums:
    """Returns the sums of each row, see `pairs.Neighbourhood`.

    They are energy and log degree, (*batch, b, 1), and mean, (*batch, b, d). Before the
    sum, weights are divided by the largest of the row or, if ``bounded``, by the slope
    at 0.
    """
    assert rho.log_slope is not None
    distances = _half_square_distances(rows, columns, neighbours)
    logits = jnp.where(neighbours, rho.log_slope(distances), -jnp.inf)
    if bounded:
        shift = rho.log_slope(jnp.zeros((), logits.dtype))
    else:
        shift = jnp.max(logits, axis=-1, keepdims=True)
        # A row without neighbours has no largest: -inf - -inf would be NaN.
        shift = jax.lax.stop_gradient(jnp.where(jnp.isneginf(shift), 0.0, shift))

    weights = jnp.exp(logits - shift)
    degree = jnp.sum(weights, axis=-1, keepdims=True)
    alone = _is_negligible(degree, bounded=bounded)
    divisor = jnp.where(alone, 1.0, degree)
    log_degree = shift + jnp.where(alone, -jnp.inf, jnp.log(divisor))
    mean = weights @ values / divisor

    if rho.exponential:
        energy = -jnp.exp(shift) * degree
    else:
        per_pair = rho.value(distances)
        energy = jnp.sum(per_pair, axis=-1, where=neighbours, keepdims=True)
    return energy, log_degree, mean


def square_exponential_sums(
    z: Float[Array, "*batch n k"],
    values: Float[Array, "*batch n d"],
    neighbours: Bool[Array, "*#batch n n"],
) -> Sums:
    """Returns `rectangle_sums` of rho(z) = -exp(-z), ``bounded``, of all tokens.

    For this rho a slope is minus the energy of its pair, and its derivative is minus
    itself. The backward pass needs one (n, n) array, the weights, which are symmetric.
    """
    degree, mean = _exponential_sums(z, values, neighbours)
    alone = _is_negligible(degree, bounded=True)
    log_degree = jnp.where(alone, -jnp.inf, jnp.log(jnp.where(alone, 1.0, degree)))
    return -degree, log_degree, mean


def combine(
    pulls: list[tuple[Any, Array]],
) -> tuple[Float[Array, "*batch n 1"], Float[Array, "*batch n d"]]:
    """Returns the logsumexp of the log-weights and the weighted mean of the points.

    They are -inf and 0 if all log-weights are -inf.

    Args:
      pulls: pairs of a log-weight and points (*batch, n, d). The first log-weight is
        (*batch, n, 1), and the others broadcast to it.
    """
    dtype = pulls[0][0].dtype
    # Term by term: stacking would copy, and compile to more kernels.
    logs = [jnp.asarray(log, dtype) for log, _ in pulls]
    largest = functools.reduce(jnp.maximum, logs)
    largest = jax.lax.stop_gradient(jnp.where(jnp.isneginf(largest), 0.0, largest))
    weights = [jnp.exp(log - largest) for log in logs]
    degree = functools.reduce(jnp.add, weights)
    none = degree == 0.0
    divisor = jnp.where(none, 1.0, degree)
    total = largest + jnp.where(none, -jnp.inf, jnp.log(divisor))
    terms = [weight * point for weight, (_, point) in zip(weights, pulls, strict=True)]
    return total, functools.reduce(jnp.add, terms) / divisor


@jax.custom_jvp
def _exponential_sums(
    z: Array, values: Array, neighbours: Array
) -> tuple[Array, Array]:
    """Returns degree and mean of each row."""
    return _weighted_mean(_exponential_weights(z, neighbours), values)


@_exponential_sums.defjvp
def _(primals: tuple, tangents: tuple) -> tuple:
    z, values, neighbours = primals
    dz, dvalues, _ = tangents
    weights = _exponential_weights(z, neighbours)
    degree, mean = _weighted_mean(weights, values)
    # d(-|z_u - z_v|^2 / 2) = z_u.dz_v + z_v.dz_u - z_u.dz_u - z_v.dz_v, in a form that
    # one product transposes.
    cross = jnp.matmul(z, dz.mT, precision=HIGHEST)
    diagonal = jnp.sum(z * dz, axis=-1, keepdims=True)
    dlogits = cross + cross.mT - diagonal - diagonal.mT
    dweights = weights * dlogits
    ddegree = jnp.sum(dweights, axis=-1, keepdims=True)

    # mean = weights @ values / degree
    dmean = dweights @ values + weights @ dvalues - mean * ddegree
    alone = _is_negligible(degree, bounded=True)
    inverse = jnp.where(alone, 0.0, 1.0 / jnp.where(alone, 1.0, degree))
    return (degree, mean), (ddegree, inverse * dmean)


def _weighted_mean(weights: Array, values: Array) -> tuple[Array, Array]:
    degree = jnp.sum(weights, axis=-1, keepdims=True)
    # The weights are symmetric. Contracting their first axis is the faster product on
    # CPUs.
    total = jnp.einsum("...uv,...ud->...vd", weights, values)
    return degree, total / jnp.where(_is_negligible(degree, bounded=True), 1.0, degree)


def _is_negligible(degree: Array, *, bounded: bool) -> Array:
    """Returns True for degrees too small to divide by.

    If ``bounded``, they are lost in round-off next to a token's own weight 1, and
    1 / degree^2, in the derivative, may overflow. Else only 0 is.
    """
    least = float(jnp.finfo(degree.dtype).tiny) ** 0.25 if bounded else 0.0
    return degree <= least


def _exponential_weights(z: Array, neighbours: Array) -> Array:
    distances = _half_square_distances(z, z, neighbours)
    return jnp.where(neighbours, jnp.exp(-distances), 0.0)


def _half_square_distances(rows: Array, columns: Array, neighbours: Array) -> Array:
    """Returns half the squared distance of every pair of neighbours, else 1.

    It is 1 elsewhere because rho and its slope may be singular at 0. The error is about
    epsilon times the tokens' squared norm, so callers centre them. A square that
    overflows is infinite.
    """
    largest_row = jnp.max(jnp.abs(rows), axis=(-2, -1), keepdims=True)
    largest_column = jnp.max(jnp.abs(columns), axis=(-2, -1), keepdims=True)
    largest = jnp.maximum(largest_row, largest_column)
    down, up = square_range(largest, rows.shape[-1])
    rows = rows * down
    columns = columns * down

    of_rows = 0.5 * jnp.sum(rows**2, axis=-1, keepdims=True)
    of_columns = 0.5 * jnp.sum(columns**2, axis=-1, keepdims=True)
    # The difference cancels most digits of close tokens, so the products need full
    # precision on accelerators.
    products = jnp.matmul(rows, columns.mT, precision=HIGHEST)
    distances = of_rows + of_columns.mT - products

    # Only round-off makes a distance negative. Its derivative is exact, and `maximum`
    # would drop it.
    lift = jnp.maximum(distances, 0.0) - distances
    distances = distances + jax.lax.stop_gradient(lift)
    return jnp.where(neighbours, distances * up * up, 1.0)
