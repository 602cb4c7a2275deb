"""Video denoising as a training task: the model, the noise and the loss at every layer."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from train.constrained import Bounds, check_epochs, descent_bounds
from train.errors import UserError
from train.gradients import POLICIES
from train.sharding import keep_rows
from train.video.config import VideoConfig
from unroll_jax.models import UnrolledTransformer, dct, scaled_identity

__all__ = ["Drawn", "Task", "VideoShape", "add_noise", "to_unit", "video_task"]

Batch = UInt8[Array, "batch frames pixels"]
Record = Callable[[Float[Array, "batch frames pixels"]], Any]


class VideoShape(Protocol):
    """What the task needs to know of the data: of a `train.data.VideoData`, or of a benchmark's stand-in."""

    @property
    def pixel_std(self) -> float:
        """Standard deviation of the clean train pixels, in [0, 1]."""
        ...

    @property
    def num_tokens(self) -> int:
        """Frames of a sequence."""
        ...

    @property
    def token_dim(self) -> int:
        """Pixels of a patch."""
        ...

    def num_sequences(self, split: str) -> int:
        """How many sequences a split has."""
        ...


class Drawn(NamedTuple):
    """A batch with what is random in a step: pixels in [0, 1], and the same with noise."""

    clean: Float[Array, "batch frames pixels"]
    noisy: Float[Array, "batch frames pixels"]


class Task(NamedTuple):
    """What the training loop needs to know of an experiment.

    Attributes:
      init: ``key -> params``.
      outputs: ``(params, noisy, record) -> record(output)`` of layers 0..L, stacked on a leading axis.
      draw: ``(batch, key) -> batch`` with all that is random in a step, a row a sample.
      sample_losses: ``(params, what was drawn) -> (samples, L + 1)``.
      bounds: of the layer losses.
      steps_an_epoch: steps in which the train split is seen once, but for a rest that is smaller than a batch.
      trained: None, as all parameters are.
    """

    init: Callable[[jax.Array], dict]
    outputs: Callable[[dict, Float[Array, "batch frames pixels"], Record], Any]
    draw: Callable[[Batch, jax.Array], Any]
    sample_losses: Callable[[dict, Any], Float[Array, "samples layers_and_one"]]
    bounds: Bounds
    steps_an_epoch: int = 1
    trained: None = None


def video_task(config: VideoConfig, data: VideoShape) -> Task:
    """The denoising task: f_l is the mean over sequences and frames of 1/2 |x_t - Phi_l,t|^2, pixels in [0, 1].

    Layer 0 is the noisy input itself: the tokens are patches and need no embedding.

    Raises:
      UserError: if the reference is below the loss of the noisy input, which no parameter can change; if multipliers
        move once an epoch and the run has none; if slacks start anew once an epoch, and that is in every step.

    Source: Porras-Valenzuela, Hadou, Ribeiro, Section 4 and Appendix B.2.
    """
    wide = jnp.promote_types(config.model.dtype, jnp.float32)
    model = UnrolledTransformer(
        dim=data.token_dim,
        num_layers=config.model.num_layers,
        rank=config.model.rank,
        dtype=jnp.dtype(config.model.dtype),
        param_dtype=wide,
        remat=POLICIES[config.remat] or False,
        V_init=dct(config.model.attention_scale),
        W_init=scaled_identity(config.model.mixing),
        U_init=scaled_identity(1.0 - config.model.mixing),
    )
    rank = config.model.rank
    if rank is not None and not 1 <= rank <= data.token_dim:
        raise UserError(f"--model.rank must be between 1 and the token width {data.token_dim}, got {rank}")
    variance = config.train_gamma * data.pixel_std
    _check_reference(config, 0.5 * data.token_dim * variance)
    steps_an_epoch = max(data.num_sequences("train") // config.batch_size, 1)
    check_epochs(config, steps_an_epoch)

    def init(key: jax.Array) -> dict:
        return dict(model.init(key, jnp.zeros((1, data.num_tokens, data.token_dim))))

    def outputs(params: dict, noisy: Float[Array, "batch frames pixels"], record: Record) -> Any:
        return model.apply(params, noisy, record=record)

    def draw(batch: Batch, key: jax.Array) -> Drawn:
        clean = to_unit(batch, wide)
        return Drawn(clean, add_noise(clean, variance, key))

    def sample_losses(params: dict, drawn: Drawn) -> Float[Array, "samples layers_and_one"]:
        # Sequences are averaged after the layers: over many devices, in one reduction rather than one a layer.
        return outputs(params, keep_rows(drawn.noisy), lambda y: _sample_losses(keep_rows(y), drawn.clean)).T

    return Task(
        init=init,
        outputs=outputs,
        draw=draw,
        sample_losses=sample_losses,
        bounds=descent_bounds(config.constraints, config.model.num_layers),
        steps_an_epoch=steps_an_epoch,
    )


def to_unit(batch: Batch, dtype: Any = jnp.float32) -> Float[Array, "batch frames pixels"]:
    """Pixels 0..255 as floats in [0, 1]."""
    return batch.astype(dtype) / 255.0


def add_noise(clean: Float[Array, "..."], variance: float | Array, key: jax.Array) -> Float[Array, "..."]:
    """``clean`` plus centred Gaussian noise of the given variance."""
    return clean + jnp.sqrt(jnp.asarray(variance, clean.dtype)) * jax.random.normal(key, clean.shape, clean.dtype)


def _sample_losses(y: Array, clean: Array) -> Float[Array, "batch"]:
    return 0.5 * jnp.mean(jnp.sum((y - clean) ** 2, axis=-1), axis=-1)


def _check_reference(config: VideoConfig, input_loss: float) -> None:
    reference = config.constraints.reference
    if config.method != "erm" and reference is not None and reference < input_loss:
        raise UserError(
            f"--constraints.reference {reference} is below the loss of the noisy input, about {input_loss:.2f} at "
            f"--train-gamma {config.train_gamma}, which no training can lower; raise it, or pass None"
        )
