"""A plain transformer, encoder or decoder, with one readout for all layers."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.nn.initializers import lecun_normal, normal
from jaxtyping import Array, Float, Int

from unroll_jax.models import rms_norm
from unroll_jax.models.language.rotary import (
    rotary_angles,
    rotary_frequencies,
    rotate,
)

__all__ = ["LanguageModel", "Read", "Sample", "cross_entropy", "matmul_flops_a_token"]

EPSILON = 1e-6  # of norms
# (readout's parameters, states of any number of layers) -> the loss of each.
Read = Callable[
    [dict[str, Array], Float[Array, "*layers batch n d"]], Float[Array, "*layers"]
]
Sample = Callable[[Float[Array, "batch n d"]], Float[Array, "batch few d"]]


class LanguageModel(nn.Module):
    """Grouped-query attention with rotary positions and gated SiLU, in one `nn.scan`.

    Attributes:
      vocabulary: number of tokens.
      classes: columns of the readout, ``vocabulary`` for a decoder.
      dim: width d.
      num_layers: depth L.
      heads: of queries.
      kv_heads: of keys and values, a divisor of ``heads``.
      hidden: width inside the gated layer.
      causal: True if a position sees only earlier ones.
      dtype: of the computation; parameters stay float32.
      remat: recompute each layer in the backward pass.
      attention: as ``implementation`` of `jax.nn.dot_product_attention`.
      arrive: applied to the parameters of a layer before it runs, inside the scan and
        the recomputation, to gather sharded ones; None keeps them as they are.
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
        """The loss of the last layer, and the losses of layers 0..L or None.

        Layer 0 is the embedding.

        Args:
          tokens: (batch, n).
          read: the loss of the last layer.
          every: the loss of any layer, computed inside the scan and again in the
            backward pass, which keeps only the layer's state. None reads only the
            last layer.
          sample: the part of a state that ``every`` reads. It is kept for all layers
            and read after the scan, which pays the overhead of the readout once.
        """
        embedding = self.param("embedding", normal(0.02), (self.vocabulary, self.dim))
        readout = self.param("readout", _init_readout, self.dim, self.classes)
        readout = jax.tree.map(lambda weight: weight.astype(self.dtype), readout)
        start = embedding.astype(self.dtype)[tokens]
        y, before = self._scan(start, _at_every_layer(readout, every, sample))
        last = read(readout, y)
        if every is None:
            return last, None
        if sample is not None:
            return last, every(readout, jnp.concatenate([before, sample(y)[None]]))
        # the last layer is not read twice
        last_of_all = last if every is read else every(readout, y)
        return last, jnp.append(before, last_of_all)

    def _scan(
        self, y: Array, record: Callable[[Array], Array | None]
    ) -> tuple[Array, Any]:
        kind: Any = _Layers
        if self.arrive is not None:
            kind = nn.map_variables(_Layers, "params", self.arrive, init=False)
        layers = kind(
            **{name: getattr(self, name) for name in _Layers.shared}, name="layers"
        )

        def body(
            layers: nn.Module, state: Array, _: None
        ) -> tuple[Array, Array | None]:
            return layers(state), record(state)  # pyright: ignore[reportCallIssue] (Flax types loosely)

        if self.remat:
            body = nn.remat(body, prevent_cse=False)
        scan = nn.scan(
            body,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=self.num_layers,
        )
        return scan(layers, y, None)


class _Layers(nn.Module):
    """One layer. Its parameters get a leading axis from the scan."""

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
        ones = nn.initializers.ones
        x = rms_norm(y, self.param("attention_scale", ones, (self.dim,)), EPSILON)
        query = _rotated(self._product("query", x, self.heads * width), self.heads)
        key = _rotated(self._product("key", x, self.kv_heads * width), self.kv_heads)
        value = self._product("value", x, self.kv_heads * width).reshape(key.shape)
        seen = jax.nn.dot_product_attention(
            query, key, value, is_causal=self.causal, implementation=self.attention
        )
        y = y + self._product("output", seen.reshape(y.shape), self.dim)
        x = rms_norm(y, self.param("gated_scale", ones, (self.dim,)), EPSILON)
        gate = jax.nn.silu(self._product("gate", x, self.hidden))
        gated = gate * self._product("up", x, self.hidden)
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
    """Mean cross entropy in nats of each layer's readout.

    Logits are computed for ``chunk`` positions at a time, and again in the backward
    pass: no more are in memory at once.
    """
    parts = labels.shape[1] // chunk
    states = jnp.moveaxis(y.reshape(*y.shape[:-2], parts, chunk, y.shape[-1]), -3, 0)
    targets = jnp.moveaxis(labels.reshape(-1, parts, chunk), 1, 0)

    def add(total: Array, part: tuple[Array, Array]) -> tuple[Array, None]:
        state, target = part
        logits = rms_norm(state, readout["scale"], EPSILON) @ readout["kernel"]
        logits = logits.astype(jnp.float32)
        target = jnp.broadcast_to(target, logits.shape[:-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, target)
        return total + jnp.sum(losses, axis=(-2, -1)), None

    add = jax.checkpoint(add, prevent_cse=False)
    total, _ = jax.lax.scan(add, jnp.zeros(y.shape[:-3]), (states, targets))
    return total / labels.size


def matmul_flops_a_token(model: LanguageModel, n: int) -> tuple[float, float]:
    """Operations of the matrix products of a forward pass, for one token.

    Attention is counted over all n positions, as CPUs compute it, causal or not.

    Returns:
      ``(all layers, one readout)``.
    """
    dim = model.dim
    narrow = dim * model.kv_heads // model.heads
    weights = dim * (2 * dim + 2 * narrow + 3 * model.hidden)
    layers = model.num_layers * (2.0 * weights + 4.0 * n * dim)
    return layers, 2.0 * dim * model.classes


def _init_readout(key: Array, dim: int, classes: int) -> dict[str, Array]:
    return {"scale": jnp.ones(dim), "kernel": lecun_normal()(key, (dim, classes))}


def _at_every_layer(
    readout: Any, every: Read | None, sample: Sample | None
) -> Callable[[Array], Array | None]:
    """What the scan records of a state: nothing, the part to be read, or its loss."""
    if every is None:
        return lambda state: None
    if sample is not None:
        return sample
    return jax.checkpoint(lambda state: every(readout, state), prevent_cse=False)


def _rotated(
    x: Float[Array, "batch n columns"], heads: int
) -> Float[Array, "batch n heads width"]:
    """Split into heads, rotated by angles that grow with the position (base 10,000)."""
    x = x.reshape(*x.shape[:2], heads, -1)
    positions = jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape[:2])
    frequencies = rotary_frequencies(x.shape[-1], 10_000.0)
    return rotate(x, rotary_angles(positions, frequencies, jnp.dtype("float32")))
