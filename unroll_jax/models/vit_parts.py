"""The configuration, embeddings and readout of a vision transformer."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import (
    FINITE,
    POSITIVE,
    at_least,
    check_fields,
    one_of,
    require,
)
from unroll_jax.arrays import check_dtype
from unroll_jax.models.encoder_layer import INITIAL_STD, check_layer_shape, layer_norm
from unroll_jax.models.parts import check_mask

__all__ = ["READINGS", "PatchEmbeddings", "PatchReadout", "ViTConfig", "check_patches"]

#: Readings of a layer's state by `PatchReadout`.
READINGS = ("state", "residual", "linear")


@dataclasses.dataclass(frozen=True)
class ViTConfig:
    r"""The shape of a vision transformer that reconstructs frames, and its readout.

    With s = (x - mean) / std for a patch x, and h the state of its token, the
    reconstruction y depends on ``reading``:

    * "state": y = mean + std C(h). The state is a patch of ``dim / pixels`` colours one
      after the other (768 = 3 x 16 x 16), and C is their mean. The embedding starts as
      s in every colour, positions and class token start at 0. Layer 0 thus starts as
      the noisy input, and layers add to it.
    * "residual": y = x + std R(Norm(h)), a correction of the input, with Norm and R
      (linear) shared by all layers. R starts at 0, so every layer starts as the noisy
      input. Norm removes the strength of the noise from the correction. On cleaner
      input than in training the correction is too large.
    * "linear": y = mean + std R(Norm(h)), as in Hugging Face's decoder for masked
      images. There is no skip connection around the layers. The reconstruction of layer
      0 is learned too, and starts worse than the input.

    Attributes:
      num_patches, pixels: patches of a frame, and pixels of a patch.
      dim, num_layers, num_heads, hidden_dim, activation, norm_epsilon: as in
      `EncoderConfig`.
      class_token: whether a learned token precedes the patches, as pretrained weights
        have it.
      reading: see above. "state" is the paper's and best from scratch. Its width is a
        multiple of the pixels.
      mean, std: pixels enter as (x - mean) / std. Hugging Face's processor of ViT has
        0.5 for both.

    Source: Dosovitskiy et al. (2021). Porras-Valenzuela, Hadou, Ribeiro, Appendix B.2,
    for "state", where colours of grey video are not averaged.

    Example:
      >>> config = ViTConfig(num_patches=4, pixels=9, dim=27, num_heads=3)
      >>> config.reading, config.dim // config.pixels  # a patch of three colours
      ('state', 3)
    """

    num_patches: int = 100
    pixels: int = 256
    dim: int = 256
    num_layers: int = 3
    num_heads: int = 4
    hidden_dim: int = 512
    class_token: bool = False
    reading: str = "state"
    mean: float = 0.5
    std: float = 0.5
    activation: str = "gelu"
    norm_epsilon: float = 1e-6

    def __post_init__(self) -> None:
        names = (
            "num_patches",
            "pixels",
            "dim",
            "num_layers",
            "num_heads",
            "hidden_dim",
        )
        check_fields(self, at_least(1), *names)
        check_layer_shape(self)
        check_fields(self, one_of(READINGS), "reading")
        fits = self.reading != "state" or self.dim % self.pixels == 0
        allowed = f'be a multiple of pixels={self.pixels} with reading="state"'
        require(fits, "dim", allowed, self.dim, 'or take reading="residual"')
        check_fields(self, FINITE, "mean")
        check_fields(self, POSITIVE, "std")


class PatchEmbeddings(nn.Module):
    """Patches as tokens: the output of layer 0 before it is read.

    This is Dosovitskiy et al. (2021), eq. 1.

    A convolution whose stride is its width is a product with each patch. The parameters
    are ``patch`` (pixels, dim) and its bias, ``position`` (tokens, dim), and
    ``class_token`` (dim,) where there is one, whose position is the first.
    """

    config: ViTConfig
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch n pixels"]
    ) -> Float[Array, "*batch tokens d"]:
        """Embeds patches, behind the class token if there is one."""
        config = self.config
        # "state" starts as the noisy patch in every colour: see `ViTConfig`.
        if config.reading == "state":
            initial = nn.initializers.zeros
            kernel = _colours
        else:
            initial = nn.initializers.normal(INITIAL_STD)
            kernel = nn.initializers.lecun_normal()

        def param(name: str, *shape: int) -> Array:
            value = self.param(name, initial, shape, self.param_dtype)
            return value.astype(self.dtype)

        options = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        dense = nn.Dense(config.dim, kernel_init=kernel, name="patch", **options)
        shifted = ((x - config.mean) / config.std).astype(self.dtype)
        flat = dense(shifted.reshape(-1, config.pixels))
        tokens = flat.reshape(*x.shape[:-1], config.dim)
        if config.class_token:
            first = param("class_token", config.dim)
            first = jnp.broadcast_to(first, (*x.shape[:-2], 1, config.dim))
            tokens = jnp.concatenate([first, tokens], axis=-2)
        places = config.num_patches + config.class_token
        return tokens + param("position", places, config.dim)


class PatchReadout(nn.Module):
    """Reads patches from states, in x's dtype, in the same way at all layers.

    The parameters are ``norm`` and ``pixels``. "state" has none.
    """

    config: ViTConfig
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, h: Float[Array, "*batch tokens d"], x: Float[Array, "*batch n pixels"]
    ) -> Float[Array, "*batch n pixels"]:
        """Reconstructs the patches x from the states h after a layer.

        The class token's is left out.
        """
        config = self.config
        # The class token comes first, if there is one.
        h = h[..., h.shape[-2] - config.num_patches :, :]
        if config.reading == "state":
            colours = h.astype(x.dtype).reshape(*h.shape[:-1], -1, config.pixels)
            return config.mean + config.std * jnp.mean(colours, axis=-2)
        norm = layer_norm(config, self.dtype, self.param_dtype)(name="norm")
        flat = norm(h.reshape(-1, config.dim))
        is_residual = config.reading == "residual"
        kernel = nn.initializers.normal(INITIAL_STD)
        if is_residual:
            # The correction starts at 0, so every layer starts as the input.
            kernel = nn.initializers.zeros
        options = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        dense = nn.Dense(config.pixels, kernel_init=kernel, name="pixels", **options)
        read = config.std * dense(flat).astype(x.dtype).reshape(x.shape)
        return x + read if is_residual else config.mean + read


def check_patches(x: Any, mask: Any, config: ViTConfig) -> None:
    """Checks the inputs of a vision transformer, (*batch, num_patches, pixels).

    The mask may be None.
    """
    wanted = (config.num_patches, config.pixels)
    check_dtype("x", x)
    allowed = (
        f"be (*batch, num_patches, pixels), here (*batch, {wanted[0]}, {wanted[1]})"
    )
    require(x.shape[-2:] == wanted, "x", allowed, f"shape {x.shape}")
    check_mask(mask, x)


def _colours(
    key: jax.Array, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None
) -> jax.Array:
    """Initialises with the identity, once for each colour.

    The shape is (pixels, colours x pixels).
    """
    rows, columns = shape
    return jnp.tile(jnp.eye(rows, dtype=dtype), (1, columns // rows))
