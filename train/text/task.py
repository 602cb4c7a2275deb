"""Text classification as a training task: the model, the noise and the loss at every layer."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from train.constrained import Bounds, descent_bounds
from train.data.text import TokenBatch
from train.errors import UserError
from train.sharding import keep_rows
from train.text.config import TextEncoderConfig, TextUnrolledConfig
from train.text.material import TextMaterial
from train.text.models import TextModel, build_model

__all__ = ["Reading", "Task", "draw_noise", "read_sample", "text_task"]

Record = Callable[[Float[Array, "batch classes"]], Any]


class Reading(NamedTuple):
    """What one layer says of every text of a batch, or every layer of every text: leading axes as they come.

    Attributes:
      losses: cross entropy in nats.
      entropies: of the predicted probabilities, in nats.
      predictions: the most probable class.
    """

    losses: Any
    entropies: Any
    predictions: Any


class Task(NamedTuple):
    """What training, evaluation and prediction share.

    Attributes:
      model: the classifier.
      init: ``key -> params``.
      outputs: ``(params, batch, noise, record) -> record(logits)`` of layers 0..L, stacked; noise is added to the
        embeddings of real words, and may be None.
      layer_losses: ``(params, batch, key) -> (L + 1,)``, means over the batch, at the noise of training.
      bounds: of the layer losses.
      variance: ``gamma -> variance`` of the noise.
      loss_units: what a loss of 1 means, for axes and tables.
    """

    model: TextModel
    init: Callable[[jax.Array], Any]
    outputs: Callable[[Any, TokenBatch, Array | None, Record], Any]
    layer_losses: Callable[[Any, TokenBatch, jax.Array], Float[Array, "layers_and_one"]]
    bounds: Bounds
    variance: Callable[[float], float]
    loss_units: str


def text_task(config: TextEncoderConfig | TextUnrolledConfig, material: TextMaterial) -> Task:
    """The task of a configuration: f_l is the mean cross entropy of the shared readout at layer l.

    Layer 0 is what the embeddings put out, noise included.

    Raises:
      UserError: if an option does not fit the model, such as as many alpha as it has no layers.

    Source: Porras-Valenzuela, Hadou, Ribeiro, Section 5 and Appendix B.3.
    """
    model = build_model(config, material)
    if len(config.constraints.alpha) not in (1, model.num_layers):
        raise UserError(
            f"--constraints.alpha must be one number, or one for each of the {model.num_layers} layers, got "
            f"{len(config.constraints.alpha)}"
        )

    def variance(gamma: float) -> float:
        return gamma * material.embedding_std if gamma > 0.0 else 0.0

    def outputs(params: Any, batch: TokenBatch, noise: Array | None, record: Record) -> Any:
        tokens, mask, token_types, _ = batch
        read = lambda logits: record(keep_rows(logits))  # noqa: E731
        return model.module.apply(
            model.trained(params), tokens, mask, token_types=token_types, perturbation=noise, record=read
        )

    def layer_losses(params: Any, batch: TokenBatch, key: jax.Array) -> Float[Array, "layers_and_one"]:
        strength = variance(config.train_gamma)  # reads the train split, which prediction needs not
        noise = draw_noise(key, batch, model.dim, strength) if strength > 0.0 else None
        samples = outputs(params, batch, noise, lambda logits: _cross_entropy(logits, jnp.asarray(batch.labels)))
        return jnp.mean(samples, axis=-1)

    return Task(
        model=model,
        init=model.init,
        outputs=outputs,
        layer_losses=layer_losses,
        bounds=descent_bounds(config.constraints, model.num_layers),
        variance=variance,
        loss_units="cross entropy, nats",
    )


def draw_noise(key: jax.Array, batch: TokenBatch, dim: int, variance: float | Array) -> Float[Array, "batch n dim"]:
    """Centred Gaussian noise of this variance for every token of a batch, padding included."""
    return jnp.sqrt(jnp.asarray(variance, jnp.float32)) * jax.random.normal(key, (*batch.tokens.shape, dim))


def read_sample(logits: Float[Array, "batch classes"], labels: Array) -> Reading:
    """What a layer's logits say of every text."""
    logs = jax.nn.log_softmax(logits)
    entropies = -jnp.sum(jnp.exp(logs) * logs, axis=-1)
    return Reading(_cross_entropy(logits, labels), entropies, jnp.argmax(logits, axis=-1))


def _cross_entropy(logits: Float[Array, "batch classes"], labels: Array) -> Float[Array, "batch"]:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
