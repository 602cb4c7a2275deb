"""Text classification as a training task: the model, the noise and the loss at every layer."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from train.constrained import Bounds, check_depth, check_epochs, descent_bounds
from train.data.text import TokenBatch
from train.sharding import keep_rows
from train.text.config import TextEncoderConfig, TextUnrolledConfig
from train.text.material import TextMaterial
from train.text.models import TextModel, build_model

__all__ = ["Drawn", "Reading", "Task", "draw_noise", "read_sample", "text_task"]

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


class Drawn(NamedTuple):
    """A batch with what is random in a step: the noise of the embeddings, or None where there is none."""

    batch: TokenBatch
    noise: Any


class Task(NamedTuple):
    """What training, evaluation and prediction share.

    Attributes:
      model: the classifier.
      init: ``key -> params``.
      trained: ``params -> bool`` for each of them, whether it is trained; None where all are.
      outputs: ``(params, batch, noise, record) -> record(logits)`` of layers 0..L, stacked; noise is added to the
        embeddings of real words, and may be None.
      draw: ``(batch, key) -> Drawn``, with the noise of training.
      sample_losses: ``(params, what was drawn) -> (samples, L + 1)``.
      bounds: of the layer losses.
      variance: ``gamma -> variance`` of the noise.
      steps_an_epoch: steps in which the train split is seen once, but for a rest that is smaller than a batch.
    """

    model: TextModel
    init: Callable[[jax.Array], Any]
    trained: Callable[[Any], Any] | None
    outputs: Callable[[Any, TokenBatch, Array | None, Record], Any]
    draw: Callable[[TokenBatch, jax.Array], Drawn]
    sample_losses: Callable[[Any, Drawn], Float[Array, "samples layers_and_one"]]
    bounds: Bounds
    variance: Callable[[float], float]
    steps_an_epoch: int


def text_task(config: TextEncoderConfig | TextUnrolledConfig, material: TextMaterial) -> Task:
    """The task of a configuration: f_l is the mean cross entropy of the shared readout at layer l.

    Layer 0 is what the embeddings put out, noise included.

    Raises:
      UserError: if an option does not fit the model, such as a number of alpha that is not that of its layers; if
        multipliers move once an epoch and the run has none.

    Source: Porras-Valenzuela, Hadou, Ribeiro, Section 5 and Appendix B.3.
    """
    model = build_model(config, material)
    check_depth(config, model.num_layers)
    steps_an_epoch = material.tokens.steps_an_epoch("train", batch_size=config.batch_size)
    check_epochs(config, steps_an_epoch)

    def variance(gamma: float) -> float:
        if gamma == 0.0:
            return 0.0  # without reading the train split
        size = gamma * material.embedding_std
        return size**2 if config.noise == "deviation" else size

    def still(params: Any) -> Any:
        if model.trained is None:
            return params
        freeze = lambda leaf, trained: leaf if trained else jax.lax.stop_gradient(leaf)  # noqa: E731
        return jax.tree.map(freeze, params, model.trained(params))

    def outputs(params: Any, batch: TokenBatch, noise: Array | None, record: Record) -> Any:
        tokens, mask, token_types, _ = batch
        read = lambda logits: record(keep_rows(logits))  # noqa: E731
        return model.module.apply(still(params), tokens, mask, token_types=token_types, perturbation=noise, record=read)

    def draw(batch: TokenBatch, key: jax.Array) -> Drawn:
        strength = variance(config.train_gamma)  # reads the train split, which prediction needs not
        return Drawn(batch, draw_noise(key, batch, model.dim, strength) if strength > 0.0 else None)

    def sample_losses(params: Any, drawn: Drawn) -> Float[Array, "samples layers_and_one"]:
        batch, noise = jax.tree.map(keep_rows, drawn)
        return outputs(params, batch, noise, lambda logits: _cross_entropy(logits, batch.labels)).T

    return Task(
        model=model,
        init=model.init,
        trained=model.trained,
        outputs=outputs,
        draw=draw,
        sample_losses=sample_losses,
        bounds=descent_bounds(config.constraints, model.num_layers),
        variance=variance,
        steps_an_epoch=steps_an_epoch,
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
