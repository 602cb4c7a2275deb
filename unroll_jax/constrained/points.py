"""One multiplier for each data point: indexed ones, which move with the batches of their points, and implicit ones."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PyTree

from unroll_jax.arguments import checked, one_of, require
from unroll_jax.constrained.trees import KINDS, check_known, check_optimizer, kept_if_sound, states_of, wide

__all__ = ["ImplicitDuals", "check_rows", "implicit_dual_ascent", "rows_of", "set_rows", "take_rows"]

Rows = Int[Array | np.ndarray, "batch"]


class ImplicitState(NamedTuple):
    """Parameters of the function of multipliers, the state of their optimiser, and the number of skipped calls."""

    params: PyTree
    opt_state: optax.OptState
    skipped: Int[Array, ""]


class ImplicitDuals(NamedTuple):
    """The three pure functions that `implicit_dual_ascent` returns.

    Attributes:
      init: ``params -> ImplicitState``.
      multipliers: ``(state, features) -> multipliers``, one for each point; no gradient flows to the parameters.
      update: ``(state, violations, features) -> ImplicitState``.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> duals = implicit_dual_ascent(lambda params, features: features @ params, optax.sgd(0.1), kind="equal")
      >>> duals.multipliers(duals.init(jnp.ones(2)), jnp.array([[1.0, 2.0]])).tolist()
      [3.0]
    """

    init: Callable[[PyTree], ImplicitState]
    multipliers: Callable[[ImplicitState, Any], Float[Array, "points"]]
    update: Callable[[ImplicitState, Any, Any], ImplicitState]


@checked(kind=one_of(KINDS))
def implicit_dual_ascent(
    apply: Callable[[PyTree, Any], Float[Array, "points"]],
    optimizer: optax.GradientTransformation,
    *,
    kind: str = "at_most",
) -> ImplicitDuals:
    r"""Dual ascent on the parameters of :math:`\lambda_i = h_\phi(x_i)`, the multiplier of the point with features x_i.

    .. math:: \phi \leftarrow \phi + \eta \nabla_\phi \frac1n \sum_i h_\phi(x_i) c_i .

    Multipliers of inequalities are softplus(h), which is positive. Points with similar features share their
    multipliers, and new points have one. Violations that are not finite: as in `dual_ascent`.

    Args:
      apply: ``(params, features) -> (points,)``, such as a module's; before the softplus.
      optimizer: any optax gradient transformation; it is given minus the gradient above.
      kind: "at_most" or "equal".

    Returns:
      An `ImplicitDuals`. A ValueError says if there is not one violation for each point, or a known one is not finite.

    Source: Narasimhan, Cotter, Zhou, Wang, Guo, "Approximate heavily-constrained learning with Lagrange multiplier
    models" (2020).

    Example:
      >>> import jax.numpy as jnp, optax
      >>> duals = implicit_dual_ascent(lambda params, features: features @ params, optax.sgd(1.0), kind="equal")
      >>> duals.update(duals.init(jnp.zeros(1)), jnp.array([1.0, 3.0]), jnp.array([[1.0], [0.5]])).params.tolist()
      [1.25]
    """
    check_optimizer("optimizer", optimizer)

    def values(params: PyTree, features: Any) -> Float[Array, "points"]:
        heights = wide("apply", apply(params, features))
        require(heights.ndim == 1, "apply", "return (points,)", f"shape {heights.shape}")
        return heights if kind == "equal" else jax.nn.softplus(heights)

    def init(params: PyTree) -> ImplicitState:
        return ImplicitState(params, optimizer.init(params), jnp.zeros((), jnp.int32))

    def multipliers(state: ImplicitState, features: Any) -> Float[Array, "points"]:
        return jax.lax.stop_gradient(values(state.params, features))

    def update(state: ImplicitState, violations: Any, features: Any) -> ImplicitState:
        known = jax.lax.stop_gradient(wide("violations", violations))
        require(known.size > 0, "violations", "hold one for each point, and one point at least", f"shape {known.shape}")
        check_known("violations", known, np.isfinite, "finite")

        def loss(params: PyTree) -> Float[Array, ""]:
            prices = values(params, features)
            require(prices.shape == known.shape, "violations", f"have shape {prices.shape}", known.shape)
            return -jnp.mean(prices * known)

        updates, opt_state = optimizer.update(jax.grad(loss)(state.params), state.opt_state, state.params)
        after = state._replace(params=optax.apply_updates(state.params, updates), opt_state=opt_state)
        return kept_if_sound(known, after, state)

    return ImplicitDuals(init, multipliers, update)


def take_rows(multipliers: PyTree, rows: Rows) -> PyTree:
    """Multipliers of the data points of a batch, for `lagrangian`.

    Args:
      multipliers: any pytree of arrays whose first axis runs over data points.
      rows: indices of the points, (batch,), the new first axis; known ones out of range are errors, traced ones NaN.

    Example:
      >>> import jax.numpy as jnp
      >>> take_rows({"margin": jnp.array([0.0, 1.0, 2.0])}, jnp.array([2, 0]))["margin"].tolist()
      [2.0, 0.0]
    """
    check_rows(rows, multipliers)
    return jax.tree.map(lambda leaf: _taken(jnp.asarray(leaf), rows), multipliers)


def check_rows(rows: Any, multipliers: PyTree) -> None:
    """Checks that rows are indices of every group of multipliers; of traced ones the values are not checked."""
    if not jnp.issubdtype(jnp.result_type(rows), jnp.integer):
        raise TypeError(f"rows must be integers, got {jnp.result_type(rows)}")
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(multipliers)]
    vector = np.ndim(rows) == 1 and () not in shapes
    require(vector, "rows", f"be a vector of indices along the first axis of {shapes}", rows)
    least = min(shape[0] for shape in shapes)
    inside = isinstance(rows, Tracer) or np.all((np.asarray(rows) >= 0) & (np.asarray(rows) < least))
    require(inside, "rows", f"be in 0..{least - 1}, the rows of the multipliers", rows)


def rows_of(state: Any, rows: Rows, transformation: optax.GradientTransformation) -> Any:
    """The `DualState` of some rows; counters and other leaves without an entry for each row are shared."""
    means = states_of(optax.MultiStepsState, state.opt_state)
    require(not means, "rows", "not come with optax.MultiSteps", "one, which averages calls with other rows")
    return jax.tree.map(
        lambda by_row, leaf: _taken(leaf, rows) if by_row else leaf, _by_row(state, transformation), state
    )


def set_rows(state: Any, rows: Rows, part: Any, transformation: optax.GradientTransformation) -> Any:
    """The state with the rows of ``part`` in their places; of an index that occurs twice, one entry is kept."""

    def put(by_row: bool, leaf: Array, new: Array) -> Array:
        return leaf.at[_in_range(leaf, rows)].set(new, mode="drop") if by_row else new

    return jax.tree.map(put, _by_row(state, transformation), state, part)


def _taken(leaf: Array, rows: Rows) -> Array:
    """Rows of an array, NaN for indices out of range."""
    return leaf.at[_in_range(leaf, rows)].get(mode="fill")


def _in_range(leaf: Array, rows: Rows) -> Array:
    """Indices with those below 0 beyond the end, as JAX counts them from there."""
    return jnp.where(jnp.asarray(rows) < 0, leaf.shape[0], jnp.asarray(rows))


def _by_row(state: Any, transformation: optax.GradientTransformation) -> Any:
    """Marks the leaves of a `DualState` that have an entry for each row: they grow with the number of rows."""
    longer = jax.tree.map(lambda m: jax.ShapeDtypeStruct((m.shape[0] + 1, *m.shape[1:]), m.dtype), state.multipliers)
    now, then = (jax.eval_shape(transformation.init, tree) for tree in (state.multipliers, longer))
    opt_state = jax.tree.map(lambda one, other: one.shape != other.shape, now, then)
    every = jax.tree.map(lambda _: True, state)
    return every._replace(opt_state=opt_state, skipped=False)
