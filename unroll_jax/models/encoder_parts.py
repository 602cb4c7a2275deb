"""The configuration and the embeddings of an encoder."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.arguments import at_least, check_fields, in_interval, require
from unroll_jax.arrays import check_dtype, check_shape
from unroll_jax.models.encoder_layer import INITIAL_STD, check_layer_shape, layer_norm

__all__ = [
    "EncoderConfig",
    "EncoderEmbeddings",
    "add_perturbation",
    "as_numbers",
    "check_inputs",
    "real_positions",
]


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """The shape of an encoder, such as BERT, DistilBERT, RoBERTa or MiniLM.

    Attributes:
      vocabulary_size: rows of the table of word embeddings.
      dim, num_layers, num_heads: width of the tokens, depth L, and attention heads,
        which share out ``dim``.
      hidden_dim: width between the two dense layers of the feed-forward part.
      max_positions: longest sequence.
      position_offset: rows of the table of positions before the first token's (RoBERTa:
        2).
      token_types: kinds of token, as first and second sentence. With 0 there is no
        table of them (DistilBERT).
      activation: "gelu", "gelu_tanh", "relu" or "silu".
      norm_epsilon: added to the variance in layer norms.
      padding_token: number of the token that fills sequences up.

    Source: Devlin et al. (2019), "BERT".

    Example:
      >>> config = EncoderConfig(30522, num_layers=6, token_types=0)  # DistilBERT
      >>> config.dim, config.num_heads
      (768, 12)
    """

    vocabulary_size: int
    dim: int = 768
    num_layers: int = 12
    num_heads: int = 12
    hidden_dim: int = 3072
    max_positions: int = 512
    position_offset: int = 0
    token_types: int = 2
    activation: str = "gelu"
    norm_epsilon: float = 1e-12
    padding_token: int = 0

    def __post_init__(self) -> None:
        names = (
            "vocabulary_size",
            "dim",
            "num_layers",
            "num_heads",
            "hidden_dim",
            "max_positions",
        )
        check_fields(self, at_least(1), *names)
        check_fields(self, at_least(0), "position_offset", "token_types")
        check_fields(self, at_least(0), "padding_token")
        check_layer_shape(self)
        known = in_interval(f"[0, vocabulary_size={self.vocabulary_size})")
        check_fields(self, known, "padding_token")


class EncoderEmbeddings(nn.Module):
    """The sum of word, position and token type embeddings, normalised.

    It is the output of layer 0.

    Positions count only real tokens, so padding on either side changes no position.
    Parameters: ``word.embedding`` (vocabulary_size, dim), ``position.embedding``,
    ``token_type.embedding``, ``norm``.
    """

    config: EncoderConfig
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "*batch n"],
        mask: Bool[Array, "*batch n"],
        token_types: Int[Array, "*batch n"],
        perturbation: Float[Array, "*batch n d"] | None = None,
    ) -> Float[Array, "*batch n d"]:
        """Embeds tokens.

        ``perturbation`` is added to the embeddings of words, where ``mask`` is True.
        """
        config = self.config
        embed = functools.partial(
            nn.Embed,
            features=config.dim,
            embedding_init=nn.initializers.normal(INITIAL_STD),
            param_dtype=self.param_dtype,
        )
        words = jnp.where(mask, as_numbers(tokens), config.padding_token)
        total = embed(config.vocabulary_size, name="word")(words)
        total = add_perturbation(total, mask, perturbation)
        places = real_positions(mask) + config.position_offset
        rows = config.max_positions + config.position_offset
        total = total + embed(rows, name="position")(places)
        if config.token_types:
            types = jnp.where(mask, token_types, 0)
            total = total + embed(config.token_types, name="token_type")(types)
        norm = layer_norm(config, self.param_dtype, self.param_dtype)
        return norm(name="norm")(total)


def real_positions(mask: Bool[Array, "*batch n"]) -> Int[Array, "*batch n"]:
    """Returns the position of each token, counting real tokens only, from 0."""
    return jnp.maximum(jnp.cumsum(mask, axis=-1) - 1, 0)


def as_numbers(tokens: Any) -> Int[Array, "*batch n"]:
    """Returns tokens as int32, negative ones as a number that no vocabulary has.

    Narrower integers cannot hold every number that tokens are compared with, or
    replaced by. A negative index would count from the end of the table.
    """
    numbers = jnp.asarray(tokens, jnp.int32)
    return jnp.where(numbers < 0, jnp.iinfo(jnp.int32).max, numbers)


def add_perturbation(
    words: Float[Array, "*batch n d"],
    mask: Bool[Array, "*batch n"],
    perturbation: Float[Array, "*batch n d"] | None,
) -> Float[Array, "*batch n d"]:
    """Adds the perturbation, if any, to the embeddings of real tokens."""
    if perturbation is None:
        return words
    return words + jnp.where(mask[..., None], perturbation, 0.0).astype(words.dtype)


def check_inputs(
    tokens: Any,
    mask: Any,
    token_types: Any,
    perturbation: Any,
    *,
    dim: int,
    max_positions: int | None,
) -> None:
    """Checks the inputs of classifiers of text.

    An input of None is absent. A ``max_positions`` of None allows any length.
    """
    length = tokens.shape[-1] if tokens.ndim else 0
    allowed = "be (*batch, n) with n at least 1"
    require(length >= 1, "tokens", allowed, f"shape {tokens.shape}")
    fits = max_positions is None or length <= max_positions
    allowed = f"be (*batch, n) with n in [1, {max_positions=}]"
    require(fits, "tokens", allowed, f"shape {tokens.shape}", "truncate them")
    for name, value, kind, width in (
        ("tokens", tokens, jnp.integer, ()),
        ("mask", mask, jnp.bool_, ()),
        ("token_types", token_types, jnp.integer, ()),
        ("perturbation", perturbation, jnp.floating, (dim,)),
    ):
        check_dtype(name, value, kind)
        check_shape(name, value, (*tokens.shape, *width), ", as tokens have")
