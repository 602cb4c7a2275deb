"""A probe of whether a Jacobian is symmetric, for the solvers and adjoints that need it."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.fixed_point.problem import NONSYMMETRIC, ROUND_OFF, Linear, SolveInfo, norm

__all__ = ["asymmetry", "refuse_asymmetric"]

# Of a random pair of vectors, above which a Jacobian is not taken for symmetric; far above round-off and rare to miss.
ASYMMETRY = 1e-2


def refuse_asymmetric(info: SolveInfo, operator: Linear, like: Float[Array, "b m"], epsilon: float) -> SolveInfo:
    """``info`` with a status of its own for the rows whose Jacobian is not symmetric, at two products a solve.

    Args:
      info: how the solve went.
      operator: w -> J^T w where it ended.
      like: an array of the shape and dtype of w.
      epsilon: relative spacing of the dtype that J is computed in.
    """
    lopsided = asymmetry(operator, like) > max(ASYMMETRY, ROUND_OFF * epsilon)
    return info._replace(status=jnp.where(lopsided, NONSYMMETRIC, info.status))


def asymmetry(operator: Linear, like: Float[Array, "b m"]) -> Float[Array, " b"]:
    """|<p, J^T q> - <q, J^T p>| / (|J^T p| |q| + |J^T q| |p|) for two random vectors: about 0 where J is symmetric."""
    keys = jax.random.split(jax.random.key(0))
    # Zeros of ``like`` lend their sharding, which where it is explicit must be that of the map's own.
    p, q = (jax.random.normal(key, like.shape, like.dtype) + jnp.zeros_like(like) for key in keys)
    image_p, image_q = operator(p), operator(q)
    scale = norm(image_p) * norm(q) + norm(image_q) * norm(p)
    # Random vectors are nearly orthogonal to random images; sqrt(m) brings the figure to the order of |J - J^T| / |J|.
    width = like.shape[-1] ** 0.5
    return width * jnp.abs(jnp.sum(p * image_q - q * image_p, -1)) / jnp.where(scale > 0.0, scale, 1.0)
