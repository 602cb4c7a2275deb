"""A transformer that applies one block of layers again and again, with the number of loops an argument of the call."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, check, check_fields, one_of
from unroll_jax.arrays import check_shape
from unroll_jax.looped import Loops, run_loops
from unroll_jax.models.encoder_parts import check_inputs
from unroll_jax.models.language.decoder_parts import (
    DecoderConfig,
    causal_mask,
    decoder_layer,
    new_layers,
    rms_norm,
    rotation,
)
from unroll_jax.numerics import linear
from unroll_jax.unrolling import unroll

__all__ = ["STARTS", "LoopedTransformer"]

#: States before the first loop of `LoopedTransformer`: zeros, the input e, or noise.
STARTS = ("zeros", "prelude", "noise")

_INITIAL = nn.initializers.normal(0.02)


class LoopedTransformer(nn.Module):
    r"""Embeddings and a prelude, a tied block that sees the prelude's output at every loop, and one readout for all.

    .. math:: e = \text{Norm}(P(\text{tokens})) , \quad h_{l+1} = \text{Norm}(B(A [h_l, e])) , \quad z_l = Q\, h_l ,

    where P and B are layers of Llama (`Decoder`), A is a product without bias from 2 d to d coordinates, and Norm an
    RMS norm: input and state keep one size for any number of loops. The parameters are ``embedding``, ``prelude`` and
    ``layers`` (stacked layers), ``injection.kernel`` (2 dim, dim), ``norm.scale``, and ``head.embedding``
    (vocabulary_size, dim) unless the configuration ties it.

    Attributes:
      config: shape of the layers; its ``num_layers`` is the number of layers in the block.
      prelude_layers: layers before the loops; 0 injects the embeddings.
      causal: whether a token sees only itself and those before it, as a decoder's; else all of its segment.
      start: one of `STARTS`.
      dtype: dtype to compute in; None computes in that of the parameters. Softmax and norms take float32 at least.
      param_dtype: dtype of the parameters.
      remat: recompute each loop in the backward pass, see `unroll_jax.looped.run_loops`.

    Source: Geiping et al., "Scaling up test-time compute with latent reasoning: a recurrent depth approach" (2025),
    Section 3, without a coda and with one norm a loop where theirs has norms before and behind each part.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> config = DecoderConfig(50, dim=8, num_layers=1, num_heads=2, num_key_value_heads=1, hidden_dim=16)
      >>> model, tokens = LoopedTransformer(config), jnp.array([[5, 6, 7], [8, 9, 3]])
      >>> variables = model.init(jax.random.key(0), tokens, loops=1)
      >>> first = model.apply(variables, tokens, loops=4)
      >>> further = model.apply(variables, tokens, loops=2, state=first.state)  # loops 5 and 6
      >>> first.records.shape, bool((further.records[0] == first.records[-1]).all())
      ((5, 2, 3, 50), True)
    """

    config: DecoderConfig
    prelude_layers: int = 1
    causal: bool = True
    start: str = "prelude"
    dtype: Any = None
    param_dtype: Any = jnp.float32
    remat: bool | Callable[..., Any] = False

    @nn.compact
    def __call__(
        self,
        tokens: jax.Array,
        *,
        loops: Any,
        segments: jax.Array | None = None,
        state: jax.Array | None = None,
        key: jax.Array | None = None,
        record: Callable[[jax.Array, jax.Array], Any] | None = None,
        **options: Any,
    ) -> Loops:
        """Runs loops.

        Args:
          tokens: numbers of tokens, int (*batch, n).
          loops: how many, see `run_loops`.
          segments: the text of each token, int (*batch, n): a token sees only those with its number. None is one text.
          state: h before the first loop, (*batch, n, dim), such as that of an earlier call; None is by ``start``.
          key: of the noise, if ``start`` is "noise" and no state is given.
          record: ``(logits, h) -> pytree``, evaluated inside the scan on every loop's readout, (*batch, n,
            vocabulary_size), and state; None keeps the logits. Logits are float32 at least.
          **options: ``free``, ``most``, ``gradient`` and others of `run_loops`.

        Returns:
          A `Loops`; its records are those of the readout before the first loop and after each.

        Raises:
          ValueError: if a shape does not fit, a number is out of range, or noise has no key.
          TypeError: if tokens are not integers.
        """
        config = self.config
        check_inputs(tokens, None, None, None, dim=config.dim, max_positions=config.max_positions)
        check_fields(self, at_least(0), "prelude_layers")
        check("start", self.start, one_of(STARTS))
        params = self._params()
        compute = jnp.dtype(self.param_dtype if self.dtype is None else self.dtype)
        segments = jnp.zeros(tokens.shape, jnp.int32) if segments is None else segments
        check_shape("segments", segments, tokens.shape, ", as tokens have")
        places = jnp.broadcast_to(jnp.arange(tokens.shape[-1], dtype=jnp.int32), tokens.shape)
        same = segments[..., :, None] == segments[..., None, :]
        seen = (rotation(config, places, compute), causal_mask(segments) if self.causal else same)

        def layer(layer: Any, y: jax.Array, seen: Any) -> jax.Array:
            return decoder_layer(config, layer, y, *seen)

        def block(params: Any, h: jax.Array, injected: Any) -> jax.Array:
            e, seen = injected
            mixed = linear(jnp.concatenate([h, e], axis=-1), params["injection"]["kernel"].astype(compute))
            y, _ = unroll(layer, params["layers"], mixed, seen, num_layers=config.num_layers, tied=False, record=None)
            return rms_norm(y, params["norm"]["scale"], config.norm_epsilon)

        params = jax.tree.map(lambda leaf: leaf.astype(compute), params)
        e = params["embedding"][tokens]
        if self.prelude_layers:
            e, _ = unroll(layer, params["prelude"], e, seen, num_layers=self.prelude_layers, tied=False, record=None)
        e = rms_norm(e, jnp.ones(config.dim, compute), config.norm_epsilon)
        state = self._first(e, key) if state is None else state.astype(compute)
        check_shape("state", state, e.shape, ", of tokens and dim")
        head = params.get("head", params)["embedding"]

        def measure(h: Float[Array, "*batch n d"]) -> Any:
            logits = jnp.matmul(h, head.T, preferred_element_type=jnp.promote_types(compute, jnp.float32))
            return logits if record is None else record(logits, h)

        return run_loops(block, params, state, (e, seen), loops=loops, record=measure, remat=self.remat, **options)

    def _first(self, e: jax.Array, key: jax.Array | None) -> jax.Array:
        if self.start == "prelude":
            return e
        if self.start == "zeros":
            return jnp.zeros_like(e)
        if key is None:
            raise ValueError('key must be a random key with start="noise", got None; pass one, or a state')
        return jax.random.normal(key, e.shape, e.dtype)

    def _params(self) -> dict[str, Any]:
        config, dtype = self.config, self.param_dtype
        table, square = (config.vocabulary_size, config.dim), (2 * config.dim, config.dim)
        params: dict[str, Any] = {
            "embedding": self.param("embedding", _INITIAL, table, dtype),
            "layers": self.param("layers", new_layers, config, _INITIAL, dtype),
            "injection": self.param("injection", lambda key: {"kernel": _halves(key, square, dtype)}),
            "norm": self.param("norm", lambda key: {"scale": jnp.ones(config.dim, dtype)}),
        }
        if self.prelude_layers:
            before = dataclasses.replace(config, num_layers=self.prelude_layers)
            params["prelude"] = self.param("prelude", new_layers, before, _INITIAL, dtype)
        if not config.tied:
            params["head"] = self.param("head", lambda key: {"embedding": _INITIAL(key, table, dtype)})
        return params


def _halves(key: jax.Array, shape: tuple[int, int], dtype: Any) -> jax.Array:
    """The kernel of the injection: products with numbers of variance 1 / (2 d) keep the size of state and input."""
    return jax.random.normal(key, shape, dtype) / math.sqrt(shape[0])
