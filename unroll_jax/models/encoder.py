"""The encoder of BERT and its descendants, whose every layer can be read out."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from unroll_jax.models.encoder_layer import EncoderLayer
from unroll_jax.models.encoder_parts import EncoderConfig, EncoderEmbeddings, check_inputs
from unroll_jax.unrolling import layers_at_once

__all__ = ["Encoder"]


class Encoder(nn.Module):
    """BERT, DistilBERT, RoBERTa or MiniLM, by its `EncoderConfig`.

    All layers run in one scan over stacked parameters: ``embeddings`` are those of `EncoderEmbeddings`, ``layers`` are
    those of `EncoderLayer` with a leading axis of length L. Masked tokens do not affect others: a batch that is padded,
    on either side, gives real tokens the outputs they have without padding.

    Attributes:
      config: the encoder's shape.
      dtype: dtype the layers compute in; None computes in that of the parameters.
      param_dtype, remat, unroll: as in `UnrolledTransformer`.

    Source: Devlin et al. (2019), BERT; Sanh et al. (2019), DistilBERT; Liu et al. (2019), RoBERTa; Wang et al. (2020),
    MiniLM.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> model = Encoder(EncoderConfig(100, dim=8, num_layers=2, num_heads=2, hidden_dim=16))
      >>> tokens = jnp.array([[5, 6, 7], [8, 9, 0]])  # 0 is padding
      >>> model.apply(model.init(jax.random.key(0), tokens), tokens).shape
      (3, 2, 3, 8)
    """

    config: EncoderConfig
    dtype: Any = None
    param_dtype: Any = jnp.float32
    remat: bool | Callable[..., Any] = False
    unroll: int | None = None

    @nn.compact
    def __call__(
        self,
        tokens: jax.Array,
        mask: jax.Array | None = None,
        *,
        token_types: jax.Array | None = None,
        perturbation: jax.Array | None = None,
        record: Callable[[jax.Array], Any] | None = None,
    ) -> Any:
        """Runs all layers.

        Args:
          tokens: numbers of tokens, int (*batch, n).
          mask: which of them are real, bool (*batch, n); None takes all for real but ``config.padding_token``.
          token_types: kind of each token, int (*batch, n); None is kind 0.
          perturbation: added to the word embeddings of real tokens, (*batch, n, dim); None adds nothing.
          record: ``y -> pytree``, evaluated inside the scan at every layer's output, in float32 or wider; None keeps
            the outputs themselves.

        Returns:
          The outputs of layers 0..L, (L + 1, *batch, n, dim), or what ``record`` returned, stacked likewise. Layer 0 is
          the output of the embeddings. Outputs at masked positions are undefined.

        Raises:
          ValueError: if shapes do not fit each other or the configuration; if ``unroll`` is below 1.
          TypeError: if tokens or token_types are not integers, mask is not boolean, or perturbation is not floating.
        """
        config = self.config
        at_once = layers_at_once(self.unroll, config.num_layers, remat=bool(self.remat))
        check_inputs(tokens, mask, token_types, perturbation, dim=config.dim, max_positions=config.max_positions)
        mask = real_tokens(tokens, mask, self.config)
        token_types = jnp.zeros_like(tokens) if token_types is None else token_types
        dtype = jnp.dtype(self.param_dtype if self.dtype is None else self.dtype)
        output = jnp.promote_types(dtype, jnp.float32)

        def read(y: jax.Array) -> Any:
            return y.astype(output) if record is None else record(y.astype(output))

        def advance(layer: EncoderLayer, y: jax.Array, mask: jax.Array) -> tuple[jax.Array, Any]:
            y = layer(y, mask)
            return y, read(y)

        embeddings = EncoderEmbeddings(self.config, self.param_dtype, name="embeddings")
        start = embeddings(tokens, mask, token_types, perturbation)
        policy = None if isinstance(self.remat, bool) else self.remat
        scan = nn.scan(
            nn.remat(advance, policy=policy, prevent_cse=False) if self.remat else advance,
            {"params": 0},
            split_rngs={"params": True},
            in_axes=nn.broadcast,  # pyright: ignore[reportArgumentType] (Flax's own value for it)
            length=config.num_layers,
            unroll=at_once,
        )
        layers = EncoderLayer(self.config, dtype, self.param_dtype, name="layers")
        _, recorded = scan(layers, start.astype(dtype), mask)

        def join(first: Any, rest: jax.Array) -> jax.Array:
            return jnp.concatenate([jnp.asarray(first)[None], rest])

        return jax.tree.map(join, read(start), recorded)


def real_tokens(tokens: jax.Array, mask: jax.Array | None, config: EncoderConfig) -> jax.Array:
    """The mask, or where it is None that of all tokens but ``config.padding_token``."""
    return tokens != config.padding_token if mask is None else mask
