"""Networks of several tasks and options of their loops, the check of the bound on
the input, images in and out."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt8

from unroll_jax.models import UnrolledTransformer, dct, scaled_identity

from ..config.constrained import ConstrainedConfig
from ..config.errors import OptionError, UserError, option_text
from ..config.run import RunConfig
from ..sharding.rules import POLICIES
from .text.options import UnrolledConfig
from .video.options import ModelConfig

# V starts as the first times the cosine transform; W as the second times the identity,
# and U as the rest.
ATTENTION_SCALE, MIXING = 0.25, 0.2
START: dict[str, Any] = {
    "V_init": dct(ATTENTION_SCALE),
    "W_init": scaled_identity(MIXING),
    "U_init": scaled_identity(1.0 - MIXING),
}


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


def each_of(inputs: Any) -> tuple[list[Any], bool]:
    """Returns inputs of a prediction as a list, and whether they were one."""
    several = isinstance(inputs, list | tuple)
    if several and not inputs:
        raise UserError("predict needs images, got an empty list; give one or more")
    return list(inputs) if several else [inputs], several


def to_bytes(values: Float[np.ndarray, "..."]) -> UInt8[np.ndarray, "..."]:
    """Converts a model's pixels in [0, 1] to 0..255; a `UserError` where one is not
    finite."""
    if not np.isfinite(values).all():
        raise UserError(
            "the model's images are not finite; lower the noise gamma, or train it"
            " again"
        )
    return np.clip(np.round(255.0 * values), 0, 255).astype(np.uint8)
