"""Dtypes, scales and matrix products of energies: no overflow where the value has
none, and fast gradients."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = [
    "compute_dtype",
    "full_precision",
    "gram",
    "infinite_outside",
    "linear",
    "over",
    "powers_of_two",
    "shrink",
    "square_range",
]


def powers_of_two(
    sizes: Float[Array, "..."],
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Powers of two that bring ``sizes`` near 1, and those that take them back; 1 for
    0, constants for autodiff.

    Products with them are exact, and neither is subnormal, which compiled code takes
    for 0.
    """
    limits = jnp.finfo(sizes.dtype)
    lowest, mantissa = int(limits.minexp), int(limits.nmant)
    bias, kind = 1 - lowest, jnp.dtype(f"int{limits.bits}")
    # By their bits: frexp and ldexp take several times as long to compile and to run.
    biased = (
        jax.lax.bitcast_convert_type(jax.lax.stop_gradient(sizes), kind) >> mantissa
    ) & (2 * bias + 1)
    exponent = jnp.where(biased == 0, 0, jnp.clip(biased - (bias - 1), lowest, -lowest))

    def power(exponent: Array) -> Array:
        return jax.lax.bitcast_convert_type((exponent + bias) << mantissa, sizes.dtype)

    return power(-exponent), power(exponent)


def over(array: Array, sizes: Array) -> Array:
    """``array / sizes``, the array where a size is 0; XLA's reciprocal of a float32
    size above 8.5e37 would be 0."""
    smaller, _ = powers_of_two(sizes)
    return array * smaller / jnp.where(sizes == 0.0, 1.0, sizes * smaller)


def square_range(
    largest: Float[Array, "..."], count: int
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Powers of two that make numbers small where sums of ``count`` of their squares
    overflow, and back; else 1.

    Sums of squares and products, times the second power twice, then overflow to the
    infinity of their sign.
    """
    limits = jnp.finfo(largest.dtype)
    room = 0.25 * float(limits.max) ** 0.5 / count**0.5
    # compilers multiply the two powers first: their product is finite
    most = 2.0 ** (int(limits.maxexp) // 2 - 2)
    return powers_of_two(jnp.where(largest > room, jnp.minimum(largest, most), 1.0))


def compute_dtype(*arrays: Any) -> jnp.dtype:
    """The dtype energies and reductions are computed in: float32 at least, float64
    if an input is."""
    # Under strict promotion too, which is about operands.
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.result_type(*(a for a in arrays if a is not None))
        return jnp.promote_types(dtype, jnp.float32)


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Takes products of float32 in full, as GPUs and TPUs do not by default, unless
    the user has set a precision."""
    if jax.default_matmul_precision.value is None:
        with jax.default_matmul_precision("highest"):
            yield
    else:
        yield


def infinite_outside(
    value: Callable[[Array], Array], z: Array, lower: float, upper: float = math.inf
) -> Array:
    """``value(z)``, elementwise, for z in [lower, upper]; infinite outside, and NaN
    stays NaN.

    Gradients are finite: 0 outside, and at an end the slope next to it, as its own may
    be infinite.
    """
    limits = jnp.finfo(jnp.result_type(z))
    gaps = [
        max(float(limits.tiny), 0.5 * abs(end) * float(limits.eps))
        for end in (lower, upper)
    ]

    @jax.custom_jvp
    def extended(z: Array) -> Array:
        outside = (z < lower) | (z > upper)
        return jnp.where(
            outside,
            jnp.inf,
            value(jnp.where(outside, 0.5 * (lower + min(upper, lower + 2.0)), z)),
        )

    @extended.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        (z,), (tangent,) = primals, tangents
        inner = jnp.where(
            z <= lower, lower + gaps[0], jnp.where(z >= upper, upper - gaps[1], z)
        )
        outside = (z < lower) | (z > upper)
        return extended(z), jnp.where(
            outside, 0.0, jax.jvp(value, (inner,), (tangent,))[1]
        )

    return extended(z)


def shrink(values: Float[Array, "..."], amount: Any) -> Float[Array, "..."]:
    """Soft thresholding, sign(v) max(|v| - amount, 0)."""
    return jnp.sign(values) * jax.nn.relu(jnp.abs(values) - amount)


def linear(
    tokens: Float[Array, "*batch n d"], weight: Float[Array, "d k"]
) -> Float[Array, "*batch n k"]:
    """``tokens @ weight`` as one product over all tokens, which makes the weight's
    gradient one product too."""
    return _flat_product(tokens, weight)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def gram(
    tokens: Float[Array, "*batch n k"], dtype: Any = None
) -> Float[Array, "*batch n n"]:
    r"""The inner products :math:`Z Z^T` of all pairs of tokens, accumulated in
    ``dtype`` (None: the tokens').

    Their derivative, :math:`A + A^T` with :math:`A = \dot Z Z^T`, takes one product
    each way; autodiff takes two.
    """
    return jnp.matmul(
        tokens, jnp.swapaxes(tokens, -1, -2), preferred_element_type=dtype
    )


@gram.defjvp
def _(dtype: Any, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (tokens,), (moved,) = primals, tangents
    half = jnp.matmul(moved, jnp.swapaxes(tokens, -1, -2), preferred_element_type=dtype)
    return gram(tokens, dtype), half + jnp.swapaxes(half, -1, -2)


# the backward pass keeps the tokens, not a flat copy of them
@functools.partial(jax.checkpoint, prevent_cse=False)
def _flat_product(tokens: Array, weight: Array) -> Array:
    return (tokens.reshape(-1, tokens.shape[-1]) @ weight).reshape(
        *tokens.shape[:-1], weight.shape[-1]
    )
