"""Rotary position embeddings: frequencies, their scalings, and the rotation."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from unroll_jax.arguments import at_least, check, require

__all__ = [
    "SCALINGS",
    "RotaryScaling",
    "check_scaling",
    "rotary_angles",
    "rotary_frequencies",
    "rotate",
]

#: Kinds of `RotaryScaling`, by their names in configurations of Hugging Face.
SCALINGS = ("linear", "llama3")


@dataclasses.dataclass(frozen=True)
class RotaryScaling:
    """Scaling of rotary frequencies, for texts longer than in pretraining.

    Attributes:
      kind: "linear" divides every frequency by ``factor``. "llama3" (Llama 3.1 and
        later) divides those whose wavelength is above original_positions /
        low_frequency_factor, leaves those below original_positions /
        high_frequency_factor, and interpolates between.
      factor: at least 1, unitless.
      low_frequency_factor, high_frequency_factor, original_positions: of "llama3":
        positive numbers, the second above the first, unitless, and length of the texts
        of pretraining, in tokens.

    Source: Chen et al. (2023), "Extending context window of large language models via
    positional interpolation", for "linear". Grattafiori et al. (2024), "The Llama 3
    herd of models", for "llama3".

    Example:
      >>> RotaryScaling("llama3", factor=32.0).original_positions  # Llama 3.2
      8192
    """

    kind: str
    factor: float
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_positions: int = 8192

    def __post_init__(self) -> None:
        check_scaling(self.kind)
        check("factor", self.factor, at_least(1.0))
        low = self.low_frequency_factor
        high = self.high_frequency_factor
        allowed = f"be positive and below high_frequency_factor={high}"
        require(0.0 < low < high < math.inf, "low_frequency_factor", allowed, low)
        check("original_positions", self.original_positions, at_least(1))


def check_scaling(kind: object) -> None:
    """Checks that a kind of scaling is one of `SCALINGS`."""
    allowed = f"be one of {', '.join(SCALINGS)}"
    require(kind in SCALINGS, "kind of rotary scaling", allowed, f"{kind!r}")


def rotary_frequencies(
    size: int, base: float, scaling: RotaryScaling | None = None
) -> np.ndarray:
    r"""Returns scaled frequencies :math:`\theta_j = b^{-2j / s}`, j < s / 2.

    They are float64, in radians per token.

    Args:
      size, base: even width s of a head, and b, above 1, unitless.
      scaling: None leaves them.

    Returns:
      (size / 2,), falling.

    Source: Su et al., "RoFormer" (2021), Section 3.2.2. "llama3" is as in Meta's
    reference code of Llama 3.1. It scales frequencies between the two bounds by
    (1 - s) / factor + s, with s linear in the number of periods.
    """
    frequencies = base ** -(np.arange(0, size, 2) / size)
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    low = scaling.low_frequency_factor
    high = scaling.high_frequency_factor
    periods = scaling.original_positions * frequencies / (2.0 * math.pi)
    share = np.clip((periods - low) / (high - low), 0.0, 1.0)
    return frequencies * ((1.0 - share) / scaling.factor + share)


def rotary_angles(
    positions: Int[Array, "*batch n"], frequencies: np.ndarray, dtype: jnp.dtype
) -> tuple[Array, Array]:
    """Returns cosine and sine of position times frequency, in ``dtype``.

    Both are (*batch, n, size / 2).
    """
    angles = positions[..., None].astype(dtype) * jnp.asarray(frequencies, dtype)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    y: Float[Array, "*batch n heads size"],
    rotation: tuple[Float[Array, "*batch n half"], Float[Array, "*batch n half"]],
) -> Float[Array, "*batch n heads size"]:
    """Rotates pairs (j, j + size / 2) by the angles, in the dtype of these.

    `transformers` has these pairs. Meta's code and GGUF have (2j, 2j + 1).
    """
    cosine, sine = (part[..., None, :] for part in rotation)
    first, second = jnp.split(y.astype(cosine.dtype), 2, axis=-1)
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate(turned, axis=-1).astype(y.dtype)
