"""Constraints on a model itself: norms, sparsity, costs, calibration, and the distance to a reference model."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from unroll_jax.arguments import POSITIVE, at_least, checked
from unroll_jax.constrained.losses import check_function

__all__ = ["calibration_gap", "cost_budget", "expected_gates", "kl_budget", "norm_bound", "sample_gates"]

# Stretch and temperature of hard concrete gates, Louizos et al. (2018), Section 4.
GATE_LOW, GATE_HIGH, TEMPERATURE = -0.1, 1.1, 2.0 / 3.0


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


@checked(at_most=POSITIVE)
def cost_budget(costs: PyTree, *, at_most: float) -> Callable[[PyTree], Float[Array, ""]]:
    r"""The cost of the open gates stays within a budget, :math:`\sum_i k_i g_i / b - 1 \le 0`: sparsity, memory, FLOPs.

    With the gates of `expected_gates` and costs of 1 it is a budget of expected non-zero weights (L0); with bytes or
    operations as costs one of memory or time.

    Args:
      costs: k >= 0, cost of each gate, a prefix tree of the gates: a number, or one for each leaf.
      at_most: b > 0, in units of the costs.

    Returns:
      ``gates -> violation``, a share of the budget; gates is a pytree of probabilities.

    Raises:
      ValueError: if the budget is not positive and finite.

    Source: Gallego-Posada et al., "Controlled sparsity via constrained optimization" (2022).

    Example:
      >>> import jax.numpy as jnp
      >>> gates = {"heads": jnp.array([1.0, 0.5]), "neurons": jnp.array([1.0])}
      >>> float(cost_budget({"heads": 100.0, "neurons": 50.0}, at_most=100.0)(gates))
      1.0
    """

    def violation(gates: PyTree) -> Float[Array, ""]:
        full = jax.tree.broadcast(costs, gates)
        spent = jax.tree.leaves(jax.tree.map(lambda k, g: jnp.sum(k * g), full, gates))
        return jnp.asarray(sum(spent) / at_most - 1.0)

    return violation


def expected_gates(log_alpha: PyTree) -> PyTree:
    r"""The probability that hard concrete gates are open, :math:`\sigma(\log\alpha - \tau \log(-\gamma/\zeta))`.

    Args:
      log_alpha: location of each gate, any pytree.

    Returns:
      Probabilities, of the same structure.

    Source: Louizos, Welling, Kingma, "Learning sparse neural networks through L0 regularization" (2018), eq. 12.

    Example:
      >>> import jax.numpy as jnp
      >>> expected_gates(jnp.array([-20.0, 20.0])).round(3).tolist()
      [0.0, 1.0]
    """
    shift = TEMPERATURE * math.log(-GATE_LOW / GATE_HIGH)
    return jax.tree.map(lambda leaf: jax.nn.sigmoid(leaf - shift), log_alpha)


def sample_gates(key: Array, log_alpha: Float[Array, "*gates"]) -> Float[Array, "*gates"]:
    r"""A sample of hard concrete gates in [0, 1], differentiable in their locations.

    Args:
      key: random key.
      log_alpha: location of each gate.

    Returns:
      Gates of the same shape; many are exactly 0 or 1.

    Source: Louizos, Welling, Kingma (2018), eqs. 10 and 11.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> sample_gates(jax.random.key(0), jnp.array([-20.0, 20.0])).tolist()
      [0.0, 1.0]
    """
    noise = jax.random.logistic(key, jnp.shape(log_alpha), jnp.result_type(log_alpha))
    stretched = jax.nn.sigmoid((noise + log_alpha) / TEMPERATURE) * (GATE_HIGH - GATE_LOW) + GATE_LOW
    return jnp.clip(stretched, 0.0, 1.0)


@checked(num_bins=at_least(1), tolerance=POSITIVE)
def calibration_gap(num_bins: int = 10, *, tolerance: float) -> Callable[..., Float[Array, "2 bins"]]:
    r"""Confidence and accuracy agree in every bin of confidence, weighted by the bin's share of samples.

    .. math:: |E[(\text{confidence} - \text{correct}) \, 1_{bin}]| - \epsilon \le 0

    Gradients flow through the confidence; the bins are constants. The sum of the left sides without epsilon is the
    expected calibration error.

    Args:
      num_bins: bins of equal width over [0, 1].
      tolerance: epsilon > 0, a share.

    Returns:
      ``(probabilities (samples, classes), labels (samples,)) -> violations (2, num_bins)``.

    Raises:
      ValueError: if an argument is out of range.

    Source: Naeini, Cooper, Hauskrecht (2015), "Obtaining well calibrated probabilities using Bayesian binning", ECE.

    Example:
      >>> import jax.numpy as jnp
      >>> probabilities = jnp.array([[0.75, 0.25], [0.75, 0.25]])
      >>> calibration_gap(1, tolerance=0.125)(probabilities, jnp.array([0, 1])).tolist()
      [[0.125], [-0.375]]
    """

    def violations(probabilities: Float[Array, "samples classes"], labels: Any) -> Float[Array, "2 bins"]:
        confidence, correct = jnp.max(probabilities, axis=-1), jnp.argmax(probabilities, axis=-1) == labels
        place = jnp.clip((jax.lax.stop_gradient(confidence) * num_bins).astype(int), 0, num_bins - 1)
        members = jax.nn.one_hot(place, num_bins, dtype=confidence.dtype)
        gaps = (confidence - correct) @ members / confidence.shape[0]
        return jnp.stack([gaps - tolerance, -gaps - tolerance])

    return violations
