"""Smoothness constants for `certify`, of attention and of quadratics."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, checked
from unroll_jax.certificates.curvature import curvature
from unroll_jax.descent import Params
from unroll_jax.energies.attention.graphs import check_mask
from unroll_jax.energies.attention.pairs import neighbourhood
from unroll_jax.energies.attention.rho import RhoLike, resolve_rho
from unroll_jax.energies.tokens import as_anchor, zero_masked
from unroll_jax.norm_bounds import matrix_norm_bound
from unroll_jax.numerics import compute_dtype, round_up

__all__ = ["pairwise_smoothness", "quadratic_smoothness"]

# To bound |W_a|_2^2: for a rank of 1,000 the bound is 0.1% too large.
SQUARINGS = 12

Energy = Callable[[Params, Any, Any], Float[Array, "*batch"]]


def quadratic_smoothness(energy: Energy, *, num_steps: int = 64) -> Energy:
    """The smoothness L of a quadratic energy, from its Hessian (see `curvature`).

    Args:
      energy: ``(params, y, x) -> (*batch,)``. If it is not quadratic, L holds only at
        the state, and certificates do not hold.
      num_steps: Hessian products. L is exact if there are as many as entries of an
        example. Else it is an upper bound with probability 1 - 1e-6.

    Returns:
      A function ``(params, y, x) -> (*batch,)``: the largest eigenvalue of the Hessian
      in size.

    Source: design of the library.

    Example:
      >>> import jax.numpy as jnp
      >>> energy = lambda W, y, x: 0.5 * jnp.sum((y @ W) ** 2)
      >>> smoothness = quadratic_smoothness(energy, num_steps=2)
      >>> W, y = jnp.diag(jnp.array([1.0, 3.0])), jnp.zeros((1, 2))
      >>> round(float(smoothness(W, y, None)), 3)
      9.0
    """

    def smoothness(params: Params, y: Any, x: Any = None) -> Float[Array, "*batch"]:
        def energy_of(state: Any) -> Float[Array, "*batch"]:
            return energy(params, state, x)

        extremes = curvature(energy_of, y, num_steps=num_steps)
        return jnp.maximum(extremes.largest, -extremes.smallest) + extremes.error

    return smoothness


@checked(ridge=at_least(0.0))
def pairwise_smoothness(
    *, rho: RhoLike = "softmax", mask: Any = None, ridge: float = 0.0
) -> Energy:
    r"""The smoothness of an attention energy at the state Y, by its tangent majoriser.

    .. math:: L_f(Y) = |W_a|_2^2
              \bigl( \min(2 \max_u \sum_v \gamma_{uv} , \, n \rho'(0)) + r \bigr) ,
              \qquad \gamma_{uv} = \rho'(\tfrac12 |z_u - z_v|^2) .

    As rho is concave,
    :math:`f(Y') \le f(Y) + \nabla f(Y)^T (Y' - Y) + \tfrac{L}{2} |Y' - Y|^2` for every
    Y', with the graph's Laplacian of weights gamma in the place of L. The bracket
    bounds its largest eigenvalue, with n tokens present. Far tokens have small weights:
    L is then far below :math:`(n \rho'(0) + r) |W_a|_2^2`. Sums are rounded up. The
    weights are as exact as the distances of the tokens.

    Args:
      rho, mask, ridge: as in `attention`, with its errors.

    Returns:
      ``(params, y, x) -> (*batch,)``, summed over the heads of ``params.W_a``, (*heads,
      d, k), or None: the identity.

    Source: Yang, Huang, Wipf (2022), proof of Theorem 3.1 (majorisation). The bound is
    ours.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax.energies import AttentionParams
      >>> near, far = jnp.zeros((3, 1)), jnp.array([[0.0], [9.0], [18.0]])
      >>> smoothness = jax.jit(
      ...     lambda y: pairwise_smoothness()(AttentionParams(None), y)
      ... )
      >>> round(float(smoothness(near)), 3), round(float(smoothness(far)), 3)
      (3.0, 0.0)
    """
    chosen, graph = resolve_rho(rho), check_mask(mask)
    assert chosen.log_slope is not None
    log_slope = chosen.log_slope

    def smoothness(params: Params, y: Any, x: Any = None) -> Float[Array, "*batch"]:
        present = as_anchor(x).present
        tokens = zero_masked(y.astype(compute_dtype(y, params.W_a)), present)
        if params.W_a is None:
            return of_head(None, tokens, present)
        heads = params.W_a.reshape(-1, *params.W_a.shape[-2:]).astype(tokens.dtype)
        total = jnp.zeros(y.shape[:-2], tokens.dtype)
        for W in heads:
            total = total + of_head(W, tokens, present)
        return round_up(total, len(heads))

    def of_head(W: Array | None, tokens: Array, present: Array | None) -> Array:
        z = tokens if W is None else tokens @ W
        degree = jnp.exp(neighbourhood(chosen, z, z, graph, present).log_degree)
        there = jnp.ones((), bool) if present is None else present
        count = jnp.sum(jnp.broadcast_to(there, z.shape[:-1]), axis=-1, dtype=z.dtype)
        flat = count * jnp.exp(log_slope(jnp.zeros((), z.dtype)))
        laplacian = jnp.minimum(2.0 * jnp.max(degree, axis=(-2, -1)), flat)
        bound = laplacian + ridge
        if W is not None:
            bound = matrix_norm_bound(W, num_squarings=SQUARINGS) ** 2 * bound
        # one rounding for each term of a degree, and a few for the rest
        return round_up(bound, z.shape[-2] + 8)

    return smoothness
