"""Gradients of a batch, in parts where its activations do not fit, and with what is recomputed given by name."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from train.config import Remat
from train.sharding import keep_rows

__all__ = ["POLICIES", "in_parts", "loss_gradient", "rematerialised", "whole"]

SampleLosses = Callable[[Any, Any], Float[Array, "samples layers_and_one"]]
Objective = Callable[[Float[Array, "samples layers_and_one"]], tuple[Array, Any]]

# What the backward pass finds stored; all else it computes again. None: nothing is computed again.
POLICIES: dict[Remat, Callable[..., Any] | None] = {
    "none": None,
    "everything": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_without_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def rematerialised(function: Callable[..., Any], remat: Remat) -> Callable[..., Any]:
    """The function, whose backward pass recomputes what a name of `POLICIES` says."""
    policy = POLICIES[remat]
    return function if policy is None else jax.checkpoint(function, policy=policy)


def loss_gradient(
    sample_losses: SampleLosses,
    objective: Objective,
    params: Any,
    batch: Any,
    *,
    parts: int = 1,
    affine: bool | Bool[Array, ""] = False,
) -> tuple[tuple[Array, Any], Any]:
    r"""Value, extras and gradient in the parameters of an objective of every sample's layer losses.

    In parts it is exact for any objective, also one that is nonlinear over the batch, as a tail of the samples is:

    .. math:: \nabla_\theta J(F(\theta)) = \sum_i \frac{\partial J}{\partial F_i} \nabla_\theta F_i(\theta) .

    The weights dJ/dF come from the losses of the whole batch, found by a forward pass over all parts first; then each
    part has its backward pass, and the weighted gradients are added up. An affine objective has the same weights
    whatever the losses, and needs no first pass.

    Args:
      sample_losses: ``(params, batch) -> (samples, L + 1)``, each row a function of its row of the batch alone.
      objective: ``losses of the whole batch -> (scalar, extras)``.
      params: what the gradient is in.
      batch: arrays with a row a sample. What is random in a step must have been drawn: parts draw nothing.
      parts: how many the batch is computed in; must divide its rows (and rows / parts those of a mesh).
      affine: whether the objective is affine in the losses; it may be traced, where that changes as training goes.

    Returns:
      ``((value, extras), gradient)``, as `jax.value_and_grad` has it.
    """
    if parts == 1:
        whole_batch = lambda params: objective(sample_losses(params, batch))  # noqa: E731
        return jax.value_and_grad(whole_batch, has_aux=True)(params)
    divided = in_parts(batch, parts)
    shape = jax.eval_shape(sample_losses, params, batch)
    unseen = lambda: jnp.zeros(shape.shape, shape.dtype)  # noqa: E731
    first_pass = lambda: whole(jax.lax.map(lambda part: sample_losses(params, part), divided))  # noqa: E731
    if isinstance(affine, bool):
        losses = unseen() if affine else first_pass()
    else:
        losses = jax.lax.cond(affine, unseen, first_pass)
    weights, _ = jax.grad(objective, has_aux=True)(losses)

    def add(gradient: Any, part: tuple[Any, Array]) -> tuple[Any, Array]:
        losses, pull = jax.vjp(lambda params: sample_losses(params, part[0]), params)
        return jax.tree.map(jnp.add, gradient, pull(part[1])[0]), losses

    zero = jax.tree.map(jnp.zeros_like, params)
    gradient, losses = jax.lax.scan(add, zero, (divided, in_parts(weights, parts)))
    return objective(whole(losses)), gradient


def in_parts(batch: Any, parts: int) -> Any:
    """A batch as (parts, rows / parts, ...): part i has the rows i, i + parts, ...

    So every device has its share of every part among the rows that it holds, and none is moved.
    """

    def divide(rows: Array) -> Array:
        strided = jnp.reshape(rows, (-1, parts, *rows.shape[1:]))
        return keep_rows(jnp.swapaxes(strided, 0, 1), axis=1)

    return jax.tree.map(divide, batch)


def whole(divided: Any) -> Any:
    """The batch that `in_parts` divided."""
    return jax.tree.map(lambda part: jnp.reshape(jnp.swapaxes(part, 0, 1), (-1, *part.shape[2:])), divided)
