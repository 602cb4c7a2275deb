"""The Lagrangian of an objective under constraints: plain, augmented, and with
slacks."""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from unroll_jax.arguments import POSITIVE, checked
from unroll_jax.constrained import trees

__all__ = [
    "augmented_lagrangian",
    "lagrangian",
    "optimal_slacks",
    "resilient_lagrangian",
]


def lagrangian(
    objective: Float[Array, ""] | float,
    violations: PyTree,
    multipliers: PyTree,
    *,
    normalise: bool = False,
    kinds: Any = None,
) -> Float[Array, ""]:
    r"""The Lagrangian :math:`L = f + \sum_i \lambda_i c_i` of an objective under
    constraints.

    Differentiate it in the parameters: one backward pass serves the objective and all
    constraints. Multipliers are constants in it. Where a constraint has no useful
    gradient, pass a differentiable surrogate here and the strict violation to the
    update of the multipliers (proxy constraints).

    Args:
      objective: f, a scalar.
      violations: c of constraints :math:`c \le 0` or :math:`c = 0`, any pytree of
        arrays with any names and shapes.
      multipliers: lambda, of the structure and shapes of the violations; no gradient
        flows to them.
      normalise: divide by 1 + sum |lambda|. The minimiser stays, and the gradient stays
        bounded when multipliers grow.
      kinds: as in `dual_ascent`. With it a known negative multiplier of an inequality
        is an error, a traced one NaN.

    Raises:
      ValueError: if objective is not a scalar, or multipliers do not fit violations,
        are not finite or of wrong sign.

    Source: Porras-Valenzuela, Hadou, Ribeiro, eq. 5. Proxy constraints: Cotter et al.,
    "Two-player games for efficient non-convex constrained optimization" (2019).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> def violations(x):
      ...     return {"sum": x[0] + x[1] - 1.0, "first": x[0] - 0.25}
      >>> prices = {"sum": jnp.array(2.0), "first": jnp.array(0.5)}
      >>> jax.grad(lambda x: lagrangian(jnp.sum(x**2), violations(x), prices))(
      ...     jnp.array([1.0, 2.0])
      ... ).tolist()
      [4.5, 6.0]
    """
    objective, violations, fixed = _parts(objective, violations, multipliers)
    fixed = (
        fixed
        if kinds is None
        else trees.signed(fixed, trees.check_kinds(kinds, violations))
    )
    terms = jax.tree.map(lambda m, c: jnp.sum(m * c), fixed, violations)
    value = objective + _total(terms)
    return (
        value / (1.0 + _total(jax.tree.map(lambda m: jnp.sum(jnp.abs(m)), fixed)))
        if normalise
        else value
    )


def augmented_lagrangian(
    objective: Float[Array, ""] | float,
    violations: PyTree,
    multipliers: PyTree,
    *,
    penalty: Any,
    kinds: Any = "at_most",
) -> Float[Array, ""]:
    r"""The augmented Lagrangian, with a quadratic penalty on each violation.

    .. math:: L_\rho = f + \sum_{c_i \le 0} \frac{[\lambda_i + \rho_i c_i]_+^2 - \lambda_i^2}{2 \rho_i}
        + \sum_{c_i = 0} \left(\lambda_i c_i + \frac{\rho_i}{2} c_i^2\right) .

    It has the gradient of `lagrangian` at the multipliers :math:`\lambda + \rho c`,
    projected for inequalities. A violation weighs at once, before the multiplier has
    grown, which damps oscillation. With ``dual_ascent(None, penalty=rho)`` it is the
    method of multipliers; with multipliers at 0, the quadratic penalty.

    Args:
      objective, violations, multipliers: as in `lagrangian`.
      penalty: rho > 0, multiplier per unit of violation: one number, or a prefix tree
        of numbers or arrays, for one penalty per group or constraint. It may be traced,
        such as ``state.penalty``; a traced one below 0 gives NaN.
      kinds: as in `dual_ascent`.

    Raises:
      ValueError: if a known penalty or an inequality's known multiplier is out of
        range, or structures do not fit.

    Source: Rockafellar (1973), "The multiplier method of Hestenes and Powell applied to
    convex programming"; Nocedal and Wright (2006), "Numerical optimization", eqs. 17.36
    and 17.64.

    Example:
      >>> import jax.numpy as jnp
      >>> violations, multipliers = {"sum": jnp.array(2.0)}, {"sum": jnp.array(-1.0)}
      >>> float(
      ...     augmented_lagrangian(
      ...         1.0, violations, multipliers, penalty=0.5, kinds="equal"
      ...     )
      ... )
      0.0
    """
    objective, violations, fixed = _parts(objective, violations, multipliers)
    kind = trees.check_kinds(kinds, violations)
    fixed = trees.signed(fixed, kind)
    trees.check_penalty(penalty)
    rhos = trees.broadcast_option("penalty", jax.lax.stop_gradient(penalty), violations)

    def term(
        multiplier: Array, violation: Array, rho: Any, kind: str
    ) -> Float[Array, ""]:
        rho = jnp.asarray(rho, multiplier.dtype)
        rho = trees.nan_unless(rho > 0.0, rho)
        if kind == "equal":
            return jnp.sum(multiplier * violation + 0.5 * rho * violation**2)
        return jnp.sum(
            (jax.nn.relu(multiplier + rho * violation) ** 2 - multiplier**2)
            / (2.0 * rho)
        )

    return objective + _total(jax.tree.map(term, fixed, violations, rhos, kind))


@checked(resilience=POSITIVE)
def optimal_slacks(
    multipliers: Float[Array, "*constraints"], resilience: float
) -> Float[Array, "*constraints"]:
    """Slacks lambda / beta, the best c <= s at the cost beta/2 |s|^2
    (Porras-Valenzuela et al., eqs. 34 to 37)."""
    return (
        trees.signed(trees.as_losses("multipliers", multipliers), "at_most")
        / resilience
    )


@checked(resilience=POSITIVE)
def resilient_lagrangian(
    objective: Float[Array, ""] | float,
    violations: PyTree,
    slacks: PyTree,
    multipliers: PyTree,
    *,
    resilience: float,
) -> Float[Array, ""]:
    r"""The Lagrangian with slacks,
    :math:`L = f + \sum_i \lambda_i (c_i - s_i) + \frac{\beta}{2} |s|^2`.

    Its gradient in the slacks is :math:`\beta s - \lambda`, so they come to rest at
    :math:`\lambda / \beta`. The dual step on c - s decays the multipliers there, as
    ``resilience=`` of `dual_ascent` does. Slacks are parameters of an optimiser that
    keeps them at 0 or above; the paper sets them to 0 after every epoch:

    .. code-block:: python

        optimizer = optax.chain(optax.sgd(0.05), optax.keep_params_nonnegative())
        slacks = jax.tree.map(
            jnp.zeros_like, violations
        )  # at the start, and after every epoch

    Args:
      objective, violations: as in `lagrangian`; all constraints are inequalities.
      slacks: s >= 0, of the structure and shapes of the violations; a traced one below
        0 gives NaN.
      multipliers: lambda >= 0, likewise; no gradient flows to them.
      resilience: beta > 0, cost of slack.

    Raises:
      ValueError: if resilience is out of range, a known slack or multiplier is
        negative, or structures differ.

    Source: Porras-Valenzuela, Hadou, Ribeiro, eqs. 34 to 36, Appendices A.5 and B.2;
    Hounie et al. (2023).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> violations, slacks, multipliers = (
      ...     jnp.array([-1.0, 0.5]),
      ...     jnp.array([0.0, 0.25]),
      ...     jnp.array([0.0, 2.0]),
      ... )
      >>> value = jax.value_and_grad(resilient_lagrangian, argnums=2)
      >>> total, gradient = value(2.0, violations, slacks, multipliers, resilience=4.0)
      >>> float(total), gradient.tolist()
      (2.625, [0.0, -1.0])
    """
    violations, slacks = (
        trees.as_violations("violations", violations),
        trees.as_violations("slacks", slacks),
    )
    trees.check_matching("slacks", slacks, violations)
    slacks = trees.signed(slacks, "at_most", "slacks")
    cost = (
        0.5
        * resilience
        * sum(
            jnp.sum(trees.wide("slacks", leaf) ** 2) for leaf in jax.tree.leaves(slacks)
        )
    )
    relaxed = jax.tree.map(jnp.subtract, violations, slacks)
    return lagrangian(objective, relaxed, multipliers, kinds="at_most") + cost


def _parts(
    objective: Any, violations: Any, multipliers: Any
) -> tuple[Float[Array, ""], PyTree, PyTree]:
    """The objective, violations in at least the precision of their multipliers, and
    detached multipliers."""
    objective = trees.as_scalar("objective", objective)
    violations, fixed = (
        trees.as_violations("violations", violations),
        trees.as_violations("multipliers", multipliers),
    )
    trees.check_matching("multipliers", fixed, violations)
    trees.check_known("multipliers", fixed, np.isfinite, "finite")
    fixed = jax.tree.map(lambda m: trees.wide("multipliers", m), fixed)
    violations = jax.tree.map(
        lambda c, m: c.astype(jnp.promote_types(c.dtype, m.dtype)), violations, fixed
    )
    return objective, violations, jax.lax.stop_gradient(fixed)


def _total(terms: PyTree) -> Float[Array, ""]:
    return functools.reduce(operator.add, jax.tree.leaves(terms))
