"""Adjoints without a linear system: steps that autodiff goes through, or that are run backwards."""

from unroll_jax.arguments import at_least, checked, in_interval
from unroll_jax.fixed_point.problem import Unrolled

__all__ = ["phantom", "reversible", "unrolled"]


@checked(num_steps=at_least(1))
def unrolled(num_steps: int = 20) -> Unrolled:
    """Steps of the solver differentiated by autodiff, to any order and in both modes; memory grows with the steps.

    ``max_steps`` does not count here, and ``tol`` only decides which examples count as converged.

    Args:
      num_steps: of the solver, at least 1.

    Raises:
      ValueError: if num_steps is below 1.

    Source: Xie et al. (2021), Section 4.2; K = 20 in Section 5.

    Example:
      >>> import jax, jax.numpy as jnp, unroll_jax
      >>> def fixed_point(slope):
      ...     return unroll_jax.equilibrium(
      ...         lambda slope, z, x: slope * z + 1.0, slope, jnp.zeros(()), adjoint=unrolled(50), batch_ndim=0
      ...     )[0]
      >>> round(float(jax.grad(fixed_point)(0.5)), 3)  # of 1 / (1 - slope)
      4.0
    """
    return Unrolled(num_steps)


@checked(num_steps=at_least(1), damping=in_interval("(0, 1]"))
def phantom(num_steps: int = 5, *, damping: float = 1.0) -> Unrolled:
    r"""Phantom gradients: damped steps from the equilibrium, differentiated by autodiff.

    .. math:: z \leftarrow (1 - \lambda) z + \lambda f(z) ,

    from the solution of the forward solve, which receives no gradient. The result is the last of these states. Memory
    grows with ``num_steps``, and not with the forward solve; derivatives are of any order and in both modes, of these
    steps alone.

    Args:
      num_steps: k, at least 1; `one_step` is k = 1 without damping.
      damping: :math:`\lambda`, in (0, 1].

    Raises:
      ValueError: if an argument is out of range.

    Source: Geng et al. (2021), On Training Implicit Models, the unrolled form (Section 3.2).

    Example:
      >>> import jax, jax.numpy as jnp, unroll_jax
      >>> def fixed_point(slope):
      ...     return unroll_jax.equilibrium(
      ...         lambda slope, z, x: slope * z + 1.0, slope, jnp.zeros(()), adjoint=phantom(3), batch_ndim=0
      ...     )[0]
      >>> round(float(jax.grad(fixed_point)(0.5)), 3)  # 2 (1 + 1 / 2 + 1 / 4), of 4
      3.5
    """
    return Unrolled(num_steps, damping, "phantom")


@checked(num_steps=at_least(1), share=in_interval("(0, 1)"))
def reversible(num_steps: int = 16, *, share: float = 0.5) -> Unrolled:
    r"""A reversible iteration, and its exact gradient in constant memory.

    .. math:: z_{k + 1} = (1 - \beta) z_{k - 1} + \beta f(z_k) , \qquad z_{-1} = z_0 .

    The backward pass recomputes every state from the two after it,
    :math:`z_{k - 1} = (z_{k + 1} - \beta f(z_k)) / (1 - \beta)`, and differentiates one step at a time: it evaluates f
    as often as the forward pass, and keeps two states for any ``num_steps``. It replaces the solver: leave ``solver``
    out.

    Rounding grows on the way back, by up to :math:`1 / (1 - \beta)` a step: in float32 the defaults are about as many
    steps as it allows. States are carried in float64 where ``jax_enable_x64`` is set, also between steps in float32. A
    warning tells where the initial state, recomputed, is off by more than 10%: then take fewer steps, a smaller share,
    or float64.

    Args:
      num_steps: evaluations of f, at least 1; ``max_steps`` does not count here, and ``tol`` only decides which
        examples count as converged.
      share: :math:`\beta`, in (0, 1): larger converges faster and rounds worse.

    Raises:
      ValueError: if an argument is out of range.

    Source: McCallum, Arora, Foster (2025), Reversible Deep Equilibrium Models; their y and z in turn are these states,
    two of these steps one of theirs.

    Example:
      >>> import jax, jax.numpy as jnp, unroll_jax
      >>> def fixed_point(slope):
      ...     step = lambda slope, z, x: slope * z + 1.0
      ...     adjoint = reversible(24)
      ...     return unroll_jax.equilibrium(step, slope, jnp.zeros(()), adjoint=adjoint, tol=0.01, batch_ndim=0)[0]
      >>> round(float(jax.grad(fixed_point)(0.2)), 2)  # 1.56 for 1 / (1 - slope), where no step is left out
      1.55
    """
    return Unrolled(num_steps, share, "reversible")
