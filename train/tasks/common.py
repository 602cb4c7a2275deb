"""What several tasks share: noise, keys, words, networks and their loops, images in and
out."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from unroll_jax.models import UnrolledTransformer, dct, scaled_identity

from ..config.constrained import ConstrainedConfig
from ..config.errors import OptionError, UserError, option_text
from ..config.options import LARGEST, with_value
from ..config.run import RunConfig
from ..core.evaluate import evaluation_key
from ..core.objective import violated
from ..core.task import VALIDATED, Log, Row, Task
from ..data.pictures import picture_of
from ..sharding import POLICIES, put_beside
from ..system.distributed import fetch
from .text.options import UnrolledConfig
from .video.options import ModelConfig

T = TypeVar("T")
C = TypeVar("C", bound=ConstrainedConfig)
# V starts as the first times the cosine transform; W as the second times the identity,
# and U as the rest.
ATTENTION_SCALE, MIXING = 0.25, 0.2
START: dict[str, Any] = {
    "V_init": dct(ATTENTION_SCALE),
    "W_init": scaled_identity(MIXING),
    "U_init": scaled_identity(1.0 - MIXING),
}


def check_noise(gamma: float, seed: int) -> None:
    """Raises a `UserError` for noise that a prediction cannot have. The noise of
    training has the same range."""
    if not 0.0 <= gamma <= LARGEST:
        raise OptionError("gamma", f"finite, from 0 to {LARGEST:g}", gamma)
    if not 0 <= seed < 2**32:
        raise OptionError("seed", "a whole number in [0, 2**32)", seed)


def with_reference(config: C, usual: Any, share: float) -> C:
    """Returns the options with a default bound on the input's loss, ``usual``, times a
    share: of the data's loss, over that of the data which the default is of."""
    given = config.constraints.reference
    if given != usual or abs(share - 1.0) < 0.01 or share == 0.0:
        return config
    return with_value(config, "constraints.reference", float(f"{share * usual:.4g}"))


def logged(given: ConstrainedConfig, task: Task, log: Log) -> Task:
    """Returns a task. Logs a default bound that is made from the data."""
    reference = task.options.constraints.reference
    if given.enforces and given.constraints.reference != reference:
        log(f"--constraints.reference {reference:g}, from the data's losses")
    return task


def keyed(batches: Iterable[T]) -> Iterator[tuple[T, jax.Array]]:
    """Yields the batches of an evaluation, each with the key of its noise."""
    for index, batch in enumerate(batches):
        yield batch, evaluation_key(index)


def to_unit(
    pixels: UInt8[Array, "..."] | UInt8[np.ndarray, "..."], dtype: Any = jnp.float32
) -> Float[Array, "..."]:
    """Converts pixels from 0..255 to floats in [0, 1]."""
    return jnp.asarray(pixels).astype(dtype) / 255.0


def gaussian(
    key: jax.Array,
    shape: tuple[int, ...],
    variance: float | Array,
    dtype: Any = jnp.float32,
) -> Array:
    """Draws centred Gaussian noise of a variance."""
    return jnp.sqrt(jnp.asarray(variance, dtype)) * jax.random.normal(key, shape, dtype)


def add_noise(
    clean: Float[Array, "..."], variance: float | Array, key: jax.Array
) -> Float[Array, "..."]:
    """Adds centred Gaussian noise of a variance."""
    return clean + gaussian(key, clean.shape, variance, clean.dtype)


def train_batches(data: Any, batch_size: int) -> Callable[..., Iterator[Any]]:
    """Returns the ``batches`` of a `Task` on data with a reader's ``batches``."""

    def batches(seed: int, start_step: int, rows: np.ndarray | None) -> Iterator[Any]:
        return data.batches(
            "train", batch_size=batch_size, seed=seed, start_step=start_step, rows=rows
        )

    return batches


def on_batches(function: Callable[..., Any]) -> Callable[..., Any]:
    """``(params, batch, *others) -> arrays of NumPy``, jitted. Batches are put on
    the mesh of the parameters."""
    compiled = jax.jit(function)
    return lambda params, batch, *others: fetch(
        compiled(params, put_beside(params, batch), *others)
    )


def feasibility_words(evaluation: Row) -> str:
    """Describes the feasibility of an evaluation by split."""
    plain = {
        "plain": "unconstrained",
        "deep_supervision": "with fixed weights on its layers",
    }
    if evaluation["method"] in plain:
        return plain[evaluation["method"]]
    splits = {"validation": evaluation.get(VALIDATED), "test": evaluation["feasible"]}
    words = []
    for word, expected in (("feasible", True), ("NOT feasible", False)):
        names = [split for split, holds in splits.items() if holds is expected]
        if names:
            plural = "s" * (len(names) > 1)
            words.append(f"{word} on the {' and '.join(names)} split{plural}")
    if not evaluation["feasible"]:
        words.append(violated(evaluation))
    return ", ".join(words)


def loop_options(config: RunConfig) -> dict[str, Any]:
    """Returns the options of a model's loop over its layers."""
    return {"remat": POLICIES[config.remat] or False}


def unrolled_transformer(
    model: ModelConfig | UnrolledConfig, dim: int, **options: Any
) -> UnrolledTransformer:
    """Builds the unrolled transformer of tokens of width ``dim``."""
    if model.rank is not None and model.rank > dim:
        raise OptionError(
            "model.rank", f"between 1 and the token width {dim}", model.rank
        )
    return UnrolledTransformer(
        dim=dim,
        num_layers=model.num_layers,
        rank=model.rank,
        dtype=jnp.dtype(model.dtype),
        **options,
    )


def check_reference(config: ConstrainedConfig, input_loss: float) -> None:
    """Raises a `UserError` for a bound on the input's loss that no training can
    meet."""
    reference = config.constraints.reference
    if config.enforces and reference is not None and reference < input_loss:
        mend = (
            "raise it"
            if config.constraints.bounds == "cumulative"
            else "raise it, or pass None"
        )
        raise UserError(
            f"{option_text('constraints.reference', reference)} is below the loss of"
            f" the noisy input, about {input_loss:.2f} at"
            f" {option_text('train_gamma', config.train_gamma)}, which no training can"
            f" lower; {mend}"
        )


def pictures_of(
    inputs: Any, shape: tuple[int, int, int]
) -> tuple[UInt8[np.ndarray, "..."], bool]:
    """Returns the pictures of a prediction, all of one shape, and whether they were a
    list."""
    several = isinstance(inputs, list | tuple)
    if several and not inputs:
        raise UserError("predict needs images, got an empty list; give one or more")
    given = inputs if several else [inputs]
    return np.stack([picture_of(one, shape) for one in given]), several


def to_bytes(values: Float[np.ndarray, "..."]) -> UInt8[np.ndarray, "..."]:
    """Converts a model's pixels in [0, 1] to 0..255. Raises `UserError` if one is not
    finite."""
    if not np.isfinite(values).all():
        raise UserError(
            "the model's images are not finite; lower the noise gamma, or train it"
            " again"
        )
    return np.clip(np.round(255.0 * values), 0, 255).astype(np.uint8)
