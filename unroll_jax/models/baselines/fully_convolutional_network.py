"""A fully convolutional network (FCN): the segmenter without an equilibrium."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, check_fields
from unroll_jax.energies.equilibrium.monotone import Monotone
from unroll_jax.models.parts import Features, SegmenterHead, Stem, check_array

__all__ = ["FullyConvolutionalNetwork"]


class FullyConvolutionalNetwork(nn.Module):
    """The segmenter without an equilibrium (FCN).

    Between the same stem and head it has convolutions one after the other.

    Attributes:
      widths: channels of the convolutions between stem and head.
      num_classes, stem, kernel_size, activation, dtype, param_dtype: as in
      `DeepOptEqSegmenter`.

    Source: Long, Shelhamer, Darrell (2015), without skip connections, to be of one
    build with `DeepOptEqSegmenter`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> model = FullyConvolutionalNetwork(num_classes=3, widths=(4, 4), stem=(2,))
      >>> x = jnp.ones((5, 8, 6, 1))
      >>> variables = jax.eval_shape(model.init, jax.random.key(0), x)  # only shapes
      >>> jax.eval_shape(model.apply, variables, x)[0].shape
      (5, 8, 6, 3)
    """

    num_classes: int
    widths: tuple[int, ...] = (64, 64, 64)
    stem: tuple[int, ...] = (16, 32)
    kernel_size: int = 3
    activation: str | Monotone = "relu"
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch h w c"]
    ) -> tuple[Float[Array, "*batch h w classes"], None]:
        """Segments x: ``(logits, None)``, without an equilibrium."""
        check_array(x, convolutional=True)
        check_fields(self, at_least(1), "num_classes", "widths", "stem", "kernel_size")
        names = ("kernel_size", "activation", "dtype", "param_dtype")
        options = {name: getattr(self, name) for name in names}
        hidden = Stem(self.stem, name="stem", **options)(x)
        for place, width in enumerate(self.widths, start=1):
            hidden = Features(width, name=f"layer_{place}", **options)(hidden)
        head = SegmenterHead(self.num_classes, self.param_dtype, name="head")
        return head(hidden, (x.shape[-3], x.shape[-2])), None
