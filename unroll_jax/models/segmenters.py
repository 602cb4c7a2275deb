"""A segmenter: deep OptEq between a strided stem and a pixel-wise head."""

import flax.linen as nn
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, check_fields
from unroll_jax.fixed_point import EquilibriumInfo, Probe
from unroll_jax.models.opteq_base import OptEqBase
from unroll_jax.models.parts import SegmenterHead, Stem, check_array

__all__ = ["DeepOptEqSegmenter"]


class DeepOptEqSegmenter(OptEqBase, kw_only=True):
    """A segmenter: stem, equilibrium of a convolutional deep OptEq, class per pixel.

    The stem has strided convolutions.

    The 1 x 1 head is interpolated to image size. Parameters: ``stem``, ``layer_1`` to
    ``layer_L``, ``head``.

    For Cityscapes the paper has ``widths=(256, 512, 512)``. Its stem, and the channels
    of z, are not published. For images of CamVid's size,
    ``channels=32, widths=(64, 64, 64), stem=(16, 32)`` will do.

    Attributes:
      num_classes: logits of every pixel.
      stem: channels of convolutions of stride 2, through which images are seen: n make
        feature maps smaller by 2^n.

    All others are `OptEqBase`'s.

    Source: Xie et al. (2021), Section 5.3.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> sizes = {"channels": 4, "widths": (4, 4), "stem": (2,)}
      >>> model = DeepOptEqSegmenter(num_classes=3, **sizes)
      >>> x = jnp.ones((5, 8, 6, 1))
      >>> variables = jax.eval_shape(model.init, jax.random.key(0), x)  # only shapes
      >>> logits, info = jax.eval_shape(model.apply, variables, x)
      >>> logits.shape, info.status.shape  # of pixels, one solve per image
      ((5, 8, 6, 3), (5,))
    """

    num_classes: int
    stem: tuple[int, ...] = (16, 32)

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch h w c"], *, probe: Probe | None = None
    ) -> tuple[Float[Array, "*batch h w classes"], EquilibriumInfo]:
        """Segments images x (*batch, height, width, channels) of any size.

        Returns:
          ``(logits, info)``, see `equilibrium`: logits are (*batch, height, width,
          num_classes) in float32 at least.
        """
        check_array(x, convolutional=True)
        check_fields(self, at_least(1), "num_classes", "stem")
        stem = Stem(
            self.stem,
            self.kernel_size,
            self.activation,
            self.dtype,
            self.param_dtype,
            name="stem",
        )
        features = stem(x)
        z, info = self.find_equilibrium(features, convolutional=True, probe=probe)
        head = SegmenterHead(self.num_classes, self.param_dtype, name="head")
        return head(z, (x.shape[-3], x.shape[-2])), info
