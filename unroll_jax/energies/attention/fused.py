"""Softmax attention with beta through the fused primitive of the device."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

__all__ = ["fused_softmax_step"]

MULTIPLE = 8  # cuDNN needs a multiple of so many columns
# The logit of an absent token, below all others by enough that its weight is 0.
ABSENT = -1e9


def fused_softmax_step(
    z: Float[Array, "*batch n k"],
    values: Float[Array, "*batch n d"],
    present: Bool[Array, "..."] | None,
    *,
    implementation: str = "cudnn",
) -> Float[Array, "*batch n d"]:
    """Returns softmax_v(z_u.z_v - |z_v|^2 / 2) values, in the dtype of values.

    Every token is its own neighbour too. Memory is O(n). The primitive has only first
    derivatives, in reverse mode. ``z`` must be centred.
    """
    # The bias -|z_v|^2 / 2 of a key enters as two more columns, the number and its
    # rounding error. Queries have 1 there. As its `bias` the primitive would need it
    # broadcast to (n, n), and would not differentiate it in a batch.
    dtype = values.dtype
    d = values.shape[-1]
    rounded = z.astype(dtype)
    bias = -0.5 * jnp.sum(rounded.astype(jnp.float32) ** 2, axis=-1, keepdims=True)
    if present is not None:
        bias = jnp.where(present[..., None], bias, ABSENT)
    # The remainder has the whole derivative.
    leading = jax.lax.stop_gradient(bias.astype(dtype))
    remainder = (bias - leading.astype(bias.dtype)).astype(dtype)
    ones = jnp.ones_like(leading)
    width = -(-max(z.shape[-1] + 2, d) // MULTIPLE) * MULTIPLE
    queries = _one_head([rounded, ones, ones], width)
    keys = _one_head([rounded, leading, remainder], width)
    # Without cuDNN, JAX computes bfloat16 in float32 and leaves casts to promotion.
    with jax.numpy_dtype_promotion("standard"):
        outputs = jax.nn.dot_product_attention(  # pyright: ignore[reportCallIssue]
            queries,
            keys,
            _one_head([values], width),
            scale=1.0,
            implementation=implementation,  # pyright: ignore[reportArgumentType]
        )
    return outputs[:, :, 0, :d].reshape(values.shape)


def _one_head(parts: list[Array], width: int) -> Array:
    """Joins columns to one head (examples, n, 1, width), padded with zeros."""
    tokens = jnp.concatenate(parts, axis=-1)
    n, columns = tokens.shape[-2:]
    padded = jnp.pad(tokens, [(0, 0)] * (tokens.ndim - 1) + [(0, width - columns)])
    return padded.reshape(-1, n, 1, width)
