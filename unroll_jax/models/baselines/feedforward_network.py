"""The plain network that equilibria are compared with: each layer applied once."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, check_fields
from unroll_jax.energies.equilibrium.monotone import Monotone
from unroll_jax.models.parts import Features, check_array, classifier_head

__all__ = ["FeedForwardNetwork"]


class FeedForwardNetwork(nn.Module):
    """A classifier of dense layers or convolutions (DNN, CNN), built like `DeepOptEq`.

    The layers come one after the other.

    Features, widths and head are as there. A layer is sigma(W z + b), without a
    transposed W behind it.

    Attributes:
      widths: width, or channels, of each layer.
      num_classes, convolutional, features, pool, kernel_size, activation, use_bias,
      dtype, param_dtype: `DeepOptEq`'s.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> model = FeedForwardNetwork(num_classes=3, convolutional=False, widths=(8,))
      >>> x = jnp.ones((5, 4))
      >>> variables = jax.eval_shape(model.init, jax.random.key(0), x)
      >>> logits, info = jax.eval_shape(model.apply, variables, x)
      >>> logits.shape, info
      ((5, 3), None)
    """

    num_classes: int
    convolutional: bool = True
    widths: tuple[int, ...] = (64, 64, 64)
    features: int | None = None
    pool: int | None = None
    kernel_size: int = 3
    activation: str | Monotone = "relu"
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "..."]
    ) -> tuple[Float[Array, "*batch classes"], None]:
        """Classifies x: ``(logits, None)``, without an equilibrium."""
        check_array(x, convolutional=self.convolutional)
        names = ("num_classes", "widths", "features", "pool", "kernel_size")
        check_fields(self, at_least(1), *names)
        widths = {} if self.features is None else {"features": self.features}
        for place, width in enumerate(self.widths, start=1):
            widths[f"layer_{place}"] = width
        window = self.kernel_size if self.convolutional else None
        options = {
            "use_bias": self.use_bias,
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
        }
        for name, width in widths.items():
            x = Features(width, window, self.activation, name=name, **options)(x)
        return classifier_head(self)(x), None
