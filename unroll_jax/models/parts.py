"""The parts that classifiers and segmenters share: input checks, feature extractors,
heads."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, check_fields, require
from unroll_jax.arrays import check_dtype, check_shape
from unroll_jax.energies.equilibrium.monotone import Monotone, resolve_monotone

__all__ = [
    "BehindStem",
    "ClassifierHead",
    "Features",
    "SegmenterHead",
    "Stem",
    "check_array",
    "check_mask",
    "event_ndim",
]


def event_ndim(convolutional: bool) -> int:
    """Axes of one example: (height, width, channels), or (features,)."""
    return 3 if convolutional else 1


def check_array(x: Any, *, convolutional: bool) -> None:
    """Checks that x holds floating images or vectors with any batch axes, none of
    whose axes is empty."""
    check_dtype("x", x)
    axes, wanted = (
        event_ndim(convolutional),
        "height, width, channels" if convolutional else "features",
    )
    shape = jnp.shape(x)
    fits = len(shape) >= axes and 0 not in shape[-axes:]
    require(
        fits, "x", f"be (*batch, {wanted}) with sizes of at least 1", f"shape {shape}"
    )


def check_mask(mask: Any, x: Any) -> None:
    """Checks that a mask, if there is one, has a boolean for each token of x
    (*batch, n, d)."""
    check_dtype("mask", mask, jnp.bool_)
    check_shape("mask", mask, x.shape[:-1], ", as x has")


class Features(nn.Module):
    """One convolution with zero padding, or one dense layer for no ``kernel_size``,
    and the activation behind it."""

    features: int
    kernel_size: int | None = 3
    activation: str | Monotone = "relu"
    use_bias: bool = True
    strides: int = 1
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Maps (*batch, ..., channels in) to (*batch, ..., features)."""
        options = {
            "use_bias": self.use_bias,
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
        }
        if self.kernel_size is None:
            hidden = nn.Dense(self.features, **options)(x)
        else:
            hidden = nn.Conv(
                self.features,
                (self.kernel_size,) * 2,
                strides=(self.strides,) * 2,
                **options,
            )(x)
        return resolve_monotone(self.activation).value(hidden)


class ClassifierHead(nn.Module):
    """Mean pooling of images, over windows of side ``pool`` or all, and a dense
    layer with a bias."""

    num_classes: int
    convolutional: bool
    pool: int | None = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, z: Float[Array, "..."]) -> Float[Array, "*batch classes"]:
        """Maps states to logits, in float32 at least; a ValueError if ``pool`` is
        larger than the image."""
        z = z.astype(jnp.promote_types(z.dtype, jnp.float32))
        if self.convolutional and self.pool is None:
            z = jnp.mean(z, axis=(-3, -2))
        elif self.convolutional and self.pool is not None:
            side = min(z.shape[-3:-1])
            require(
                self.pool <= side,
                "pool",
                f"be at most the image's shorter side, {side}",
                self.pool,
            )
            pooled = nn.avg_pool(z, (self.pool,) * 2, strides=(self.pool,) * 2)
            z = pooled.reshape(*pooled.shape[:-3], -1)
        return nn.Dense(self.num_classes, param_dtype=self.param_dtype)(z)


class Stem(nn.Module):
    """Convolutions of stride 2, each with its activation: every one halves height
    and width, rounded up."""

    widths: tuple[int, ...]
    kernel_size: int = 3
    activation: str | Monotone = "relu"
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*batch h w c"]) -> Float[Array, "*batch k l d"]:
        """Maps images to feature maps."""
        for width in self.widths:
            options = {
                "strides": 2,
                "dtype": self.dtype,
                "param_dtype": self.param_dtype,
            }
            x = Features(width, self.kernel_size, self.activation, **options)(x)
        return x


class BehindStem(nn.Module):
    """A classifier that sees images through strided convolutions: smaller, for cheaper
    steps.

    The parameters are ``stem``, and ``network``'s own.

    Attributes:
      network: called as ``(logits, info) = network(features)``.
      stem: channels of convolutions of stride 2, as in `DeepOptEqSegmenter`: n make
        feature maps smaller by 2^n.
      param_dtype: dtype of the stem's parameters.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax.models import FeedForwardNetwork
      >>> model = BehindStem(
      ...     FeedForwardNetwork(num_classes=3, widths=(4,)), stem=(2, 4)
      ... )
      >>> x = jnp.ones((5, 8, 8, 1))
      >>> model.apply(model.init(jax.random.key(0), x), x)[0].shape
      (5, 3)
    """

    network: nn.Module
    stem: tuple[int, ...] = (16, 32)
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch h w c"], **options: Any
    ) -> tuple[Float[Array, "*batch classes"], Any]:
        """Applies stem and network to images (*batch, height, width, channels); the
        options go to the network."""
        check_array(x, convolutional=True)
        check_fields(self, at_least(1), "stem")
        features = Stem(self.stem, param_dtype=self.param_dtype, name="stem")(x)
        return self.network(features, **options)  # pyright: ignore[reportCallIssue] (Flax types modules loosely)


class SegmenterHead(nn.Module):
    """A 1 x 1 convolution to classes, and bilinear interpolation to the size of the
    input."""

    num_classes: int
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, z: Float[Array, "*batch k l d"], image_shape: tuple[int, int]
    ) -> Float[Array, "*batch h w classes"]:
        """Maps feature maps to logits of images, in float32 at least."""
        z = z.astype(jnp.promote_types(z.dtype, jnp.float32))
        logits = nn.Dense(self.num_classes, param_dtype=self.param_dtype)(z)
        return jax.image.resize(
            logits, (*logits.shape[:-3], *image_shape, self.num_classes), "bilinear"
        )
