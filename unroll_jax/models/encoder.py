"""The encoder of BERT and its descendants, whose every layer can be read out."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from unroll_jax.models.dropout import dropout, layer_keys
from unroll_jax.models.encoder_layer import EncoderLayer, stacked_layers
from unroll_jax.models.encoder_parts import (
    EncoderConfig,
    EncoderEmbeddings,
    as_numbers,
    check_inputs,
)
from unroll_jax.models.layered import LayeredModel, Record, record_in
from unroll_jax.numerics import compute_dtype

__all__ = ["Encoder"]


class Encoder(LayeredModel):
    """BERT, DistilBERT, RoBERTa or MiniLM, by its `EncoderConfig`.

    All layers run in one scan over stacked parameters: ``embeddings`` of
    `EncoderEmbeddings`, and ``layers`` of `EncoderLayer` with a leading axis of length
    L. Masked tokens do not affect others: a batch that is padded, on either side, gives
    real tokens the outputs they have without padding.

    Attributes:
      config: the encoder's shape.
      dtype: dtype the layers compute in. None takes the parameters'.
      dropout: probability of dropping a value of a layer's parts in calls with a
        ``dropout_key``, in [0, 1).
      param_dtype, remat, unroll: as in `UnrolledTransformer`.

    Source: BERT, Devlin et al. 2019; DistilBERT, Sanh et al. 2019; RoBERTa, Liu et al.
    2019; MiniLM, Wang et al. 2020.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> config = EncoderConfig(100, dim=8, num_layers=2, num_heads=2, hidden_dim=16)
      >>> model = Encoder(config)
      >>> tokens = jnp.array([[5, 6, 7], [8, 9, 0]])  # 0 is padding
      >>> params = jax.jit(model.init)(jax.random.key(0), tokens)
      >>> jax.jit(model.apply)(params, tokens).shape
      (3, 2, 3, 8)
    """

    config: EncoderConfig
    dtype: Any = None
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self,
        tokens: jax.Array,
        mask: jax.Array | None = None,
        *,
        token_types: jax.Array | None = None,
        perturbation: jax.Array | None = None,
        record: Record | None = None,
        dropout_key: jax.Array | None = None,
    ) -> Any:
        """Runs all layers.

        Args:
          tokens: numbers of tokens, int (*batch, n).
          mask: which of them are real, bool (*batch, n). None takes all for real but
            ``config.padding_token``.
          token_types: kind of each token, int (*batch, n). None is kind 0.
          perturbation: added to the word embeddings of real tokens, (*batch, n, dim).
            None adds nothing.
          record: ``y -> pytree``, inside the scan, of every layer's output in float32
            or wider. None keeps outputs.
          dropout_key: of the dropout in training, or one key for each row of the batch.
            None drops nothing.

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
        tokens = as_numbers(tokens)
        mask = real_tokens(tokens, mask, config)
        if token_types is None:
            token_types = jnp.zeros_like(tokens)
        token_types = as_numbers(token_types)
        dtype = jnp.dtype(self.param_dtype if self.dtype is None else self.dtype)

        embeddings = EncoderEmbeddings(config, self.param_dtype, name="embeddings")
        start = embeddings(tokens, mask, token_types, perturbation).astype(dtype)
        layer = EncoderLayer(config, dtype, self.param_dtype, parent=None)
        init = stacked_layers(layer, config.num_layers)
        layers = self.param("layers", init, start[..., :1, :], None)

        keys = layer_keys(
            dropout_key, self.dropout, config.num_layers, start.shape[:-2]
        )

        def step(each: Any, y: jax.Array, mask: jax.Array) -> jax.Array:
            params, key = each
            drop = dropout(key, self.dropout, y.shape)
            return jnp.asarray(layer.apply({"params": params}, y, mask, drop))

        return self.run_layers(
            step,
            (layers, keys),
            start,
            mask,
            num_layers=config.num_layers,
            record=record_in(compute_dtype(dtype), record),
        )


def real_tokens(
    tokens: jax.Array, mask: jax.Array | None, config: EncoderConfig
) -> jax.Array:
    """Returns the mask. None marks all tokens but ``config.padding_token``."""
    return as_numbers(tokens) != config.padding_token if mask is None else mask
