"""Inputs of an evaluation disturbed beyond Gaussian noise, and the figures of it."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jaxtyping import Array, Float

from unroll_jax.disturbances import blur, dropped, salt_and_pepper

from ..config.disturbances import BLUR, SALT_AND_PEPPER, Disturbance, disturbances
from ..task import Row

Lose = Callable[[Array, jax.Array, float], Array]


def disturbance_figures(words: Sequence[str], name: str, score: Callable[[Disturbance], Any]) -> Row:
    """``score`` of every disturbance by its label, as far as any were asked for."""
    figures = {one.label: score(one) for one in disturbances(words)}
    return {f"disturbed_{name}": figures} if figures else {}


def disturbed(
    clean: Float[Array, "*shape"],
    noise: Any,
    disturbance: Disturbance,
    key: jax.Array,
    *,
    axes: tuple[int, int] = (-2, -1),
    lose: Lose = dropped,
) -> Float[Array, "*shape"]:
    """One example in the order in which things go wrong: blurred before the sensor's noise, the others after it.

    Args:
      clean: pixels in [0, 1], which are the values of pepper and of salt.
      noise: of the shape of an example, or 0.
      disturbance: what else there is.
      key: of the draw.
      axes: of a picture, along which it is blurred.
      lose: of the disturbed example, a key and a share what is left of it; as usual, slices of the first axis are 0.
    """
    if disturbance.name == BLUR:
        return blur(clean, disturbance.size, axes=axes) + noise
    change = salt_and_pepper if disturbance.name == SALT_AND_PEPPER else lose
    return change(clean + noise, key, disturbance.size)
