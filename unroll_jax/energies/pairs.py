"""Sums over the pairs of a graph: what attention energies and their steps are made of."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from unroll_jax.energies.rho import Rho

__all__ = ["Neighbourhood", "check_mask", "neighbourhood"]


class Neighbourhood(NamedTuple):
    """What the pairs of a graph add up to, with gamma_uv = rho'(|z_u - z_v|^2 / 2) on its edges and 0 elsewhere.

    Attributes:
      energy: (*batch,), the sum of rho over unordered pairs.
      log_degree: (*batch, n, 1), log sum_v gamma_uv; -inf for a token without neighbours.
      mean: (*batch, n, d), sum_v gamma_uv values_v / sum_v gamma_uv; 0 for a token without neighbours.
    """

    energy: Float[Array, "*batch"]
    log_degree: Float[Array, "*batch n 1"]
    mean: Float[Array, "*batch n d"]


def neighbourhood(
    rho: Rho,
    z: Float[Array, "*batch n k"],
    values: Float[Array, "*batch n d"],
    graph: np.ndarray | None,
    present: Bool[Array, "..."] | None = None,
) -> Neighbourhood:
    """The sums over all pairs of a graph, in one pass over their distances.

    What the caller does not use is not computed once compiled.

    Args:
      rho: a resolved `Rho`.
      z: the tokens that distances are taken between.
      values: what is averaged.
      graph: symmetric boolean (n, n) of `check_mask`, or None for the complete graph.
      present: boolean, broadcastable to (*batch, n): which tokens are there; None is all. The others have no edges.

    Returns:
      A `Neighbourhood`.
    """
    assert rho.log_slope is not None
    neighbours = _neighbours(graph, z)
    if present is not None:
        present = jnp.broadcast_to(present, z.shape[:-1])
        neighbours = neighbours & present[..., :, None] & present[..., None, :]
    distances = _half_square_distances(z, neighbours)
    energy = 0.5 * jnp.sum(rho.value(distances), axis=(-2, -1), where=neighbours)
    logits = jnp.where(neighbours, rho.log_slope(distances), -jnp.inf)
    largest = jnp.max(logits, axis=-1, keepdims=True)
    largest = jax.lax.stop_gradient(jnp.where(jnp.isneginf(largest), 0.0, largest))
    weights = jnp.exp(logits - largest)
    degree = jnp.sum(weights, axis=-1, keepdims=True)
    alone = degree == 0.0
    degree = jnp.where(alone, 1.0, degree)
    log_degree = jnp.where(alone, -jnp.inf, largest + jnp.log(degree))
    return Neighbourhood(energy, log_degree, (weights @ values) / degree)


def check_mask(mask: Any) -> np.ndarray | None:
    """The graph that a mask stands for.

    Raises:
      ValueError: if it is not a symmetric boolean (n, n) array.
    """
    if mask is None:
        return None
    graph = np.asarray(mask)
    if graph.dtype != np.bool_ or graph.ndim != 2 or graph.shape[0] != graph.shape[1]:
        raise ValueError(f"mask must be a boolean (n, n) array, got {graph.dtype} of shape {graph.shape}")
    if not np.array_equal(graph, graph.T):
        u, v = np.argwhere(graph != graph.T)[0]
        raise ValueError(
            f"mask must be symmetric (an undirected graph), but mask[{u}, {v}] differs from mask[{v}, {u}]"
        )
    return graph


def _neighbours(graph: np.ndarray | None, z: Array) -> Bool[Array, "n n"]:
    n = z.shape[-2]
    if graph is not None and graph.shape[0] != n:
        raise ValueError(f"mask is {graph.shape}, but y has n={n} tokens (shape {z.shape})")
    others = ~np.eye(n, dtype=bool)
    return jnp.asarray(others if graph is None else graph & others)


def _half_square_distances(
    z: Float[Array, "*batch n k"], neighbours: Bool[Array, "*#batch n n"]
) -> Float[Array, "*batch n n"]:
    """Half the squared distance of every pair of neighbours; 1 elsewhere, where rho and its slope may be singular at 0.

    The error is about the machine's epsilon times the squared spread of the tokens.
    """
    # Distances do not feel a shift; taken from the mean they lose no digits to a large common offset.
    z = z - jnp.mean(z, axis=-2, keepdims=True)
    half_squares = 0.5 * jnp.sum(z**2, axis=-1)
    # The difference cancels most digits of close tokens, so accelerators must not shorten the products.
    products = jnp.matmul(z, jnp.swapaxes(z, -1, -2), precision=jax.lax.Precision.HIGHEST)
    distances = half_squares[..., :, None] + half_squares[..., None, :] - products
    # Only round-off makes them negative; the derivatives, which are exact, must not feel its removal.
    distances = distances + jax.lax.stop_gradient(jnp.maximum(distances, 0.0) - distances)
    return jnp.where(neighbours, distances, 1.0)
