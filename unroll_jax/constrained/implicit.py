"""Implicit multipliers: a function of a data point's features, for more constraints than can be stored."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from unroll_jax.arguments import checked, one_of
from unroll_jax.constrained.groups import KINDS, check_known, kept_if_sound
from unroll_jax.constrained.losses import as_losses, check_optimizer

__all__ = ["ImplicitDuals", "ImplicitState", "implicit_dual_ascent"]


class ImplicitState(NamedTuple):
    """Parameters of the function of multipliers, and the state of their optimiser.

    Attributes:
      params: of the function.
      opt_state: state of the optimiser that moves them.
      skipped: number of calls whose violations were not finite; such a call changes nothing else.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> duals = implicit_dual_ascent(lambda params, features: features @ params, optax.sgd(0.1))
      >>> duals.init(jnp.zeros(2)).params.tolist()
      [0.0, 0.0]
    """

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

    Multipliers of inequalities are softplus(h), so that they are positive. Points with similar features share their
    multipliers, and points that were never seen have one. As in `dual_ascent`, violations that are not finite are an
    error if they are known, and change nothing under `jax.jit`.

    Args:
      apply: ``(params, features) -> (points,)``, such as a module's; before the softplus.
      optimizer: any optax gradient transformation; it is given minus the gradient above.
      kind: "at_most" or "equal".

    Returns:
      An `ImplicitDuals`.

    Raises:
      ValueError: if kind is unknown; when called, if there is not one violation for each point, or a known one is not
        finite.
      TypeError: if optimizer is not an optax gradient transformation.

    Source: Narasimhan, Cotter, Zhou, Wang, Guo, "Approximate heavily-constrained learning with Lagrange multiplier
    models" (2020).

    Example:
      >>> import jax.numpy as jnp, optax
      >>> duals = implicit_dual_ascent(lambda params, features: features @ params, optax.sgd(1.0), kind="equal")
      >>> duals.update(duals.init(jnp.zeros(1)), jnp.array([1.0, 3.0]), jnp.array([[1.0], [0.5]])).params.tolist()
      [1.25]
    """

    check_optimizer(optimizer)

    def values(params: PyTree, features: Any) -> Float[Array, "points"]:
        heights = apply(params, features)
        return heights if kind == "equal" else jax.nn.softplus(heights)

    def init(params: PyTree) -> ImplicitState:
        return ImplicitState(params, optimizer.init(params), jnp.zeros((), jnp.int32))

    def multipliers(state: ImplicitState, features: Any) -> Float[Array, "points"]:
        return jax.lax.stop_gradient(values(state.params, features))

    def update(state: ImplicitState, violations: Any, features: Any) -> ImplicitState:
        known = jax.lax.stop_gradient(as_losses("violations", violations))
        check_known("violations", known, np.isfinite, "finite")

        def loss(params: PyTree) -> Float[Array, ""]:
            prices = values(params, features)
            if prices.shape != known.shape:
                raise ValueError(f"violations must have shape {prices.shape}, one a point, got {known.shape}")
            return -jnp.mean(prices * known)

        updates, opt_state = optimizer.update(jax.grad(loss)(state.params), state.opt_state, state.params)
        after = state._replace(params=optax.apply_updates(state.params, updates), opt_state=opt_state)
        return kept_if_sound(known, after, state)

    return ImplicitDuals(init, multipliers, update)
