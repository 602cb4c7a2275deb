"""Gradients of an objective of many losses, with the batch in parts, for activations
that do not fit."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

SampleLosses = Float[Array, "samples layers_and_one"]
# (params, batch, probe) -> (losses of every sample, other figures of the samples), a
# row a sample
Losses = Callable[[Any, Any, Any], tuple[SampleLosses, Mapping[str, Array]]]
# losses of the whole batch -> (value, extras)
ObjectiveOfLosses = Callable[[SampleLosses], tuple[Array, Any]]
# (value, extras, losses of every sample, other figures), (gradient in the parameters,
# gradient in the probe)
Place = Callable[[Array, int], Array]
ValueAndGradients = tuple[
    tuple[Array, Any, SampleLosses, Mapping[str, Array]], tuple[Any, Any]
]


def loss_gradient(
    losses: Losses,
    objective: ObjectiveOfLosses,
    params: Any,
    batch: Any,
    probe: Callable[[int], Any],
    *,
    parts: int = 1,
    affine: bool = False,
    place: Place = lambda rows, axis: rows,
) -> ValueAndGradients:
    r"""Returns an objective of losses with extras, the samples' losses and figures, and
    gradients.

    Exact in parts for any objective, also one that is nonlinear over the batch, such as
    a ratio of means:

    .. math::
      \nabla_\theta J(F(\theta))
      = \sum_i \frac{\partial J}{\partial F_i} \nabla_\theta F_i(\theta) .

    A forward pass over all parts gives the losses of the whole batch and so the weights
    dJ/dF; then each part has its backward pass, and the weighted gradients are summed.
    The weights of an affine objective do not depend on the losses, so it skips the
    forward pass.

    Args:
      losses: each row a function of its row of the batch only.
      objective: ``losses of the whole batch -> (scalar, extras)``.
      batch: arrays with a row a sample. Noise must be drawn already: parts draw
        nothing.
      probe: zeros for so many rows; the gradients of several parts in it are stacked.
      parts: number of parts of the batch; must divide its rows. A mesh must divide rows
        / parts.
      affine: True if the objective is affine in the losses.
      place: ``(array, axis) -> array`` constrains the sharding of rows on an axis.
    """
    rows = jax.tree.leaves(batch)[0].shape[0]
    probed = probe(rows // parts)
    if parts == 1:
        return _undivided(losses, objective, params, batch, probed)
    divided = in_parts(batch, parts, place)

    def only(part: Any) -> Any:
        return losses(params, part, probed)[0]

    if affine:
        shape = jax.eval_shape(only, jax.tree.map(lambda part: part[0], divided))
        so_far = jnp.zeros((rows, *shape.shape[1:]), shape.dtype)
    else:
        so_far = whole(jax.lax.map(only, divided))
    weights, _ = jax.grad(objective, has_aux=True)(so_far)
    gradient, (samples, figures, in_probe) = _added_up(
        losses, params, probed, (divided, in_parts(weights, parts, place))
    )
    samples, figures = whole(samples), whole(figures)
    return (*objective(samples), samples, figures), (gradient, in_probe)


def in_parts(batch: Any, parts: int, place: Place = lambda rows, axis: rows) -> Any:
    """Returns a batch as (parts, rows / parts, ...): part i has rows i, i + parts,
    ...; no row changes its device."""

    def divide(rows: Any) -> Array:
        return place(
            jnp.swapaxes(jnp.reshape(rows, (-1, parts, *rows.shape[1:])), 0, 1), 1
        )

    return jax.tree.map(divide, batch)


def whole(divided: Any) -> Any:
    """Inverts `in_parts`."""
    return jax.tree.map(
        lambda part: jnp.reshape(jnp.swapaxes(part, 0, 1), (-1, *part.shape[2:])),
        divided,
    )


def _undivided(
    losses: Losses, objective: ObjectiveOfLosses, params: Any, batch: Any, probed: Any
) -> ValueAndGradients:

    def of_batch(
        params: Any, probed: Any
    ) -> tuple[Array, tuple[Any, Array, Mapping[str, Array]]]:
        samples, figures = losses(params, batch, probed)
        value, extras = objective(samples)
        return value, (extras, samples, figures)

    (value, seen), gradients = jax.value_and_grad(of_batch, (0, 1), has_aux=True)(
        params, probed
    )
    return (value, *seen), gradients


def _added_up(
    losses: Losses, params: Any, probed: Any, parts: tuple[Any, Array]
) -> tuple[Any, tuple[Any, Any, Any]]:
    """Returns the weighted gradient, summed over parts; and the losses, gradients in
    the probe and figures of each."""

    def add(
        gradient: Any, part: tuple[Any, Array]
    ) -> tuple[Any, tuple[Array, Mapping[str, Array], Any]]:
        def part_losses(params: Any, probed: Any) -> Any:
            return losses(params, part[0], probed)

        samples, pull, figures = jax.vjp(part_losses, params, probed, has_aux=True)
        part_gradient, in_probe = pull(part[1])
        return jax.tree.map(jnp.add, gradient, part_gradient), (
            samples,
            figures,
            in_probe,
        )

    return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)
