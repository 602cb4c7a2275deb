"""Fixed-point problems on flat states: what solvers and adjoints work on, and how they say how it went."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

__all__ = [
    "CONVERGED",
    "MAX_STEPS",
    "NONFINITE",
    "NONSYMMETRIC",
    "STALLED",
    "STATUS",
    "Problem",
    "SolveInfo",
    "flatten",
    "norm",
    "per_example",
    "relative",
    "stalled_at",
]

# How a solve of one example ended.
CONVERGED, STALLED, MAX_STEPS, NONFINITE, NONSYMMETRIC = range(5)
STATUS = (
    "converged",
    "stalled at round-off",
    "reached max_steps",
    "met a value that is not finite",
    "has a Jacobian that is not symmetric, which this adjoint needs,",
)
STALL_PATIENCE = 10  # steps without a better residual, near round-off, after which there is none to be had


class Problem(NamedTuple):
    """A map on flat states, one row an example.

    Attributes:
      apply: ``z (b, m) -> f(z) (b, m)``.
      pull: ``z -> (w -> J(z)^T w)``, vector products with the transposed Jacobian of each row.
    """

    apply: Callable[[Float[Array, "b m"]], Float[Array, "b m"]]
    pull: Callable[[Float[Array, "b m"]], Callable[[Float[Array, "b m"]], Float[Array, "b m"]]]


class SolveInfo(NamedTuple):
    """How a solve went, per example.

    Attributes:
      residual: relative, |f(z) - z| / |f(z)| of the state returned (for an adjoint |v + J^T w - w| / |v|).
      steps: steps taken until it ended.
      status: how it ended, an index into `STATUS`.
    """

    residual: Float[Array, "*batch"]
    steps: Int[Array, "*batch"]
    status: Int[Array, "*batch"]

    @property
    def converged(self) -> Bool[Array, "*batch"]:
        """Whether the tolerance was met, or the residual is as small as round-off lets it be."""
        return (self.status == CONVERGED) | (self.status == STALLED)


def flatten(tree: Any, batch_ndim: int) -> tuple[Float[Array, "b m"], Callable[[Array], Any]]:
    """A pytree of arrays (*batch, ...) as one matrix, a row an example; and the way back."""
    leaves, structure = jax.tree.flatten(tree)
    batch = leaves[0].shape[:batch_ndim]
    dtype = jnp.result_type(*leaves)
    shapes = [leaf.shape for leaf in leaves]
    dtypes = [leaf.dtype for leaf in leaves]
    rows = 1
    for size in batch:
        rows *= size
    parts = [leaf.reshape(rows, -1).astype(dtype) for leaf in leaves]
    sizes = [part.shape[1] for part in parts]
    flat = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)

    def restore(matrix: Array) -> Any:
        pieces, start = [], 0
        for size, shape, dtype in zip(sizes, shapes, dtypes, strict=True):
            pieces.append(matrix[:, start : start + size].reshape(shape).astype(dtype))
            start += size
        return jax.tree.unflatten(structure, pieces)

    return flat, restore


def norm(z: Float[Array, "b m"]) -> Float[Array, " b"]:
    """Euclidean norm of every row; it neither over- nor underflows before its value does."""
    largest = jnp.max(jnp.abs(z), axis=-1, keepdims=True)
    scale = jnp.where((largest > 0.0) & jnp.isfinite(largest), largest, 1.0)
    return jnp.sqrt(jnp.sum((z / scale) ** 2, axis=-1)) * scale[:, 0]


def relative(difference: Float[Array, "b m"], reference: Float[Array, "b m"]) -> Float[Array, " b"]:
    """|difference| / |reference| of every row; 0 where both are 0."""
    above, below = norm(difference), norm(reference)
    return jnp.where(above == 0.0, 0.0, above / jnp.where(below == 0.0, jnp.finfo(above.dtype).tiny, below))


def stalled_at(z: Float[Array, "b m"]) -> float:
    """The relative residual that round-off alone explains in a state of this width and dtype."""
    return 4.0 * float(jnp.finfo(z.dtype).eps) * max(1.0, z.shape[-1] ** 0.5)


def per_example(condition: Bool[Array, " b"], yes: Any, no: Any) -> Any:
    """`jnp.where` by rows, over pytrees whose leaves lead with the example axis."""
    return jax.tree.map(
        lambda a, b: jnp.where(condition.reshape(condition.shape + (1,) * (jnp.ndim(a) - 1)), a, b), yes, no
    )
