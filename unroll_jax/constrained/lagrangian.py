"""The Lagrangian of an objective under constraints: plain, augmented, with slacks."""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from unroll_jax.arguments import POSITIVE, checked, require
from unroll_jax.arrays import common_dtype
from unroll_jax.constrained import trees

__all__ = ["lagrangian"]


@checked(resilience=POSITIVE)
def lagrangian(
    objective: Float[Array, ""] | float,
    violations: PyTree,
    multipliers: PyTree,
    *,
    penalty: Any = None,
    slacks: PyTree = None,
    resilience: float | None = None,
    normalise: bool = False,
    kinds: Any = None,
) -> Float[Array, ""]:
    r"""The Lagrangian :math:`L = f + \sum_i \lambda_i c_i` of an objective under
    constraints.

    Differentiate it in the parameters: one backward pass serves the objective and all
    constraints. Multipliers are constants in it. Where a constraint has no useful
    gradient, pass a differentiable surrogate here and the strict violation to the
    update of the multipliers (proxy constraints).

    A ``penalty`` makes it the augmented Lagrangian,

    .. math::
        L_\rho = f
        + \sum_{c_i \le 0} \frac{[\lambda_i + \rho_i c_i]_+^2 - \lambda_i^2}{2 \rho_i}
        + \sum_{c_i = 0} \left(\lambda_i c_i + \frac{\rho_i}{2} c_i^2\right) .

    It has the gradient of L at the multipliers :math:`\lambda + \rho c`, projected for
    inequalities. A violation weighs at once, before the multiplier has grown, which
    damps oscillation. With ``dual_ascent(None, penalty=rho)`` it is the method of
    multipliers. With multipliers at 0, the quadratic penalty.

    ``slacks`` s relax the constraints to :math:`c \le s` at a cost,

    .. math:: L = f + \sum_i \lambda_i (c_i - s_i) + \frac{\beta}{2} |s|^2 .

    The gradient in the slacks is :math:`\beta s - \lambda`, so they come to rest at
    :math:`\lambda / \beta`. The dual step on c - s decays the multipliers there, as
    ``resilience=`` of `dual_ascent` does. Slacks are parameters of an optimiser that
    keeps them at 0 or above. The paper sets them to 0 after every epoch:

    .. code-block:: python

        optimizer = optax.chain(optax.sgd(0.05), optax.keep_params_nonnegative())
        slacks = jax.tree.map(jnp.zeros_like, violations)  # and after every epoch

    Args:
      objective: f, a scalar.
      violations: c of constraints :math:`c \le 0` or :math:`c = 0`, any pytree of
        arrays with any names and shapes.
      multipliers: lambda, of the structure and shapes of the violations. No gradient
        flows to them.
      penalty: rho > 0, multiplier per unit of violation: one number, or a prefix tree
        of numbers or arrays. It may be traced, such as ``state.penalty``.
      slacks: s >= 0, of the structure and shapes of the violations. All constraints are
        inequalities then.
      resilience: beta > 0, cost of slack.
      normalise: divide by 1 + sum |lambda|. The minimiser stays, and the gradient stays
        bounded when multipliers grow.
      kinds: as in `dual_ascent`. With it, a penalty or slacks a known negative
        multiplier of an inequality is an error, a traced one NaN. None with a penalty
        or slacks: all are inequalities.

    Raises:
      ValueError: if objective is not a scalar, slacks come without resilience, a known
        value is out of range, or structures do not fit.

    Source: Porras-Valenzuela, Hadou, Ribeiro, eqs. 5 and 34 to 36, Appendices A.5 and
    B.2; slacks: Hounie et al. (2023). Proxy constraints: Cotter et al., "Two-player
    games for efficient non-convex constrained optimization" (2019). Penalty:
    Rockafellar (1973), "The multiplier method of Hestenes and Powell applied to convex
    programming"; Nocedal and Wright (2006), "Numerical optimization", eqs. 17.36 and
    17.64.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> def violations(x):
      ...     return {"sum": x[0] + x[1] - 1.0, "first": x[0] - 0.25}
      >>> prices = {"sum": jnp.array(2.0), "first": jnp.array(0.5)}
      >>> def value(x, **options):
      ...     return lagrangian(jnp.sum(x**2), violations(x), prices, **options)
      >>> jax.grad(value)(jnp.array([1.0, 2.0])).tolist()
      [4.5, 6.0]
      >>> jax.grad(value)(jnp.array([1.0, 2.0]), penalty=2.0).tolist()
      [10.0, 10.0]
    """
    objective = trees.as_losses("objective", objective)
    require(objective.ndim == 0, "objective", "be a scalar", f"shape {objective.shape}")
    violations = trees.as_violations("violations", violations)
    multipliers = trees.as_violations("multipliers", multipliers)
    trees.check_matching("multipliers", multipliers, violations)
    trees.check_known("multipliers", multipliers, trees.FINITE)
    # the precision of the multipliers at least, and that of float32
    fixed = jax.tree.map(lambda m: trees.widen("multipliers", m), multipliers)
    violations = jax.tree.map(
        lambda c, m: c.astype(common_dtype(c.dtype, m.dtype)), violations, fixed
    )
    if slacks is not None or penalty is not None:
        kinds = "at_most" if kinds is None else kinds
    if kinds is not None:
        kinds = trees.check_kinds(kinds, violations)
        fixed = trees.check_signs(fixed, kinds)
    fixed = jax.tree.map(lambda m, c: m.astype(c.dtype), fixed, violations)
    fixed = jax.lax.stop_gradient(fixed)

    cost = []
    if slacks is not None:
        inequalities = "equal" not in jax.tree.leaves(kinds)
        require(inequalities, "slacks", "come with inequalities only", "an equality")
        require(resilience is not None, "resilience", "be given with slacks", None)
        violations, cost = _relax(violations, slacks, resilience)
    if penalty is None:
        terms = jax.tree.map(lambda m, c: jnp.sum(m * c), fixed, violations)
    else:
        terms = _augmented_terms(fixed, violations, penalty, kinds)
    value = _total([objective, terms, cost])
    if not normalise:
        return value
    size = _total(jax.tree.map(lambda m: jnp.sum(jnp.abs(m)), fixed))
    return value / (1.0 + size).astype(value.dtype)


def _relax(
    violations: PyTree[Array], slacks: PyTree, resilience: Any
) -> tuple[PyTree[Array], Array]:
    """c - s, and the cost of the slacks."""
    slacks = trees.as_violations("slacks", slacks)
    trees.check_matching("slacks", slacks, violations)
    slacks = trees.check_signs(slacks, "at_most", "slacks")
    slacks = jax.tree.map(lambda s, c: s.astype(c.dtype), slacks, violations)
    squares = _total(jax.tree.map(lambda s: jnp.sum(s**2), slacks))
    return jax.tree.map(jnp.subtract, violations, slacks), 0.5 * resilience * squares


def _augmented_terms(
    multipliers: PyTree[Array], violations: PyTree[Array], penalty: Any, kinds: Any
) -> PyTree[Array]:
    penalty = trees.within("penalty", penalty, trees.RHO)
    rhos = trees.broadcast_option("penalty", jax.lax.stop_gradient(penalty), violations)

    def term(multiplier: Array, violation: Array, rho: Any, kind: str) -> Array:
        rho = jnp.asarray(rho, multiplier.dtype)
        if kind == "equal":
            return jnp.sum(multiplier * violation + 0.5 * rho * violation**2)
        to_come = jax.nn.relu(multiplier + rho * violation)
        return jnp.sum((to_come**2 - multiplier**2) / (2.0 * rho))

    return jax.tree.map(term, multipliers, violations, rhos, kinds)


def _total(terms: PyTree) -> Float[Array, ""]:
    """The sum of scalars, in the widest of their dtypes."""
    leaves = jax.tree.leaves(terms)
    dtype = common_dtype(*(leaf.dtype for leaf in leaves))
    return functools.reduce(operator.add, [leaf.astype(dtype) for leaf in leaves])
