"""Layer losses and multipliers as arrays that are checked, and the mean of the losses over many batches."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from unroll_jax.arguments import Rule, at_least, checked, require
from unroll_jax.arrays import check_shape

__all__ = [
    "LossMean",
    "add_losses",
    "as_losses",
    "as_multipliers",
    "as_numbers",
    "check_each",
    "check_function",
    "check_optimizer",
    "check_samples",
    "empty_mean",
]


class LossMean(NamedTuple):
    """Mean of each layer's loss over the samples seen so far (layers_and_one,), and how many they were.

    Example:
      >>> import jax.numpy as jnp
      >>> mean = add_losses(empty_mean(1), jnp.array([4.0, 2.0]), 3)
      >>> mean.losses.tolist(), int(mean.samples)
      ([4.0, 2.0], 3)
    """

    losses: Float[Array, "layers_and_one"]
    samples: Int[Array, ""]


def as_losses(name: str, value: Any) -> Float[Array, "..."]:
    """``value`` as a floating array; integers become float32, which holds them exactly up to 2^24.

    Raises:
      TypeError: if it does not hold real numbers.
    """
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be an array of numbers, got {type(value).__name__}") from error
    if jnp.issubdtype(array.dtype, jnp.integer):
        return array.astype(jnp.promote_types(array.dtype, jnp.float32))
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{name} must hold real numbers, got {array.dtype}")
    return array


def as_numbers(name: str, value: Any, rule: Rule, *, each: str) -> np.ndarray:
    """``value`` in float64: one known number, or one for ``each``.

    Raises:
      TypeError: if it is traced, or holds anything else.
      ValueError: if a number is not as the rule allows, or there is none.
    """
    if isinstance(value, Tracer):
        raise TypeError(f"{name} must be known beforehand, got a traced value; pass a Python number")
    try:
        given = np.asarray(value)
        if given.dtype.kind not in "iuf":
            raise TypeError(given.dtype)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a number, or several, got {value!r}") from error
    numbers = given.astype(float)
    sound = numbers.ndim <= 1 and numbers.size > 0 and all(map(rule.holds, numbers.ravel()))
    require(sound, name, f"be {rule.allowed}, one number or one for each {each}", value)
    return numbers


def check_each(name: str, numbers: np.ndarray | None, count: int) -> None:
    """Checks that numbers of `as_numbers` are one, or one for each of ``count`` constraints.

    Raises:
      ValueError: if they are not.
    """
    fits = numbers is None or numbers.ndim == 0 or numbers.size == count
    require(fits, name, f"be one number or one for each of {count} constraints", numbers)


def check_samples(losses: Array) -> None:
    """Checks that losses are those of samples: (samples, L + 1).

    Raises:
      ValueError: if they are not, or they are none.
    """
    fits = losses.ndim == 2 and losses.shape[0] >= 1
    require(fits, "sample_losses", "be (samples, L + 1) with at least one sample", f"shape {losses.shape}")


def check_optimizer(optimizer: Any) -> None:
    """Checks that the optimiser of multipliers or slacks is optax's.

    Raises:
      TypeError: if it is not.
    """
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(f"optimizer must be an optax gradient transformation such as optax.sgd(0.1), got {optimizer!r}")


def check_function(name: str, value: Any, example: str) -> None:
    """Checks that ``value`` can be called; ``example`` names one that can.

    Raises:
      TypeError: if it cannot.
    """
    if not callable(value):
        raise TypeError(f"{name} must be a function such as {example}, got {value!r}")


def as_multipliers(value: Any, shape: tuple[int, ...]) -> Float[Array, "constraints"]:
    """``value`` as multipliers of violations of a shape.

    Raises:
      TypeError: if they are not real numbers.
      ValueError: if there is not one for each violation, or a value that is known is negative or not a number.
    """
    multipliers = as_losses("multipliers", value)
    check_shape("multipliers", multipliers, shape, ", one a constraint")
    known = not isinstance(multipliers, Tracer) and multipliers.is_fully_addressable
    require(not known or np.all(np.asarray(multipliers) >= 0.0), "multipliers", "be at least 0", multipliers)
    return multipliers


@checked(num_layers=at_least(1))
def empty_mean(num_layers: int) -> LossMean:
    """The mean over no sample, of a model with ``num_layers`` layers.

    Args:
      num_layers: L, at least 1.

    Returns:
      A `LossMean` of zeros, to start `add_losses` with.

    Raises:
      ValueError: if num_layers < 1.

    Example:
      >>> empty_mean(2).losses.tolist()
      [0.0, 0.0, 0.0]
    """
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

    Returns:
      The mean over all of them.

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
