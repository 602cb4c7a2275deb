"""Dtypes, scales, rounding and matrix products of energies."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = [
    "common_dtype",
    "compute_dtype",
    "full_precision",
    "gram",
    "infinite_outside",
    "linear",
    "over",
    "power_inverse",
    "powers_of_two",
    "round_up",
    "safe_sqrt",
    "shrink",
    "square_range",
    "unit_powers",
]


def powers_of_two(
    sizes: Float[Array, "..."],
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Powers of two that bring ``sizes`` near 1, and their inverses.

    They are 1 for 0, and constants for autodiff. Products with them are exact. Neither
    is subnormal, as compiled code flushes subnormal numbers to 0.
    """
    limits = jnp.finfo(sizes.dtype)
    lowest = int(limits.minexp)
    mantissa_bits = int(limits.nmant)
    bias = 1 - lowest

    # Read from the bits: frexp and ldexp compile and run several times slower.
    integer = jnp.dtype(f"int{limits.bits}")
    bits = jax.lax.bitcast_convert_type(jax.lax.stop_gradient(sizes), integer)
    biased = (bits >> mantissa_bits) & (2 * bias + 1)  # without the sign bit
    exponent = jnp.clip(biased - (bias - 1), lowest, -lowest)
    exponent = jnp.where(biased == 0, 0, exponent)

    def power(exponent: Array) -> Array:
        bits = (exponent + bias) << mantissa_bits
        return jax.lax.bitcast_convert_type(bits, sizes.dtype)

    return power(-exponent), power(exponent)


def power_inverse(power: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns 1 / ``power`` for powers of two of `powers_of_two`.

    XLA recomputes bits in every kernel that reads them. A division is its own kernel.
    """
    limits = jnp.finfo(power.dtype)
    integer = jnp.dtype(f"int{limits.bits}")
    bits = jax.lax.bitcast_convert_type(jax.lax.stop_gradient(power), integer)
    ones = 2 * (1 - int(limits.minexp)) << int(limits.nmant)
    return jax.lax.bitcast_convert_type(ones - bits, power.dtype)


def unit_powers(
    array: Float[Array, "..."], axis: int | tuple[int, ...], least: float = 0.0
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Powers of two that bring the largest entries along ``axis`` near 1, and inverses.

    Entries count as ``least`` at least. Squares of entries times the powers do not
    overflow, and the largest ones do not underflow.
    """
    largest = jnp.max(jnp.abs(array), axis=axis, keepdims=True)
    return powers_of_two(jnp.maximum(largest, least))


def over(array: Array, sizes: Array) -> Array:
    """``array / sizes``, the array where a size is 0.

    XLA's reciprocal of a float32 size above 8.5e37 would be 0.
    """
    down, _ = powers_of_two(sizes)
    mantissa = jnp.where(sizes == 0.0, 1.0, sizes * down)
    dtype = common_dtype(array, sizes)
    return array.astype(dtype) * down.astype(dtype) / mantissa.astype(dtype)


def square_range(
    largest: Float[Array, "..."], count: int
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Powers of two that keep sums of ``count`` squares finite, and their inverses.

    They are 1 unless such a sum, of numbers up to ``largest``, overflows. A sum of
    squares or products, times the inverse twice, then overflows to the infinity of its
    sign.
    """
    limits = jnp.finfo(largest.dtype)
    safe = 0.25 * float(limits.max) ** 0.5 / count**0.5
    # Compilers multiply the two inverses first. Their product must be finite.
    most = 2.0 ** (int(limits.maxexp) // 2 - 2)
    return powers_of_two(jnp.where(largest > safe, jnp.minimum(largest, most), 1.0))


def common_dtype(*arrays: Any) -> jnp.dtype:
    """The dtype of arrays and dtypes together, under strict promotion too."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*(array for array in arrays if array is not None))


def compute_dtype(*arrays: Any) -> jnp.dtype:
    """The dtype of energies and sums: float32 at least, float64 if an input is."""
    return common_dtype(jnp.dtype(common_dtype(*arrays)), jnp.dtype(jnp.float32))


def round_up(value: Float[Array, "..."], errors: int | float) -> Float[Array, "..."]:
    """Raises a bound, at least 0, above the true value after ``errors`` roundings.

    A rounding loses at most half an epsilon, relative to the value. The factor adds a
    full epsilon for each.
    """
    return value * (1.0 + errors * float(jnp.finfo(value.dtype).eps))


@contextlib.contextmanager
def full_precision(*, always: bool = False) -> Iterator[None]:
    """Computes float32 products in full precision. GPUs and TPUs do not by default.

    A precision that the user has set stays, unless ``always``.
    """
    if always or jax.default_matmul_precision.value is None:
        with jax.default_matmul_precision("highest"):
            yield
    else:
        yield


def infinite_outside(
    value: Callable[[Array], Array], z: Array, lower: float, upper: float = math.inf
) -> Array:
    """``value(z)``, elementwise, for z in [lower, upper], and infinite outside.

    NaN stays NaN. Gradients are finite. They are 0 outside. At an end, where the slope
    may be infinite, the slope of the next number inside replaces it.
    """
    limits = jnp.finfo(jnp.result_type(z))
    tiny, eps = float(limits.tiny), float(limits.eps)
    # the numbers next to the ends, for their slopes
    lowest = lower + max(tiny, 0.5 * abs(lower) * eps)
    highest = upper - max(tiny, 0.5 * abs(upper) * eps)
    # a point inside, where `value` is finite
    middle = 0.5 * (lower + min(upper, lower + 2.0))

    @jax.custom_jvp
    def extended(z: Array) -> Array:
        outside = (z < lower) | (z > upper)
        inside_z = jnp.where(outside, middle, z)
        return jnp.where(outside, jnp.inf, value(inside_z))

    @extended.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        (z,), (tangent,) = primals, tangents
        inside_z = jnp.where(z >= upper, highest, z)
        inside_z = jnp.where(z <= lower, lowest, inside_z)
        outside = (z < lower) | (z > upper)
        slope = jax.jvp(value, (inside_z,), (tangent,))[1]
        return extended(z), jnp.where(outside, 0.0, slope)

    return extended(z)


def safe_sqrt(square: Float[Array, "..."]) -> Float[Array, "..."]:
    """The square root, with the derivative 0 at 0. NaN stays NaN."""
    is_zero = square == 0.0
    # The inner `where` keeps the infinite derivative out.
    return jnp.where(is_zero, 0.0, jnp.sqrt(jnp.where(is_zero, 1.0, square)))


def shrink(values: Float[Array, "..."], amount: Any) -> Float[Array, "..."]:
    """Soft thresholding, sign(v) max(|v| - amount, 0)."""
    return jnp.sign(values) * jax.nn.relu(jnp.abs(values) - amount)


def linear(
    tokens: Float[Array, "*batch n d"], weight: Float[Array, "d k"]
) -> Float[Array, "*batch n k"]:
    """``tokens @ weight`` as one product over all tokens.

    The weight's gradient is one product too.
    """
    return _flat_product(tokens, weight)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def gram(
    tokens: Float[Array, "*batch n k"], dtype: Any = None
) -> Float[Array, "*batch n n"]:
    r"""The inner products :math:`Z Z^T` of all pairs of tokens.

    They are accumulated in ``dtype`` (None: the tokens'). Their derivative,
    :math:`A + A^T` with :math:`A = \dot Z Z^T`, takes one product each way. Autodiff
    takes two.
    """
    return jnp.matmul(tokens, tokens.mT, preferred_element_type=dtype)


@gram.defjvp
def _(dtype: Any, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (tokens,), (tangent,) = primals, tangents
    half = jnp.matmul(tangent, tokens.mT, preferred_element_type=dtype)
    return gram(tokens, dtype), half + half.mT


# the backward pass keeps the tokens, not a flat copy of them
@functools.partial(jax.checkpoint, prevent_cse=False)
def _flat_product(tokens: Array, weight: Array) -> Array:
    flat = tokens.reshape(-1, tokens.shape[-1]) @ weight
    return flat.reshape(*tokens.shape[:-1], weight.shape[-1])
