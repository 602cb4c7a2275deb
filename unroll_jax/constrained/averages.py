"""The mean layer losses over many batches, for constraints that bind the mean over all of them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from unroll_jax.arguments import typed

__all__ = ["LossMean", "add_losses", "empty_mean"]


class LossMean(NamedTuple):
    """Mean of each layer's loss over the samples seen so far (layers_and_one,), and how many they were."""

    losses: Float[Array, "layers_and_one"]
    samples: Int[Array, ""]


@typed
def empty_mean(num_layers: int) -> LossMean:
    """The mean over no sample, of a model with ``num_layers`` layers.

    Raises:
      ValueError: if num_layers < 1.
    """
    if num_layers < 1:
        raise ValueError(f"num_layers must be at least 1, got {num_layers}")
    return LossMean(jnp.zeros(num_layers + 1), jnp.zeros((), jnp.int32))


def add_losses(
    mean: LossMean, layer_losses: Float[Array, "layers_and_one"], num_samples: int | Int[Array, ""]
) -> LossMean:
    """The mean with one more batch, which counts by its number of samples.

    Its constraints are those of the train set: an epoch's dual step is ``update(state, constraints(mean.losses))``. A
    step of accumulated gradients takes them so as well, since the mean of violations over batches is something else
    once batches differ in size or a constraint is not affine.

    Args:
      mean: over the batches so far.
      layer_losses: means f_0..f_L over the batch; no gradient flows to them.
      num_samples: in the batch, over all devices; positive.

    Example:
      >>> import jax.numpy as jnp
      >>> mean = add_losses(empty_mean(1), jnp.array([4.0, 2.0]), 3)
      >>> add_losses(mean, jnp.array([8.0, 6.0]), 1).losses.tolist()
      [5.0, 3.0]
    """
    losses = jax.lax.stop_gradient(jnp.asarray(layer_losses, mean.losses.dtype))
    samples = mean.samples + num_samples
    share = jnp.asarray(num_samples, losses.dtype) / samples.astype(losses.dtype)
    return LossMean(mean.losses + share * (losses - mean.losses), samples)
