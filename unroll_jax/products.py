"""Matrix products of tokens, written so that the programs of their gradients are the quick ones."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = ["gram", "linear"]


def linear(tokens: Float[Array, "*batch n d"], weight: Float[Array, "d k"]) -> Float[Array, "*batch n k"]:
    """``tokens @ weight`` as one product over all tokens, which makes the weight's gradient one product too."""
    return _flat_product(tokens, weight)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def gram(tokens: Float[Array, "*batch n k"], dtype: Any = None) -> Float[Array, "*batch n n"]:
    r"""The inner products :math:`Z Z^T` of all pairs of tokens, accumulated in ``dtype`` (None: that of the tokens).

    Their derivative is :math:`A + A^T` with :math:`A = \dot Z Z^T`: one product, forward and backward, where autodiff
    of a product of an array with itself takes two.
    """
    return jnp.matmul(tokens, jnp.swapaxes(tokens, -1, -2), preferred_element_type=dtype)


@gram.defjvp
def _(dtype: Any, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (tokens,), (moved,) = primals, tangents
    half = jnp.matmul(moved, jnp.swapaxes(tokens, -1, -2), preferred_element_type=dtype)
    return gram(tokens, dtype), half + jnp.swapaxes(half, -1, -2)


@functools.partial(jax.checkpoint, prevent_cse=False)  # the backward pass keeps the tokens, not a flat copy of them
def _flat_product(tokens: Array, weight: Array) -> Array:
    return (tokens.reshape(-1, tokens.shape[-1]) @ weight).reshape(*tokens.shape[:-1], weight.shape[-1])
