"""The decoder of Llama and its family, with one head that reads every layer."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arrays import check_dtype, check_shape
from unroll_jax.models.dropout import dropout, layer_keys
from unroll_jax.models.encoder_parts import as_numbers, check_inputs
from unroll_jax.models.language.decoder_parts import (
    DecoderConfig,
    causal_mask,
    decoder_layer,
    embed,
    new_layers,
    rms_norm,
    rotation,
    segment_positions,
)
from unroll_jax.models.language.low_rank import with_changes
from unroll_jax.models.layered import LayeredModel, Record, record_in
from unroll_jax.numerics import compute_dtype
from unroll_jax.perturbations import Perturbation

__all__ = ["Decoder", "decoder_logits", "decoder_readout", "head_products"]

# Llama's initial weights: normal numbers of this standard deviation.
_INITIAL = nn.initializers.normal(0.02)


class Decoder(LayeredModel):
    """A decoder of Llama's family, by its `DecoderConfig`.

    All layers run in one scan over stacked parameters. The parameters are ``embedding``
    (vocabulary_size, dim), ``layers`` (`layer_shapes` with a leading axis of length L),
    ``norm.scale`` (dim,) and, unless the head is tied, ``head.embedding``
    (vocabulary_size, dim). Layers leave out norm and head: see `decoder_logits`.

    Attributes:
      config: the decoder's shape.
      dtype: dtype the layers compute in. None takes the parameters'. Softmax, norms and
        rotations: float32 or wider.
      dropout: as in `Encoder`. `decode` and `generate` drop nothing.
      param_dtype, remat, unroll: as in `UnrolledTransformer`.

    Source: Touvron et al. (2023), "Llama 2", Grattafiori et al. (2024), "The Llama 3
    herd of models".

    Example:
      >>> import jax, jax.numpy as jnp
      >>> sizes = {"dim": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 16}
      >>> model = Decoder(DecoderConfig(100, num_key_value_heads=2, **sizes))
      >>> tokens = jnp.array([[5, 6, 7], [8, 9, 3]])
      >>> params = jax.jit(model.init)(jax.random.key(0), tokens)
      >>> states = jax.jit(model.apply)(params, tokens)
      >>> states.shape, decoder_logits(model.config, params["params"], states).shape
      ((3, 2, 3, 8), (3, 2, 3, 100))
    """

    config: DecoderConfig
    dtype: Any = None
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self,
        tokens: jax.Array,
        *,
        segments: jax.Array | None = None,
        positions: jax.Array | None = None,
        perturbation: jax.Array | None = None,
        record: Record | None = None,
        perturb: Perturbation | None = None,
        changes: Any = None,
        dropout_key: jax.Array | None = None,
    ) -> Any:
        """Runs all layers.

        Args:
          tokens: numbers of tokens, int (*batch, n).
          segments: which text each token is of, int (*batch, n), where several are
            packed into one row: a token sees those before it with its number. None
            means one text per row. Padding is one more text.
          positions: place of each token in its text, int (*batch, n). None counts along
            each run of equal segments.
          perturbation: added to the word embeddings, (*batch, n, dim). None adds
            nothing.
          record: ``y -> pytree``, inside the scan, of every layer's output in float32
            or wider. None keeps outputs.
          perturb: replaces each layer's output, see `unroll_jax.unroll`.
          changes: low-rank changes of kernels, see `low_rank_changes`. None changes
            nothing.
          dropout_key: as in `Encoder`.

        Returns:
          The outputs of layers 0..L, (L + 1, *batch, n, dim), or what ``record``
          returned, stacked likewise. Layer 0 is the word embeddings. None of them is
          normalised, see `decoder_logits`.
        """
        config = self.config
        check_inputs(
            tokens,
            None,
            None,
            perturbation,
            dim=config.dim,
            max_positions=config.max_positions,
        )
        for name, places in (("segments", segments), ("positions", positions)):
            check_dtype(name, places, jnp.integer)
            check_shape(name, places, tokens.shape, ", as tokens have")
        tokens = as_numbers(tokens)
        table, layers = self._params()
        if changes is not None:
            layers = with_changes(layers, changes)
        compute = jnp.dtype(self.param_dtype if self.dtype is None else self.dtype)
        if segments is None:
            segments = jnp.zeros(tokens.shape, jnp.int32)
        segments = jnp.asarray(segments, jnp.int32)
        if positions is None:
            positions = segment_positions(segments)
        positions = jnp.asarray(positions, jnp.int32)
        angles = rotation(config, positions, compute)

        keys = layer_keys(
            dropout_key, self.dropout, config.num_layers, tokens.shape[:-1]
        )

        def step(each: Any, y: jax.Array, x: Any) -> jax.Array:
            layer, key = each
            angles, mask = x
            cast = jax.tree.map(lambda leaf: leaf.astype(compute), layer)
            drop = dropout(key, self.dropout, y.shape)
            return decoder_layer(config, cast, y, angles, mask, drop)

        start = embed(table, tokens).astype(compute)
        if perturbation is not None:
            start = start + perturbation.astype(compute)
        return self.run_layers(
            step,
            (layers, keys),
            start,
            (angles, causal_mask(segments)),
            num_layers=config.num_layers,
            record=record_in(compute_dtype(compute), record),
            perturb=perturb,
        )

    def _params(self) -> tuple[jax.Array, Any]:
        config, dtype = self.config, self.param_dtype
        shape = (config.vocabulary_size, config.dim)
        table = self.param("embedding", _INITIAL, shape, dtype)
        layers = self.param("layers", new_layers, config, _INITIAL, dtype)
        self.param("norm", lambda key: {"scale": jnp.ones(config.dim, dtype)})
        if not config.tied:
            self.param("head", lambda key: {"embedding": _INITIAL(key, shape, dtype)})
        return table, layers


def decoder_readout(params: Any) -> tuple[jax.Array, jax.Array]:
    """Returns the readout of every layer: the scale of the norm, and the head.

    Their shapes are (dim,) and (vocabulary_size, dim).

    Args:
      params: of a `Decoder`, without the outer key ``params``. A head that is tied is
        the table of embeddings.

    Example:
      >>> import jax.numpy as jnp
      >>> scale, head = decoder_readout(
      ...     {"embedding": jnp.zeros((5, 2)), "norm": {"scale": jnp.ones(2)}}
      ... )
      >>> scale.shape, head.shape
      ((2,), (5, 2))
    """
    head = params.get("head", params)
    return params["norm"]["scale"], head["embedding"]


def decoder_logits(
    config: DecoderConfig,
    params: Any,
    y: Float[Array, "*batch d"],
    *,
    dtype: Any = None,
) -> Float[Array, "*batch vocabulary"]:
    """Logits of the next token, read out of any layer's output: norm, then head.

    For losses of training see `unroll_jax.constrained.chunked_cross_entropy`, which
    never holds them all.

    Args:
      config, params: of a `Decoder`, without the outer key ``params``.
      y: outputs of any layers.
      dtype: of the product's factors. None is y's. The logits are float32 or wider.

    Example:
      >>> import jax.numpy as jnp
      >>> config = DecoderConfig(
      ...     2, dim=2, num_layers=1, num_heads=1, num_key_value_heads=1, hidden_dim=2
      ... )
      >>> params = {
      ...     "embedding": jnp.array([[1.0, 2.0], [3.0, 4.0]]),
      ...     "norm": {"scale": jnp.ones(2)},
      ... }
      >>> logits = decoder_logits(config, params, jnp.array([5.0, 5.0]))  # normed: 1, 1
      >>> [round(value, 3) for value in logits.tolist()]
      [3.0, 7.0]
    """
    scale, head = decoder_readout(params)
    normed = rms_norm(y, scale, config.norm_epsilon)
    return head_products(normed, head, normed.dtype if dtype is None else dtype)


def head_products(
    y: Float[Array, "*batch d"], rows: Float[Array, "k d"], dtype: Any
) -> Float[Array, "*batch k"]:
    """Returns products of normalised outputs with rows of a head.

    Factors are in ``dtype``, the products in float32 or wider.
    """
    y = y.astype(dtype)
    rows = rows.astype(dtype)
    tokens = y.size // y.shape[-1]
    # On CPUs XLA is slow at one row times a transpose.
    if tokens == 1:
        wide = compute_dtype(y)
        product = jnp.matmul(rows, y.reshape(-1), preferred_element_type=wide)
        return product.reshape(*y.shape[:-1], -1)
    # For two rows the other order is twice as fast there.
    if tokens == 2:
        return jax.lax.platform_dependent(
            y, rows, cpu=_rows_first, default=_tokens_first
        )
    return _tokens_first(y, rows)


def _tokens_first(y: Array, rows: Array) -> Array:
    return jnp.matmul(y, rows.T, preferred_element_type=compute_dtype(y))


def _rows_first(y: Array, rows: Array) -> Array:
    wide = compute_dtype(y)
    columns = jnp.matmul(rows, y.reshape(2, -1).T, preferred_element_type=wide)
    # The barrier keeps XLA from exchanging the factors.
    return jax.lax.optimization_barrier(columns).T.reshape(*y.shape[:-1], -1)
