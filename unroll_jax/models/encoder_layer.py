"""One layer of an encoder: attention, a feed-forward part, and their layer norms."""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from unroll_jax.arguments import check, in_interval, one_of, require
from unroll_jax.models.dropout import Drop, keep
from unroll_jax.numerics import compute_dtype

__all__ = [
    "ACTIVATIONS",
    "INITIAL_STD",
    "EncoderLayer",
    "check_layer_shape",
    "layer_norm",
    "stacked_layers",
]

#: Activations of `EncoderLayer`, by their names in configurations of Hugging Face.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}

# Standard deviation of initial weights in BERT and in vision transformers.
INITIAL_STD = 0.02


class EncoderLayer(nn.Module):
    """Attention and a feed-forward part, each added to its input and normalised.

    A part A maps tokens y to Norm(y + A(y)), with Norm the layer norm (Vaswani et al.,
    2017). With ``norm_first`` it maps them to y + A(Norm(y)), as in vision transformers
    (Dosovitskiy et al., 2021).

    One product, ``query_key_value``, computes queries, keys and values. The other
    parameters are ``attention_output``, ``attention_norm``, ``hidden``, ``output`` and
    ``output_norm``. Softmax and the statistics of norms are computed in float32 at
    least. ``config`` is an `EncoderConfig` or a `ViTConfig`.
    """

    config: Any
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32
    norm_first: bool = False

    @nn.compact
    def __call__(
        self,
        y: Float[Array, "*batch n d"],
        mask: Bool[Array, "*batch n"] | None,
        drop: Drop = keep,
    ) -> Float[Array, "*batch n d"]:
        """Maps tokens to tokens.

        No token attends to one for which ``mask`` is False. None marks all as real.
        ``drop`` is applied to each part A(y).
        """
        # One axis of tokens: over several, XLA transposes the cotangents of weights, at
        # twice the time on a CPU.
        flat = y.reshape(-1, self.config.dim)
        norm = layer_norm(self.config, self.dtype, self.param_dtype)
        attention_norm = norm(name="attention_norm")
        output_norm = norm(name="output_norm")
        if self.norm_first:
            attended = self._attention(attention_norm(flat), y.shape, mask)
            flat = flat + drop(0, attended)
            flat = flat + drop(1, self._feed_forward(output_norm(flat)))
        else:
            attended = self._attention(flat, y.shape, mask)
            flat = attention_norm(flat + drop(0, attended))
            flat = output_norm(flat + drop(1, self._feed_forward(flat)))
        return flat.reshape(y.shape)

    def _attention(
        self, flat: jax.Array, shape: tuple[int, ...], mask: jax.Array | None
    ) -> jax.Array:
        heads = self.config.num_heads
        mixed = self._dense(3 * self.config.dim, "query_key_value")(flat)
        split = mixed.reshape(*shape[:-1], 3, heads, self.config.dim // heads)
        queries, keys, values = jnp.moveaxis(split, (-3, -2), (0, -3))
        if mask is not None:
            mask = mask[..., None, None, :]
        attended = _attend(queries, keys, values, mask)
        joined = jnp.swapaxes(attended, -3, -2).reshape(flat.shape)
        return self._dense(self.config.dim, "attention_output")(joined)

    def _feed_forward(self, flat: jax.Array) -> jax.Array:
        hidden = self._dense(self.config.hidden_dim, "hidden")(flat)
        active = ACTIVATIONS[self.config.activation](hidden)
        return self._dense(self.config.dim, "output")(active)

    def _dense(self, features: int, name: str) -> nn.Dense:
        return nn.Dense(
            features,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            kernel_init=nn.initializers.normal(INITIAL_STD),
            name=name,
        )


def check_layer_shape(config: Any) -> None:
    """Checks the heads, activation and epsilon of a configuration of layers."""
    divides = config.dim % config.num_heads == 0
    require(divides, "num_heads", f"divide dim={config.dim}", config.num_heads)
    check("activation", config.activation, one_of(ACTIVATIONS))
    check("norm_epsilon", config.norm_epsilon, in_interval("[0, 1)"))


def stacked_layers(layer: EncoderLayer, num_layers: int) -> Callable[..., Any]:
    """Returns an initialiser of the stacked parameters of ``num_layers`` layers.

    Each layer has its key.
    """

    def init(key: jax.Array, *inputs: Any) -> Any:
        keys = jax.random.split(key, num_layers)
        return jax.vmap(lambda key: layer.init(key, *inputs)["params"])(keys)

    return init


class _LayerNorm(nn.LayerNorm):
    """Flax's layer norm, which fails under strict promotion by itself."""

    def __call__(self, x: jax.Array, **options: Any) -> jax.Array:
        with jax.numpy_dtype_promotion("standard"):
            return super().__call__(x, **options)


def layer_norm(
    config: Any, dtype: Any, param_dtype: Any
) -> Callable[..., nn.LayerNorm]:
    """Returns a factory of layer norms with a configuration's epsilon.

    It is called with the name of each norm.
    """
    # The fast variance, E[y^2] - E[y]^2, loses digits if the mean is large. It is in
    # trained encoders.
    return functools.partial(
        _LayerNorm,
        epsilon=config.norm_epsilon,
        dtype=dtype,
        param_dtype=param_dtype,
        use_fast_variance=False,
    )


def _attend(
    queries: Float[Array, "*batch heads n size"],
    keys: Float[Array, "*batch heads n size"],
    values: Float[Array, "*batch heads n size"],
    mask: Bool[Array, "*batch 1 1 n"] | None,
) -> Float[Array, "*batch heads n size"]:
    """softmax(Q K^T / sqrt(size)) V.

    Products are in the dtype of V, softmax in float32 at least.

    Flax's attention multiplies bfloat16 weights in float32, and JAX's computes the
    softmax of float64 in float32.
    """
    wide = compute_dtype(values)
    columns = keys.mT
    scores = jnp.matmul(queries, columns, preferred_element_type=wide)
    scores = scores * (1.0 / math.sqrt(queries.shape[-1]))
    # finfo.min, not -inf: a row of masked tokens has no NaN
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(wide).min)
    return jnp.matmul(jax.nn.softmax(scores).astype(values.dtype), values)
