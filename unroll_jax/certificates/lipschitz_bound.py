"""Lipschitz constants of chains of layers, with the rounding error of their
evaluation."""

import math
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, check, in_interval, require
from unroll_jax.energies.convex_potential import (
    ConvexPotentialParams,
    potential_scaling,
)
from unroll_jax.energies.equilibrium.monotone import Monotone, resolve_monotone

__all__ = ["LipschitzBound", "Part", "lipschitz"]

Part = (
    ConvexPotentialParams | Float[Array, "_ _"] | Float[np.ndarray, "_ _"] | float | int
)
Size = float | Float[Array, "*batch"] | Float[np.ndarray, "*batch"]

# Units of rounding that an activation may be off, relative to its argument.
ACTIVATION_UNITS = 16
# Entries that a map of known constant sums at most: pooling of 4 x 4 windows.
MAX_WINDOW = 16
# The terms below are of first order in the unit of rounding; their products are smaller
# than 1% of them.
HIGHER_ORDER = 1.01


class LipschitzBound(NamedTuple):
    """Bounds of a map f and of its evaluation in floating point.

    Attributes:
      constant: :math:`|f(x) - f(x')| \\le constant \\, |x - x'|`, of exact arithmetic.
      error: |computed f(x) - f(x)|, Euclidean, for inputs up to the size given.
      size: |computed f(x)|, at most.

    Example: see `lipschitz`.
    """

    constant: float
    error: Any
    size: Any


class _Layer(NamedTuple):
    """A potential in numbers; Euclidean norms, weighted by T^-1/2.

    Attributes:
      at_zero: the norm of sigma(b).
      hidden, offset: rounding error of sigma(W z + b), as ``hidden * |z| + offset``.
      gradient: relative error of 1 / T and of the product with W^T.
    """

    at_zero: float
    hidden: float
    offset: float
    gradient: float


def lipschitz(
    *parts: Part,
    size: Size | LipschitzBound,
    step_size: float = 2.0,
    strength: float | None = None,
    activation: str | Monotone = "relu",
    image_shape: tuple[int, int] | None = None,
    tol: float = 1e-5,
    dtype: Any = "float32",
) -> LipschitzBound:
    r"""A Lipschitz constant of a chain of layers, and a bound of its rounding errors.

    Steps of `convex_potential` and equilibria of `convex_equilibrium` have 1, a matrix
    has its norm; the constant of the chain is the product. Rounding errors of all
    products and sums, T included, are bounded for any order of summation, and added up
    over the layers with the norms of the states. The bounds are computed in float64
    from the weights, which must be known.

    Args:
      *parts: the layers in order. `ConvexPotentialParams`, of one layer or stacked
        along a leading axis; a matrix M for ``z @ M`` (heads, orthonormal maps, 1 x 1
        convolutions), biases being free; or a number: a known constant of a map that
        sums at most 16 entries, such as 1 for `space_to_depth`, `pad_channels` and
        `pool`.
      size: the largest Euclidean norm of the inputs, those after a disturbance
        included; one number, or one per example. Or the `LipschitzBound` of the layers
        before these.
      step_size, activation: of the layers, as in `convex_potential`.
      strength: c of `convex_equilibrium`; the layers are then its equilibria, or their
        reflections x - 2 z. The bound holds for both.
      image_shape: height and width of the images, which convolutions need.
      tol: of `equilibrium`, for converged examples.
      dtype: of the states. Products of float32 must have full precision, as they have
        on CPUs.

    Returns:
      A `LipschitzBound`, for `certified_radius`.

    Raises:
      TypeError: if a part is traced, or of another kind.
      ValueError: if a number is out of range, or image_shape is missing.

    Source: Araujo et al. (2023) for the steps; the errors follow Higham (2002),
    "Accuracy and stability of numerical algorithms", Section 3.1.

    Example:
      >>> import jax
      >>> from unroll_jax.energies import convex_potential
      >>> layer = convex_potential(4, 8)
      >>> keys = jax.random.split(jax.random.key(0), 6)
      >>> bound: LipschitzBound = lipschitz(jax.vmap(layer.init)(keys), size=2.0)
      >>> round(bound.constant, 2), bool(0.0 < bound.error < 1e-3)
      (1.0, True)
    """
    # not by `checked`, which does not know *parts
    check("step_size", step_size, in_interval("(0, 2]"))
    check("strength", strength, in_interval("(0, 1/2]"), optional=True)
    check("tol", tol, at_least(0.0))
    if isinstance(size, LipschitzBound):
        bound = size
    else:
        bound = LipschitzBound(1.0, 0.0, np.asarray(size, np.float64))
        require(np.all(bound.size >= 0.0), "size", "be at least 0", size)

    sigma = resolve_monotone(activation)
    unit_of_state = float(jnp.finfo(dtype).eps) / 2
    # layers compute in float32 at least
    unit = min(unit_of_state, float(jnp.finfo(jnp.float32).eps) / 2)
    for part in _single(parts):
        if not isinstance(part, ConvexPotentialParams):
            bound = _of_map(part, bound, unit, unit_of_state)
            continue
        layer = _numbers(part, sigma, image_shape, unit)
        if strength is None:
            bound = _of_step(layer, bound, step_size, unit_of_state)
        else:
            bound = _of_equilibrium(layer, bound, strength, tol, unit_of_state)
    return bound


def _single(parts: tuple[Any, ...]) -> Iterator[Any]:
    """The parts with stacked layers one by one, as float64 NumPy arrays."""
    for part in parts:
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(part)):
            raise TypeError(
                "parts must be known, got a traced value; call lipschitz outside of"
                " jax.jit"
            )
        if isinstance(part, int | float):
            check("parts", part, at_least(0.0))
            yield float(part)
            continue
        if not isinstance(part, ConvexPotentialParams):
            allowed = "be ConvexPotentialParams, matrices or numbers"
            shape = getattr(part, "shape", None)
            got = type(part).__name__ if shape is None else f"shape {shape}"
            require(shape is not None and len(shape) == 2, "parts", allowed, got)
        wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), part)
        if not isinstance(wide, ConvexPotentialParams) or wide.b.ndim == 1:
            yield wide
        else:
            for place in range(len(wide.b)):
                yield jax.tree.map(operator.itemgetter(place), wide)


def _of_map(
    part: float | Float[np.ndarray, "_ _"],
    bound: LipschitzBound,
    unit: float,
    unit_of_state: float,
) -> LipschitzBound:
    """The bound behind a linear map."""
    if isinstance(part, int | float):
        constant = part
        local = (_gamma(MAX_WINDOW, unit) + unit_of_state) * constant
    else:
        constant = float(np.linalg.norm(part, 2))
        of_sizes = float(np.linalg.norm(np.abs(part), 2))
        local = _gamma(len(part), unit) * of_sizes + unit_of_state * constant
    local = HIGHER_ORDER * local * bound.size
    return LipschitzBound(
        constant * bound.constant,
        constant * bound.error + local,
        constant * bound.size + local,
    )


def _of_step(
    layer: _Layer, bound: LipschitzBound, step_size: float, unit: float
) -> LipschitzBound:
    """The bound behind z - a grad psi(z)."""
    size = bound.size + step_size * layer.at_zero
    local = step_size * _gradient_error(layer, bound.size)
    local = HIGHER_ORDER * (local + 3.0 * unit * (bound.size + size))
    return LipschitzBound(bound.constant, bound.error + local, size + local)


def _of_equilibrium(
    layer: _Layer, bound: LipschitzBound, strength: float, tol: float, unit: float
) -> LipschitzBound:
    """The bound behind z = c grad psi(z + x), and behind x - 2 z."""
    rest = 1.0 - strength
    at_zero = strength * layer.at_zero / rest
    of_z = strength * bound.size / rest + at_zero
    local = strength * _gradient_error(layer, of_z + bound.size)
    local = local + 3.0 * unit * (of_z + bound.size)
    # The last iterate is within (tol |f| + local) / (1 - c) of the equilibrium, and one
    # more evaluation is returned.
    unsolved = (tol * of_z + 2.0 * local) / rest

    size = bound.size + 2.0 * at_zero
    error = HIGHER_ORDER * (2.0 * unsolved + 3.0 * unit * (bound.size + 2.0 * of_z))
    return LipschitzBound(bound.constant, bound.error + error, size + error)


def _gradient_error(layer: _Layer, size: Any) -> Any:
    """The rounding error of grad psi at states of a norm."""
    of_hidden = layer.hidden * size + layer.offset
    return of_hidden + layer.gradient * (size + layer.at_zero + of_hidden)


def _numbers(
    params: ConvexPotentialParams,
    sigma: Monotone,
    image_shape: tuple[int, int] | None,
    unit: float,
) -> _Layer:
    """The norms and errors of a potential, from float64 weights."""
    W, b, log_q = params
    if W.ndim == 4:
        require(image_shape, "image_shape", "be given for a convolution", image_shape)
    with jax.enable_x64(True):
        wide = jax.tree.map(jnp.asarray, params)
        sizes = wide._replace(W=jnp.abs(wide.W))
        scaling = np.asarray(potential_scaling(wide, image_shape))
        scaling_of_sizes = np.asarray(potential_scaling(sizes, image_shape))
        activated = np.asarray(sigma.value(wide.b))
        resting = float(sigma.value(jnp.zeros(())))

    if not np.all(np.isfinite(scaling)):
        return _Layer(math.inf, math.inf, math.inf, math.inf)

    # As in the layer, units without weights have no effect.
    present = scaling >= float(jnp.finfo(jnp.float32).tiny)
    safe = np.where(present, scaling, 1.0)
    pixels = 1 if image_shape is None or W.ndim == 2 else math.prod(image_shape)
    weights = math.sqrt(pixels) * np.where(present, safe**-0.5, 0.0)

    # The sums over the taps bound the symbol of the convolution at each frequency.
    taps = 1 if W.ndim == 2 else W.shape[0] * W.shape[1]
    matrix = np.abs(W) if W.ndim == 2 else np.sum(np.abs(W), axis=(0, 1)).T
    fan_out, fan_in = taps * matrix.shape[0], taps * matrix.shape[1]
    of_sizes = float(np.linalg.norm(weights[:, None] * matrix, 2)) / math.sqrt(pixels)

    if log_q is None:
        # of the squared Gram matrices of `matrix_norm_bound`
        off = 4.0 * _gamma(fan_in, unit) * math.sqrt(fan_in)
    else:
        # Terms of the entries of W W^T cancel, those of their weighted sum do not.
        cancelled = np.max(np.where(present, scaling_of_sizes / safe, 0.0), initial=0.0)
        terms = 4 * taps + len(b) + 16 + 4.0 * float(np.ptp(log_q))
        off = _gamma(fan_in, unit) * float(cancelled) + _gamma(terms, unit)

    # of 1 / T
    off = off / (1.0 - off) if off < 1.0 else math.inf

    rounded = ACTIVATION_UNITS * unit
    product = _gamma(fan_in + 1, unit) + rounded
    at_rest = rounded * abs(resting) * float(np.linalg.norm(weights))
    return _Layer(
        at_zero=float(np.linalg.norm(weights * activated)),
        hidden=product * of_sizes,
        offset=product * float(np.linalg.norm(weights * b)) + at_rest,
        gradient=off + 3.0 * unit + _gamma(fan_out, unit) * of_sizes,
    )


def _gamma(terms: int | float, unit: float) -> float:
    """The relative error of a sum of products with so many terms, in any order."""
    share = terms * unit
    return share / (1.0 - share) if share < 1.0 else math.inf
