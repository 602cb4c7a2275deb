"""A plain transformer to be measured, encoder or decoder, whose every layer can be
read through one readout."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.nn.initializers import lecun_normal, normal
from jaxtyping import Array, Float, Int

__all__ = ["LanguageModel", "Read", "Sample", "cross_entropy", "matmul_flops_a_token"]

# (readout's parameters, states of any number of layers) -> the loss of each.
Read = Callable[
    [dict[str, Array], Float[Array, "*layers batch n d"]], Float[Array, "*layers"]
]
Sample = Callable[[Float[Array, "batch n d"]], Float[Array, "batch few d"]]


class LanguageModel(nn.Module):
    """Layers of grouped-query attention with rotary positions and of gated SiLU, one
    `nn.scan` over all of them.

    Attributes:
      vocabulary: how many tokens there are.
      classes: columns of the readout; the vocabulary's size for a decoder.
      dim: width d.
      num_layers: depth L.
      heads: of queries.
      kv_heads: of keys and values, a divisor of ``heads``.
      hidden: width inside the gated layer.
      causal: True if a position sees only earlier ones.
      dtype: what layers compute in; parameters stay float32.
      remat: recompute each layer in the backward pass.
      attention: as ``implementation`` of `jax.nn.dot_product_attention`.
      arrive: applied to the parameters of a layer before it runs, inside the scan and
        the recomputation, if they live elsewhere; None keeps them as they are.
    """

    vocabulary: int
    classes: int
    dim: int
    num_layers: int
    heads: int
    kv_heads: int
    hidden: int
    causal: bool = True
    dtype: Any = jnp.float32
    remat: bool = False
    attention: Any = None
    arrive: Callable[[Any], Any] | None = None

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "batch n"],
        read: Read,
        *,
        every: Read | None = None,
        sample: Sample | None = None,
    ) -> tuple[Float[Array, ""], Float[Array, "layers_and_one"] | None]:
        """The loss of the last layer, and the losses of layers 0..L, the embedding's
        first.

        Args:
          tokens: (batch, n).
          read: the loss of the last layer.
          every: the loss of any layer, computed inside the scan and backward computed
            again; of a layer only its state is kept; None reads no layer but the last.
          sample: the part of a state that ``every`` reads. It is kept for all layers
            and read behind the scan, which pays the overhead of the readout once.
        """
        embedding = self.param("embedding", normal(0.02), (self.vocabulary, self.dim))
        readout = self.param("readout", _init_readout, self.dim, self.classes)
        readout = jax.tree.map(lambda weight: weight.astype(self.dtype), readout)
        y, before = self._scan(
            embedding.astype(self.dtype)[tokens],
            _at_every_layer(readout, every, sample),
        )
        last = read(readout, y)
        if every is None:
            return last, None
        if sample is None:
            return last, jnp.append(
                before, last if every is read else every(readout, y)
            )
        return last, every(readout, jnp.concatenate([before, sample(y)[None]]))

    def _scan(
        self, y: Array, record: Callable[[Array], Array | None]
    ) -> tuple[Array, Any]:
        arrived = (
            _Layers
            if self.arrive is None
            else nn.map_variables(_Layers, "params", self.arrive, init=False)
        )
        layers = arrived(
            **{name: getattr(self, name) for name in _Layers.shared}, name="layers"
        )

        def body(
            layers: nn.Module, state: Array, _: None
        ) -> tuple[Array, Array | None]:
            return layers(state), record(state)  # pyright: ignore[reportCallIssue] (Flax types loosely)

        body = nn.remat(body, prevent_cse=False) if self.remat else body
        scan = nn.scan(
            body,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=self.num_layers,
        )
        return scan(layers, y, None)


class _Layers(nn.Module):
    """One layer; its parameters get a leading axis from the scan."""

    shared = ("dim", "heads", "kv_heads", "hidden", "causal", "dtype", "attention")

    dim: int
    heads: int
    kv_heads: int
    hidden: int
    causal: bool
    dtype: Any
    attention: Any

    @nn.compact
    def __call__(self, y: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        width = self.dim // self.heads
        x = _normalised(
            self.param("attention_scale", nn.initializers.ones, (self.dim,)), y
        )
        query = _rotated(self._product("query", x, self.heads * width), self.heads)
        key = _rotated(self._product("key", x, self.kv_heads * width), self.kv_heads)
        value = self._product("value", x, self.kv_heads * width).reshape(key.shape)
        seen = jax.nn.dot_product_attention(
            query, key, value, is_causal=self.causal, implementation=self.attention
        )
        y = y + self._product("output", seen.reshape(y.shape), self.dim)
        x = _normalised(self.param("gated_scale", nn.initializers.ones, (self.dim,)), y)
        gated = jax.nn.silu(self._product("gate", x, self.hidden)) * self._product(
            "up", x, self.hidden
        )
        return y + self._product("down", gated, self.dim)

    def _product(self, name: str, x: Array, columns: int) -> Array:
        weight = self.param(name, lecun_normal(), (x.shape[-1], columns))
        return x @ weight.astype(self.dtype)


def cross_entropy(
    readout: dict[str, Array],
    y: Float[Array, "*layers batch n d"],
    labels: Int[Array, "batch n"],
    *,
    chunk: int,
) -> Float[Array, "*layers"]:
    """Mean cross entropy in nats of each layer's readout, ``chunk`` positions at a
    time: no more logits live at once.

    Backward they are computed again, chunk by chunk.
    """
    parts = labels.shape[1] // chunk
    states = jnp.moveaxis(y.reshape(*y.shape[:-2], parts, chunk, y.shape[-1]), -3, 0)
    targets = jnp.moveaxis(labels.reshape(-1, parts, chunk), 1, 0)

    def add(total: Array, part: tuple[Array, Array]) -> tuple[Array, None]:
        state, target = part
        logits = (_normalised(readout["scale"], state) @ readout["kernel"]).astype(
            jnp.float32
        )
        target = jnp.broadcast_to(target, logits.shape[:-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, target)
        return total + jnp.sum(losses, axis=(-2, -1)), None

    start = jnp.zeros(y.shape[:-3])
    total, _ = jax.lax.scan(
        jax.checkpoint(add, prevent_cse=False), start, (states, targets)
    )
    return total / labels.size


def matmul_flops_a_token(model: LanguageModel, n: int) -> tuple[float, float]:
    """Operations of the matrix products of a forward pass, for one token:
    ``(all layers, one readout)``.

    Attention is counted over all n positions, as it is computed on CPUs, causal or not.
    """
    narrow = model.dim * model.kv_heads // model.heads
    weights = (
        2 * model.dim * model.dim
        + 2 * model.dim * narrow
        + 3 * model.dim * model.hidden
    )
    layers = model.num_layers * (2.0 * weights + 4.0 * n * model.dim)
    return layers, 2.0 * model.dim * model.classes


def _init_readout(key: Array, dim: int, classes: int) -> dict[str, Array]:
    return {"scale": jnp.ones(dim), "kernel": lecun_normal()(key, (dim, classes))}


def _at_every_layer(
    readout: Any, every: Read | None, sample: Sample | None
) -> Callable[[Array], Array | None]:
    """Returns the record of a state by the scan: nothing, the part to be read later,
    or its loss."""
    if every is None:
        return lambda state: None
    return sample or jax.checkpoint(
        lambda state: every(readout, state), prevent_cse=False
    )


def _normalised(scale: Array, y: Array) -> Array:
    """Over the root of the mean square, taken in float32."""
    wide = y.astype(jnp.float32)
    return (
        wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6) * scale
    ).astype(y.dtype)


def _rotated(
    x: Float[Array, "batch n columns"], heads: int
) -> Float[Array, "batch n heads width"]:
    """Split into heads, each turned by angles that grow with the position (base
    10,000)."""
    x = x.reshape(*x.shape[:2], heads, -1)
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 10_000.0 ** (-jnp.arange(half) / half)
    cosine, sine = (
        turn(angles)[:, None].astype(x.dtype) for turn in (jnp.cos, jnp.sin)
    )
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate(
        [first * cosine - second * sine, first * sine + second * cosine], -1
    )
