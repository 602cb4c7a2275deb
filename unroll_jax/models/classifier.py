"""A classifier that reads every layer of an encoder with one head."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from unroll_jax.arguments import at_least, check, check_fields, one_of
from unroll_jax.models.encoder import Encoder, real_tokens
from unroll_jax.models.layered import Record
from unroll_jax.models.parts import apply_dense
from unroll_jax.numerics import compute_dtype

__all__ = ["POOLINGS", "Classifier", "Head", "first_token", "mean_token", "read_by"]


def first_token(
    y: Float[Array, "*batch n d"], mask: Bool[Array, "*batch n"]
) -> Float[Array, "*batch d"]:
    """Returns the first real token, or the first of all where none is real."""
    place = jnp.argmax(mask, axis=-1)
    return jnp.take_along_axis(y, place[..., None, None], axis=-2).squeeze(-2)


def mean_token(
    y: Float[Array, "*batch n d"], mask: Bool[Array, "*batch n"]
) -> Float[Array, "*batch d"]:
    """Returns the mean of the real tokens, or zero where none is real."""
    total = jnp.sum(jnp.where(mask[..., None], y, 0.0), axis=-2)
    # 1 at least, so that a text without real tokens is 0, not NaN
    count = jnp.sum(mask, axis=-1, keepdims=True)
    return total / jnp.maximum(count, 1).astype(y.dtype)


#: Poolings of `Classifier`, from the tokens of a text to one vector, by name.
POOLINGS: Mapping[str, Callable[..., Array]] = MappingProxyType(
    {"first": first_token, "mean": mean_token}
)
HIDDEN: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {"tanh": jnp.tanh, "relu": jax.nn.relu}
)


class Head(nn.Module):
    """Pooling, a hidden layer if there is one, and a dense layer to logits.

    ``pooling`` takes the "first" token or the "mean" of the real ones. ``hidden`` is
    the activation of a dense layer as wide as the tokens: "tanh" (BERT, RoBERTa) or
    "relu" (DistilBERT).
    """

    num_classes: int
    pooling: str = "first"
    hidden: str | None = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, y: Float[Array, "*batch n d"], mask: Bool[Array, "*batch n"]
    ) -> Float[Array, "*batch classes"]:
        """Maps tokens to logits, in float32 at least."""
        check_fields(self, at_least(1), "num_classes")
        check("pooling", self.pooling, one_of(POOLINGS))
        check("hidden", self.hidden, one_of(HIDDEN), optional=True)
        pooled = POOLINGS[self.pooling](y.astype(compute_dtype(y)), mask)
        if self.hidden is not None:
            wide = apply_dense(pooled, y.shape[-1], self.param_dtype, name="hidden")
            pooled = HIDDEN[self.hidden](wide)
        return apply_dense(pooled, self.num_classes, self.param_dtype, name="logits")


class Classifier(nn.Module):
    """An encoder and one `Head` that reads the output of every layer.

    The parameters are ``encoder`` and ``head``.

    Attributes:
      encoder, num_classes: the encoder, and logits out.
      pooling, hidden: of the head.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax.models import Encoder, EncoderConfig
      >>> config = EncoderConfig(100, dim=8, num_layers=2, num_heads=2, hidden_dim=16)
      >>> model = Classifier(Encoder(config), num_classes=4)
      >>> tokens = jnp.array([[5, 6, 7], [8, 9, 0]])
      >>> params = jax.jit(model.init)(jax.random.key(0), tokens)
      >>> jax.jit(model.apply)(params, tokens).shape
      (3, 2, 4)
    """

    encoder: Encoder
    num_classes: int
    pooling: str = "first"
    hidden: str | None = None

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
        """Reads all layers.

        The arguments are the encoder's, with ``record`` given logits (*batch, classes).

        Returns:
          Logits of layers 0..L, (L + 1, *batch, classes), or what ``record`` made of
          each layer's, stacked likewise. They are made inside the scan: the outputs of
          all layers never live at once.
        """
        config, param_dtype = self.encoder.config, self.encoder.param_dtype
        head = Head(
            self.num_classes, self.pooling, self.hidden, param_dtype, name="head"
        )
        real = real_tokens(tokens, mask, config)
        read = read_by(head, real, config.dim, record)
        return self.encoder(
            tokens,
            mask,
            token_types=token_types,
            perturbation=perturbation,
            record=read,
            dropout_key=dropout_key,
        )


def read_by(
    head: Head,
    mask: Bool[Array, "*batch n"],
    dim: int,
    record: Record | None,
) -> Record:
    """Returns the map of outputs to logits, or ``record(logits)``.

    All layers of a scan share the head.
    """
    if head.is_initializing():
        head(jnp.zeros((*mask.shape, dim), head.param_dtype), mask)
    # Scans want the parameters that all layers share as arrays, not as a module of the
    # scope around them.
    shared, variables = head.unbind()

    def read(y: jax.Array) -> Any:
        logits: Any = shared.apply(variables, y, mask)
        return logits if record is None else record(logits)

    return read
