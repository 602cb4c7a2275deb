"""Constraints on a model itself: norms, and the distance to a reference model."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from unroll_jax.arguments import POSITIVE, checked
from unroll_jax.constrained.losses import check_function

__all__ = ["kl_budget", "norm_bound"]


@checked(at_most=POSITIVE)
def norm_bound(*, at_most: float, norm: Any = None) -> Callable[[PyTree], Float[Array, ""]]:
    r"""A norm of parameters stays below a bound, :math:`|\theta| / b - 1 \le 0`.

    Args:
      at_most: b > 0, in units of the norm.
      norm: ``params -> norm``, differentiable; None for the Euclidean norm of all of them. The product of the weights'
        spectral norms (``certificates.spectral_norm`` or a bound of it) bounds the Lipschitz constant of a network.

    Returns:
      ``params -> violation``, a share of the bound; params is any pytree, such as one layer's.

    Raises:
      ValueError: if the bound is not positive and finite.
      TypeError: if norm is not a function.

    Source: Ivanov regularisation, the constrained form of weight decay; Lipschitz constants: Gouk et al.,
    "Regularisation of neural networks by enforcing Lipschitz continuity" (2021).

    Example:
      >>> import jax.numpy as jnp
      >>> float(norm_bound(at_most=2.5)({"w": jnp.array([3.0, 4.0])}))
      1.0
      >>> def largest(params):
      ...     return jnp.max(jnp.sum(jnp.abs(params["w"]), axis=1))  # Lipschitz constant of x -> w x, largest entry
      >>> float(norm_bound(at_most=2.0, norm=largest)({"w": jnp.array([[1.0, -3.0], [2.0, 0.0]])}))
      1.0
    """
    if norm is not None:
        check_function("norm", norm, "jnp.linalg.norm")
    measure = _euclidean if norm is None else norm
    return lambda params: measure(params) / at_most - 1.0


def _euclidean(params: PyTree) -> Float[Array, ""]:
    # In float32 at least: float16 ends at 65504.
    leaves = [jnp.asarray(leaf).astype(jnp.promote_types(leaf.dtype, jnp.float32)) for leaf in jax.tree.leaves(params)]
    squares = jnp.asarray(sum(jnp.sum(leaf**2) for leaf in leaves))
    # The gradient of a norm is NaN at 0.
    return jnp.where(squares > 0.0, jnp.sqrt(jnp.where(squares > 0.0, squares, 1.0)), 0.0)


@checked(at_most=POSITIVE)
def kl_budget(*, at_most: float) -> Callable[..., Float[Array, ""]]:
    r"""The model stays close to a reference model, :math:`E\, KL(p_\theta \| p_{ref}) - b \le 0`.

    Args:
      at_most: b > 0, nats a position.

    Returns:
      ``(logits, reference_logits, counted=None) -> violation``, nats: logits are (..., classes), and ``counted`` (...)
      marks the positions of the mean; None for all. No gradient flows to the reference.

    Raises:
      ValueError: if the bound is not positive and finite.

    Source: Stiennon et al., "Learning to summarize with human feedback" (2020), with the penalty as a constraint.

    Example:
      >>> import jax.numpy as jnp
      >>> logits, reference = jnp.log(jnp.array([0.5, 0.5])), jnp.log(jnp.array([0.75, 0.25]))
      >>> round(float(kl_budget(at_most=0.1)(logits, reference)), 4)
      0.0438
    """

    def violation(
        logits: Float[Array | np.ndarray, "*positions classes"],
        reference_logits: Float[Array | np.ndarray, "*positions classes"],
        counted: Bool[Array | np.ndarray, "*positions"] | None = None,
    ) -> Float[Array, ""]:
        return jnp.mean(divergences(logits, reference_logits), where=counted) - at_most

    return violation


def divergences(
    logits: Float[Array | np.ndarray, "*positions classes"],
    reference_logits: Float[Array | np.ndarray, "*positions classes"],
) -> Float[Array, "*positions"]:
    """KL(p_theta | p_ref) of every position, nats; no gradient flows to the reference."""
    logs = jax.nn.log_softmax(logits)
    others = jax.lax.stop_gradient(jax.nn.log_softmax(reference_logits))
    possible = logs > -jnp.inf  # 0 log 0 is 0, as of classes that are masked
    ratios = jnp.where(possible, logs, 0.0) - jnp.where(possible, others, 0.0)
    return jnp.sum(jnp.exp(logs) * ratios, axis=-1)
