"""A classifier of text with the layers of the unrolled transformer."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from unroll_jax.arguments import at_least, check_fields
from unroll_jax.models.classifier import Head, read_by
from unroll_jax.models.encoder_parts import (
    add_perturbation,
    as_numbers,
    check_inputs,
    real_positions,
)
from unroll_jax.models.layered import Record
from unroll_jax.models.unrolled_transformer import UnrolledTransformer

__all__ = ["TokenEmbeddings", "UnrolledClassifier"]


class TokenEmbeddings(nn.Module):
    """Embeddings of words, and of positions where there are any: the output of layer 0.

    Positions count only real tokens, so padding on either side changes no position.
    The parameters are ``word.embedding`` (vocabulary_size, dim) and
    ``position.embedding`` (max_positions, dim).
    """

    vocabulary_size: int
    dim: int
    max_positions: int | None = None
    frozen: bool = False
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, tokens: jax.Array, mask: jax.Array, perturbation: jax.Array | None = None
    ) -> jax.Array:
        """Embeds tokens.

        ``perturbation`` is added to the embeddings of words, where ``mask`` is True.
        """
        embed = functools.partial(
            nn.Embed, features=self.dim, param_dtype=self.param_dtype
        )
        # Of unit variance: noise is stated relative to an entry's deviation.
        words = embed(
            self.vocabulary_size,
            embedding_init=nn.initializers.normal(1.0),
            name="word",
        )
        total = words(jnp.where(mask, as_numbers(tokens), 0))
        if self.frozen:
            total = jax.lax.stop_gradient(total)
        total = add_perturbation(total, mask, perturbation)
        if self.max_positions is not None:
            places = embed(
                self.max_positions,
                embedding_init=nn.initializers.normal(0.1),
                name="position",
            )
            total = total + places(real_positions(mask))
        return total


class UnrolledClassifier(nn.Module):
    """Word embeddings, an `UnrolledTransformer`, and one `Head` for all layers.

    Called as `Classifier`. Without a mask all tokens are real. Its parts:
    ``embeddings``, ``transformer``, ``head``.

    Attributes:
      transformer, num_classes: the layers, and logits out.
      pooling: of the head: the "mean" of the real tokens, or the "first".
      vocabulary_size, max_positions, frozen: of the `TokenEmbeddings`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> model = UnrolledClassifier(
      ...     UnrolledTransformer(dim=8, num_layers=3),
      ...     vocabulary_size=100,
      ...     num_classes=2,
      ... )
      >>> tokens = jnp.array([[5, 6, 7], [8, 9, 0]])
      >>> variables = jax.jit(model.init)(jax.random.key(0), tokens)
      >>> model.apply(variables, tokens, mask=tokens != 0).shape
      (4, 2, 2)
    """

    transformer: UnrolledTransformer
    vocabulary_size: int
    num_classes: int
    pooling: str = "mean"
    max_positions: int | None = None
    frozen: bool = False

    @nn.compact
    def __call__(
        self,
        tokens: jax.Array,
        mask: jax.Array | None = None,
        *,
        token_types: jax.Array | None = None,
        perturbation: jax.Array | None = None,
        record: Record | None = None,
    ) -> Any:
        """Reads all layers, as `Classifier` does.

        ``token_types`` have no effect: the separator marks the texts of a pair.
        """
        dim, param_dtype = self.transformer.dim, self.transformer.param_dtype
        check_fields(self, at_least(1), "vocabulary_size", "max_positions")
        check_inputs(
            tokens,
            mask,
            token_types,
            perturbation,
            dim=dim,
            max_positions=self.max_positions,
        )
        real = jnp.ones(tokens.shape, bool) if mask is None else mask
        embeddings = TokenEmbeddings(
            self.vocabulary_size,
            dim,
            self.max_positions,
            self.frozen,
            param_dtype,
            name="embeddings",
        )
        head = Head(
            self.num_classes, self.pooling, param_dtype=param_dtype, name="head"
        )
        read = read_by(head, real, dim, record)
        words = embeddings(tokens, real, perturbation)
        return self.transformer(words, real, record=read)
