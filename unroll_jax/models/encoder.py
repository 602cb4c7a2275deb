"""The encoder of BERT and its descendants, whose every layer can be read out."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from unroll_jax.arrays import widen_integers
from unroll_jax.models.encoder_layer import EncoderLayer, stacked_layers
from unroll_jax.models.encoder_parts import (
    EncoderConfig,
    EncoderEmbeddings,
    check_inputs,
)
from unroll_jax.unrolling import unroll

__all__ = ["Encoder"]


class Encoder(nn.Module):
    """BERT, DistilBERT, RoBERTa or MiniLM, by its `EncoderConfig`.

    All layers run in one scan over stacked parameters: ``embeddings`` of
    `EncoderEmbeddings`, and ``layers`` of `EncoderLayer` with a leading axis of length
    L. Masked tokens do not affect others: a batch that is padded, on either side, gives
    real tokens the outputs they have without padding.

    Attributes:
      config: the encoder's shape.
      dtype: dtype the layers compute in; None takes the parameters'.
      param_dtype, remat, unroll: as in `UnrolledTransformer`.

    Source: BERT, Devlin et al. 2019; DistilBERT, Sanh et al. 2019; RoBERTa, Liu et al.
    2019; MiniLM, Wang et al. 2020.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> model = Encoder(
      ...     EncoderConfig(100, dim=8, num_layers=2, num_heads=2, hidden_dim=16)
      ... )
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
          mask: which of them are real, bool (*batch, n); None takes all for real but
            ``config.padding_token``.
          token_types: kind of each token, int (*batch, n); None is kind 0.
          perturbation: added to the word embeddings of real tokens, (*batch, n, dim);
            None adds nothing.
          record: ``y -> pytree``, inside the scan, of every layer's output in float32
            or wider; None keeps outputs.

        Returns:
          The outputs of layers 0..L, (L + 1, *batch, n, dim), or what ``record``
          returned, stacked likewise. Layer 0 is the output of the embeddings. Outputs
          at masked positions are undefined.
        """
        config = self.config
        check_inputs(
            tokens,
            mask,
            token_types,
            perturbation,
            dim=config.dim,
            max_positions=config.max_positions,
        )
        mask = real_tokens(tokens, mask, self.config)
        token_types = jnp.zeros_like(tokens) if token_types is None else token_types
        dtype = jnp.dtype(self.param_dtype if self.dtype is None else self.dtype)
        output = jnp.promote_types(dtype, jnp.float32)

        embeddings = EncoderEmbeddings(config, self.param_dtype, name="embeddings")
        start = embeddings(tokens, mask, token_types, perturbation).astype(dtype)
        layer = EncoderLayer(config, dtype, self.param_dtype, parent=None)
        layers = self.param(
            "layers", stacked_layers(layer, config.num_layers), start[..., :1, :], None
        )

        def step(params: Any, y: jax.Array, mask: jax.Array) -> jax.Array:
            return jnp.asarray(layer.apply({"params": params}, y, mask))

        def measure(_: Any, y: jax.Array, __: Any) -> Any:
            wide = y.astype(output)
            return wide if record is None else record(wide)

        options = {
            "num_layers": config.num_layers,
            "remat": self.remat,
            "unroll": self.unroll,
        }
        return unroll(step, layers, start, mask, tied=False, record=measure, **options)[
            1
        ]


def real_tokens(
    tokens: jax.Array, mask: jax.Array | None, config: EncoderConfig
) -> jax.Array:
    """The mask; None marks all tokens but ``config.padding_token``."""
    if mask is not None:
        return mask
    return widen_integers(tokens) != config.padding_token
