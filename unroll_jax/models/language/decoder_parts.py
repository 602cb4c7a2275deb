"""The configuration of a decoder, and the functions of one of its layers."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jaxtyping import Array, Bool, Float, Int, Integer

from unroll_jax.arguments import at_least, check_fields, in_interval, require
from unroll_jax.models.dropout import Drop, keep
from unroll_jax.models.encoder_parts import as_numbers
from unroll_jax.models.language.rotary import (
    RotaryScaling,
    rotary_angles,
    rotary_frequencies,
    rotate,
)
from unroll_jax.numerics import compute_dtype, linear

__all__ = [
    "Attended",
    "DecoderConfig",
    "causal_mask",
    "decoder_layer",
    "dense",
    "embed",
    "feed_forward",
    "grouped_attention",
    "layer_shapes",
    "new_layers",
    "queries_keys_values",
    "rms_norm",
    "rotation",
    "segment_positions",
]

Layer = Any  # parameters of one layer: a dict of dicts of arrays, see `layer_shapes`


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """The shape of a decoder of Llama's family.

    It serves Llama, SmolLM2, TinyLlama, Qwen2 and Qwen3.

    Attributes:
      vocabulary_size: rows of the table of word embeddings, and of the head.
      dim, num_layers, max_positions: width of the tokens, depth L, longest sequence.
      num_heads: heads of queries.
      num_key_value_heads: heads of keys and values. Each serves num_heads /
        num_key_value_heads of queries.
      hidden_dim: width between the dense layers of the feed-forward part.
      head_dim: width of a head. None shares ``dim`` out over the heads.
      rotary_base, rotary_scaling: base of the rotary frequencies, and their
        `RotaryScaling`, or None.
      tied: whether the head is the table of word embeddings.
      norm_epsilon: added to the mean square in norms.
      qkv_bias: whether queries, keys and values have biases, as in Qwen2.
      qk_norm: whether each head's queries and keys are normalised before they are
        rotated, as in Qwen3.

    Source: Grattafiori et al. (2024), "The Llama 3 herd of models". Yang et al. (2024,
    2025) for Qwen2 and Qwen3.

    Example:
      >>> config = DecoderConfig(128256)  # Llama 3.2, 1B, but for its `RotaryScaling`
      >>> config.head_size, config.num_heads // config.num_key_value_heads
      (64, 4)
    """

    vocabulary_size: int
    dim: int = 2048
    num_layers: int = 16
    num_heads: int = 32
    num_key_value_heads: int = 8
    hidden_dim: int = 8192
    head_dim: int | None = None
    max_positions: int = 131072
    rotary_base: float = 500000.0
    rotary_scaling: RotaryScaling | None = None
    tied: bool = True
    norm_epsilon: float = 1e-5
    qkv_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        names = (
            "vocabulary_size",
            "dim",
            "num_layers",
            "num_heads",
            "num_key_value_heads",
            "hidden_dim",
        )
        check_fields(self, at_least(1), *names, "max_positions")
        check_fields(self, at_least(1), "head_dim")
        heads = self.num_heads
        groups = self.num_key_value_heads
        allowed = f"divide num_heads={heads}"
        require(heads % groups == 0, "num_key_value_heads", allowed, groups)

        divides = self.head_dim is not None or self.dim % heads == 0
        allowed = f"divide dim={self.dim} where head_dim is None"
        require(divides, "num_heads", allowed, heads)

        is_even = self.head_size % 2 == 0
        allowed = "be even, as pairs are rotated"
        require(is_even, "head_dim", allowed, self.head_size)
        check_fields(self, in_interval("(1, inf)"), "rotary_base")
        check_fields(self, in_interval("[0, 1)"), "norm_epsilon")

    @property
    def head_size(self) -> int:
        """Width of a head."""
        return self.dim // self.num_heads if self.head_dim is None else self.head_dim


class Attended(NamedTuple):
    """The inputs of the attention of one layer."""

    queries: Float[Array, "*batch n heads size"]
    keys: Float[Array, "*batch n key_heads size"]
    values: Float[Array, "*batch n key_heads size"]


def layer_shapes(config: DecoderConfig) -> dict[str, dict[str, tuple[int, ...]]]:
    """Returns the shapes of one layer's parameters.

    Products have ``kernel`` (in, out) and ``bias`` (out,), norms have ``scale``.
    """
    dim, hidden = config.dim, config.hidden_dim
    queries = config.num_heads * config.head_size
    keys = config.num_key_value_heads * config.head_size
    shapes: dict[str, dict[str, tuple[int, ...]]] = {
        "attention_norm": {"scale": (dim,)},
        "query": {"kernel": (dim, queries)},
        "key": {"kernel": (dim, keys)},
        "value": {"kernel": (dim, keys)},
        "output": {"kernel": (queries, dim)},
        "feedforward_norm": {"scale": (dim,)},
        "gate": {"kernel": (dim, hidden)},
        "up": {"kernel": (dim, hidden)},
        "down": {"kernel": (hidden, dim)},
    }
    if config.qkv_bias:
        for name, width in (("query", queries), ("key", keys), ("value", keys)):
            shapes[name]["bias"] = (width,)
    if config.qk_norm:
        for name in ("query_norm", "key_norm"):
            shapes[name] = {"scale": (config.head_size,)}
    return shapes


def new_layers(
    key: jax.Array, config: DecoderConfig, initial: Initializer, dtype: Any
) -> Layer:
    """Returns parameters of all layers, stacked on a leading axis of length L.

    Scales of norms are 1, biases 0.
    """
    shapes = layer_shapes(config)
    keys = dict(zip(shapes, jax.random.split(key, len(shapes)), strict=True))

    def new(part: str, name: str, shape: tuple[int, ...]) -> Array:
        stacked = (config.num_layers, *shape)
        if name == "kernel":
            return initial(keys[part], stacked, dtype)
        return jnp.full(stacked, 1.0 if name == "scale" else 0.0, dtype)

    layers = {}
    for part, part_shapes in shapes.items():
        layers[part] = {
            name: new(part, name, shape) for name, shape in part_shapes.items()
        }
    return layers


def rms_norm(
    y: Float[Array, "*batch d"], scale: Float[Array, "d"], epsilon: float
) -> Float[Array, "*batch d"]:
    r"""Returns :math:`y / \sqrt{\tfrac1d \|y\|^2 + \epsilon}` times the scale.

    It is computed in float32 at least.

    Args:
      y: tokens. The output has their dtype.
      scale: of every coordinate.
      epsilon: at least 0, in units of y squared.

    Source: Zhang and Sennrich, "Root mean square layer normalization" (2019), equation
    4.

    Example:
      >>> import jax.numpy as jnp
      >>> y = rms_norm(jnp.array([3.0, -3.0]), jnp.array([1.0, 2.0]), 0.0)
      >>> [round(value, 4) for value in y.tolist()]
      [1.0, -2.0]
    """
    wide = y.astype(compute_dtype(y))
    mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    normed = wide * jax.lax.rsqrt(mean_square + epsilon)
    return (normed * scale.astype(wide.dtype)).astype(y.dtype)


def rotation(
    config: DecoderConfig, positions: Int[Array, "*batch n"], dtype: Any
) -> tuple[Array, Array]:
    """Returns the cosines and sines of the rotation, in float32 or wider."""
    frequencies = rotary_frequencies(
        config.head_size, config.rotary_base, config.rotary_scaling
    )
    return rotary_angles(positions, frequencies, compute_dtype(dtype))


def embed(
    table: Float[Array, "vocabulary d"], tokens: Integer[Array, "*batch n"]
) -> Float[Array, "*batch n d"]:
    """Returns rows of the table of embeddings, NaN for tokens that it lacks."""
    return jnp.take(table, as_numbers(tokens), axis=0, mode="fill", fill_value=jnp.nan)


def decoder_layer(
    config: DecoderConfig,
    layer: Layer,
    y: Float[Array, "*batch n d"],
    angles: tuple[Array, Array],
    mask: Bool[Array, "*batch n n"],
    drop: Drop = keep,
) -> Float[Array, "*batch n d"]:
    """Returns the output of one layer, whose parameters have the dtype of y.

    ``mask`` marks the tokens that each token sees. ``drop`` is applied to attention and
    to SwiGLU.
    """
    mixed = queries_keys_values(config, layer, y, angles)
    keys = jnp.swapaxes(mixed.keys, -2, -3)
    values = jnp.swapaxes(mixed.values, -2, -3)
    attended = grouped_attention(mixed.queries, keys, values, mask)
    return feed_forward(config, layer, y, attended, drop)


def queries_keys_values(
    config: DecoderConfig,
    layer: Layer,
    y: Float[Array, "*batch n d"],
    angles: tuple[Array, Array],
) -> Attended:
    """Returns queries, keys and values of a layer's normalised input.

    Queries and keys are rotated by their tokens' angles.
    """
    normed = rms_norm(y, layer["attention_norm"]["scale"], config.norm_epsilon)

    def heads(name: str) -> Array:
        return dense(normed, layer[name]).reshape(*y.shape[:-1], -1, config.head_size)

    def rotate_heads(name: str) -> Array:
        norm = layer.get(f"{name}_norm")
        each = heads(name)
        if norm is not None:
            each = rms_norm(each, norm["scale"], config.norm_epsilon)
        return rotate(each, angles)

    return Attended(rotate_heads("query"), rotate_heads("key"), heads("value"))


def grouped_attention(
    queries: Float[Array, "*batch n heads size"],
    keys: Float[Array, "*batch key_heads m size"],
    values: Float[Array, "*batch key_heads m size"],
    mask: Bool[Array, "*batch n m"],
) -> Float[Array, "*batch n width"]:
    """softmax(Q K^T / sqrt(size)) V for groups of heads.

    The heads of queries of a group share one head of keys and values.

    Products are in the dtype of V, softmax in float32 at least. A query without keys
    has a finite, meaningless output.

    Source: Ainslie et al., "GQA" (2023).
    """
    *batch, count, heads, size = queries.shape
    wide = compute_dtype(values)
    groups = keys.shape[-3]
    shared = heads // groups

    # The queries of a group form one axis: one product per head of keys, without copies
    # of the keys.
    rows = jnp.swapaxes(queries, -2, -3).reshape(*batch, groups, shared * count, size)
    columns = keys.mT
    scores = jnp.matmul(rows, columns, preferred_element_type=wide)
    scores = scores * (1.0 / math.sqrt(size))
    scores = scores.reshape(*batch, groups, shared, count, -1)

    # finfo.min, not -inf: a query without keys stays finite
    seen = mask[..., None, None, :, :]
    weights = jax.nn.softmax(jnp.where(seen, scores, jnp.finfo(wide).min))

    weights = weights.astype(values.dtype).reshape(*rows.shape[:-1], -1)
    mixed = jnp.matmul(weights, values).reshape(*batch, heads, count, size)
    return jnp.swapaxes(mixed, -2, -3).reshape(*batch, count, heads * size)


def feed_forward(
    config: DecoderConfig,
    layer: Layer,
    y: Float[Array, "*batch n d"],
    attended: Float[Array, "*batch n width"],
    drop: Drop = keep,
) -> Float[Array, "*batch n d"]:
    """Returns a layer's output: input plus attention plus SwiGLU.

    SwiGLU is Shazeer, "GLU variants improve transformer" (2020), eq. 6.
    """
    y = y + drop(0, dense(attended, layer["output"]))
    normed = rms_norm(y, layer["feedforward_norm"]["scale"], config.norm_epsilon)
    gate, up = (dense(normed, layer[name]) for name in ("gate", "up"))
    return y + drop(1, dense(jax.nn.silu(gate) * up, layer["down"]))


def dense(y: Float[Array, "*batch n d"], part: Any) -> Float[Array, "*batch n k"]:
    """Returns ``y @ kernel`` plus the part's bias and low-rank change.

    The change is ``y @ compress @ expand``, in the dtype of y.
    """
    product = linear(y, part["kernel"].astype(y.dtype))
    if "bias" in part:
        product = product + part["bias"].astype(product.dtype)
    if "compress" in part:
        narrow = linear(y, part["compress"].astype(y.dtype))
        product = product + linear(narrow, part["expand"].astype(y.dtype))
    return product


def causal_mask(segments: Int[Array, "*batch n"]) -> Bool[Array, "*batch n n"]:
    """Returns the mask of the tokens that each token sees.

    These are itself and those before it in its segment.
    """
    count = segments.shape[-1]
    before = jnp.tril(jnp.ones((count, count), bool))
    return before & (segments[..., :, None] == segments[..., None, :])


def segment_positions(segments: Int[Array, "*batch n"]) -> Int[Array, "*batch n"]:
    """Returns the position of each token in its segment, from 0.

    A segment is a run of equal numbers.
    """
    places = jnp.arange(segments.shape[-1], dtype=jnp.int32)
    places = jnp.broadcast_to(places, segments.shape)
    first = jnp.ones_like(segments[..., :1], bool)
    changes = segments[..., 1:] != segments[..., :-1]
    is_start = jnp.concatenate([first, changes], axis=-1)

    # The place of the last start up to each token.
    starts = jnp.where(is_start, places, 0)
    last_start = jax.lax.cummax(starts, axis=segments.ndim - 1)
    return places - last_start
