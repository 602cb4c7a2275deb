"""Deep OptEq as a classifier of vectors and images."""

import flax.linen as nn
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, check_fields
from unroll_jax.fixed_point import EquilibriumInfo, Probe
from unroll_jax.models.opteq_base import OptEqBase
from unroll_jax.models.parts import Features, check_array, classifier_head

__all__ = ["DeepOptEq"]


class DeepOptEq(OptEqBase, kw_only=True):
    """A classifier whose features are the equilibrium of a deep OptEq.

    They are pooled, if x are images, and read by a dense layer.

    The parameters are ``features`` (if there are), ``layer_1`` to ``layer_L`` with W, U
    and b, and ``head``.

    The networks of the paper for CIFAR-10 have ``widths=(16, 32, 64, 128, 128)`` or
    ``(16, 32, 64, 64, 128)``. It does not state how many channels z has, which layers
    have U, nor the head. With ``channels=32``, ``features=32``,
    ``input_layers=(3, 4, 5)``, no bias but the head's, and pooling over the whole
    image, they have 199,338 and 162,474 parameters: "199k" and "162k" there. That
    choice is ours.

    Attributes:
      num_classes: logits out.
      convolutional: whether x are images (*batch, height, width, channels), else
        vectors (*batch, d).
      features: channels of one convolution (or dense layer) and activation through
        which x is seen. None is x itself.
      pool: side of the windows of images that are averaged before the head. None
        averages over the whole image.

    All others are `OptEqBase`'s.

    Source: Xie et al. (2021), eq. 5 and Section 5.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> sizes = {"convolutional": False, "channels": 8, "widths": (8, 8)}
      >>> model = DeepOptEq(num_classes=3, max_norm=0.9, **sizes)
      >>> x = jax.random.normal(jax.random.key(0), (5, 4))
      >>> params = jax.jit(model.init)(jax.random.key(1), x)
      >>> logits, info = jax.jit(model.apply)(params, x)
      >>> logits.shape, bool(info.converged.all())
      ((5, 3), True)
    """

    num_classes: int
    convolutional: bool = True
    features: int | None = None
    pool: int | None = None

    @nn.compact
    def __call__(
        self, x: Float[Array, "..."], *, probe: Probe | None = None
    ) -> tuple[Float[Array, "*batch classes"], EquilibriumInfo]:
        """Classifies x.

        Args:
          x: images (*batch, height, width, channels), or vectors (*batch, d).
          probe: as in `OptEqBase.find_equilibrium`.

        Returns:
          ``(logits, info)``: (*batch, num_classes) in float32 at least, and how the
          equilibrium was found.
        """
        check_array(x, convolutional=self.convolutional)
        check_fields(self, at_least(1), "num_classes", "features", "pool")
        if self.features is not None:
            features = Features(
                self.features,
                self.kernel_size if self.convolutional else None,
                self.activation,
                use_bias=self.use_bias,
                dtype=self.dtype,
                param_dtype=self.param_dtype,
                name="features",
            )
            x = features(x)
        z, info = self.find_equilibrium(
            x, convolutional=self.convolutional, probe=probe
        )
        return classifier_head(self)(z), info
