"""The sums over the edges of a sparse graph, as segments of a list."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.energies.graphs import EdgeList
from unroll_jax.energies.rho import Rho

__all__ = ["edge_energy", "edge_sums"]


def edge_energy(
    rho: Rho, z: Float[Array, "*batch n k"], graph: EdgeList, present: Array | None
) -> Float[Array, "*batch"]:
    """The sum of rho over the edges whose two tokens are present."""
    there = _there(graph, z, present)
    return 0.5 * jnp.sum(rho.value(_half_square_distances(z, graph, there)), axis=-1, where=there)


def edge_sums(
    rho: Rho, z: Float[Array, "*batch n k"], values: Float[Array, "*batch n d"], graph: EdgeList, present: Array | None
) -> tuple[Array, Array, Array]:
    """Energy, log degree and mean, see `pairs.Neighbourhood`, in O(m d) time and memory."""
    assert rho.log_slope is not None
    there = _there(graph, z, present)
    distances = _half_square_distances(z, graph, there)
    energy = 0.5 * jnp.sum(rho.value(distances), axis=-1, where=there)
    logits = jnp.where(there, rho.log_slope(distances), -jnp.inf)[..., None]
    largest = _by_receiver(jax.ops.segment_max, logits, graph)
    largest = jax.lax.stop_gradient(jnp.where(jnp.isneginf(largest), 0.0, largest))
    weights = jnp.exp(logits - largest[..., graph.receivers, :])
    degree = _by_receiver(jax.ops.segment_sum, weights, graph)
    total = _by_receiver(jax.ops.segment_sum, weights * values[..., graph.senders, :], graph)
    alone = degree == 0.0
    degree = jnp.where(alone, 1.0, degree)
    return energy, jnp.where(alone, -jnp.inf, largest + jnp.log(degree)), total / degree


def _there(graph: EdgeList, z: Array, present: Array | None) -> Array:
    if present is None:
        return jnp.ones(len(graph.senders), bool)
    present = jnp.broadcast_to(present, z.shape[:-1])
    return present[..., graph.receivers] & present[..., graph.senders]


def _half_square_distances(z: Array, graph: EdgeList, there: Array) -> Array:
    """1 where an end is absent, since rho and its slope may be singular at 0."""
    differences = z[..., graph.receivers, :] - z[..., graph.senders, :]
    return jnp.where(there, 0.5 * jnp.sum(differences**2, axis=-1), 1.0)


def _by_receiver(reduce: Callable, edges: Array, graph: EdgeList) -> Array:
    """(..., edges, d) to (..., n, d)."""
    leading = jnp.moveaxis(edges, -2, 0)
    found = reduce(leading, graph.receivers, num_segments=graph.num_tokens, indices_are_sorted=True)
    return jnp.moveaxis(found, 0, -2)
