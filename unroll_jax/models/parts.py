"""Input checks, feature extractors and heads of classifiers and segmenters."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, check_fields, require
from unroll_jax.arrays import check_dtype, check_shape
from unroll_jax.energies.equilibrium.monotone import Monotone, resolve_monotone
from unroll_jax.numerics import common_dtype, compute_dtype

__all__ = [
    "BehindStem",
    "ClassifierHead",
    "Features",
    "SegmenterHead",
    "Stem",
    "apply_dense",
    "check_array",
    "check_mask",
    "classifier_head",
    "event_ndim",
]


def event_ndim(convolutional: bool) -> int:
    """Returns the number of axes of one example.

    These are (height, width, channels), or (features,).
    """
    return 3 if convolutional else 1


def check_array(x: Any, *, convolutional: bool) -> None:
    """Checks that x holds floating images or vectors, with any batch axes.

    None of the other axes may be empty.
    """
    check_dtype("x", x)
    axes = event_ndim(convolutional)
    wanted = "height, width, channels" if convolutional else "features"
    shape = jnp.shape(x)
    fits = len(shape) >= axes and 0 not in shape[-axes:]
    allowed = f"be (*batch, {wanted}) with sizes of at least 1"
    require(fits, "x", allowed, f"shape {shape}")


def check_mask(mask: Any, x: Any) -> None:
    """Checks that a mask, if any, has a boolean for each token of x (*batch, n, d)."""
    check_dtype("mask", mask, jnp.bool_)
    check_shape("mask", mask, x.shape[:-1], ", as x has")


def apply_dense(
    x: Float[Array, "*batch d"],
    features: int,
    param_dtype: Any,
    name: str | None = None,
) -> Float[Array, "*batch k"]:
    """Applies a dense layer in the dtype that x and its parameters promote to.

    To be called inside a compact method.
    """
    dtype = common_dtype(x, param_dtype)
    return nn.Dense(features, dtype=dtype, param_dtype=param_dtype, name=name)(x)


class Features(nn.Module):
    """One convolution with zero padding, and the activation after it.

    Without a ``kernel_size`` it is a dense layer.
    """

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
        dtype = common_dtype(x, self.param_dtype) if self.dtype is None else self.dtype
        options = {
            "use_bias": self.use_bias,
            "dtype": dtype,
            "param_dtype": self.param_dtype,
        }
        if self.kernel_size is None:
            layer = nn.Dense(self.features, **options)
        else:
            window = (self.kernel_size,) * 2
            strides = (self.strides,) * 2
            layer = nn.Conv(self.features, window, strides=strides, **options)
        return resolve_monotone(self.activation).value(layer(x))


class ClassifierHead(nn.Module):
    """Mean pooling of images, and a dense layer with a bias.

    Pooling is over windows of side ``pool``, or over the whole image.
    """

    num_classes: int
    convolutional: bool
    pool: int | None = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, z: Float[Array, "..."]) -> Float[Array, "*batch classes"]:
        """Maps states to logits, in float32 at least.

        Raises a ValueError if ``pool`` is larger than the image.
        """
        z = z.astype(compute_dtype(z))
        # Vectors are read as they are, images after pooling.
        if self.convolutional and self.pool is None:
            z = jnp.mean(z, axis=(-3, -2))
        elif self.convolutional and self.pool is not None:
            side = min(z.shape[-3:-1])
            allowed = f"be at most the image's shorter side, {side}"
            require(self.pool <= side, "pool", allowed, self.pool)
            window = (self.pool,) * 2
            # flax divides by an int32
            with jax.numpy_dtype_promotion("standard"):
                pooled = nn.avg_pool(z, window, strides=window)
            z = pooled.reshape(*pooled.shape[:-3], -1)
        return apply_dense(z, self.num_classes, self.param_dtype)


def classifier_head(model: Any) -> ClassifierHead:
    """Returns the head of a classifier by its attributes.

    To be called inside a compact method.
    """
    return ClassifierHead(
        model.num_classes,
        model.convolutional,
        model.pool,
        model.param_dtype,
        name="head",
    )


class Stem(nn.Module):
    """Convolutions of stride 2, each with its activation.

    Every one halves height and width, rounded up.
    """

    widths: tuple[int, ...]
    kernel_size: int = 3
    activation: str | Monotone = "relu"
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*batch h w c"]) -> Float[Array, "*batch k l d"]:
        """Maps images to feature maps."""
        for width in self.widths:
            layer = Features(
                width,
                self.kernel_size,
                self.activation,
                strides=2,
                dtype=self.dtype,
                param_dtype=self.param_dtype,
            )
            x = layer(x)
        return x


class BehindStem(nn.Module):
    """A classifier behind strided convolutions, which make its inputs smaller.

    The parameters are ``stem``, and ``network``'s own.

    Attributes:
      network: called as ``(logits, info) = network(features)``.
      stem: channels of convolutions of stride 2, as in `DeepOptEqSegmenter`: n make
        feature maps smaller by 2^n.
      param_dtype: dtype of the stem's parameters.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax.models import FeedForwardNetwork
      >>> network = FeedForwardNetwork(num_classes=3, widths=(4,))
      >>> model = BehindStem(network, stem=(2, 4))
      >>> x = jnp.ones((5, 8, 8, 1))
      >>> params = jax.jit(model.init)(jax.random.key(0), x)
      >>> jax.jit(model.apply)(params, x)[0].shape
      (5, 3)
    """

    network: nn.Module
    stem: tuple[int, ...] = (16, 32)
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch h w c"], **options: Any
    ) -> tuple[Float[Array, "*batch classes"], Any]:
        """Applies stem and network to images (*batch, height, width, channels).

        The options go to the network.
        """
        check_array(x, convolutional=True)
        check_fields(self, at_least(1), "stem")
        features = Stem(self.stem, param_dtype=self.param_dtype, name="stem")(x)
        return self.network(features, **options)  # pyright: ignore[reportCallIssue] (Flax types modules loosely)


class SegmenterHead(nn.Module):
    """A 1 x 1 convolution to classes, interpolated bilinearly to the input's size."""

    num_classes: int
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, z: Float[Array, "*batch k l d"], image_shape: tuple[int, int]
    ) -> Float[Array, "*batch h w classes"]:
        """Maps feature maps to logits of images, in float32 at least."""
        z = z.astype(compute_dtype(z))
        logits = apply_dense(z, self.num_classes, self.param_dtype)
        shape = (*logits.shape[:-3], *image_shape, self.num_classes)
        return jax.image.resize(logits, shape, "bilinear")
