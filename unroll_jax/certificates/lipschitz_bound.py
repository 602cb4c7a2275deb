"""Lipschitz constants of chains of layers, with the rounding error of their
evaluation."""

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, check, in_interval, one_of, require
from unroll_jax.energies.convex_potential import (
    ConvexPotentialParams,
    potential_scaling,
    relative_q,
    smallest_overlap,
    transposed_linear,
)
from unroll_jax.energies.equilibrium.monotone import Monotone, resolve_monotone
from unroll_jax.energies.equilibrium.opteq_params import opteq_linear
from unroll_jax.norm_bounds import conv_norm_bound

__all__ = ["LipschitzBound", "Part", "lipschitz"]

Part = (
    ConvexPotentialParams
    | Float[Array, "_ _"]
    | Float[np.ndarray, "_ _"]
    | Callable[[Array], Array]
)

# (function of sigma, a layer and arrays, layer, arrays) -> its value on the host
Run = Callable[..., Any]

# Units of rounding that an activation may be off, relative to |sigma(t)| + |sigma(0)|.
ACTIVATION_UNITS = 16
# Entries that a function among the parts sums at most: pooling of 4 x 4 windows.
MAX_WINDOW = 16
# Units of rounding of q_j / q_i, whose logarithm is at most 40, and of 1 / T.
RATIO_UNITS, INVERSE_UNITS = 200, 4
# `conv_norm_bound` is then within 0.01% of the norm.
SQUARINGS = 14
# Iterations of a map of rate 1/2: to float64's rounding.
ITERATIONS = 60
# For products of rounding errors, and for the rounding of these float64 bounds.
SLACK = 1.01


class LipschitzBound(NamedTuple):
    """Bounds of a map f, and of its evaluation in floating point.

    f is the chain in exact arithmetic, but for T: the numbers T are those that the
    evaluation has. All numbers but the first are of each example, (n,).

    Attributes:
      constant: :math:`|f(x) - f(x')| \\le constant \\, |x - x'|`.
      error: |computed f(x') - f(x')| for all x' within the radius of x, Euclidean.
      size: |computed f(x')|, at most.
      radius: of the balls.

    Example: see `lipschitz`.
    """

    constant: float
    error: Any
    size: Any
    radius: Any


class _Reached(NamedTuple):
    """States behind a part of the chain.

    Attributes:
      z: at the inputs, in float64, (n, ...).
      reach: |f(x') - z|, at most, for x' in the ball.
      error, constant: as in `LipschitzBound`.
    """

    z: np.ndarray
    reach: np.ndarray
    error: np.ndarray
    constant: float

    def ball(self) -> np.ndarray:
        """The distance of computed states from z, at most."""
        return self.reach + self.error


class _Potential(NamedTuple):
    """A potential in float64 numbers; those of hidden units in the shape of b.

    Attributes:
      params: of the layer.
      inverse: 1 / T.
      root: the square root of the computed 1 / T, at most.
      difference: relative, of the computed 1 / T from 1 / T.
      of_sizes: the norm of root |W|.
      smoothness: the norm of root W, squared: of the Hessian with the computed T.
      products, transposed: relative errors of W z + b, and of products with W^T.
      unit: of rounding.
    """

    params: ConvexPotentialParams
    inverse: Any
    root: Any
    difference: Any
    of_sizes: float
    smoothness: float
    products: float
    transposed: float
    unit: float


def lipschitz(
    *parts: Part,
    x: Float[Array, "n *event"] | Float[np.ndarray, "n *event"],
    radius: float | Float[Array, " n"] | Float[np.ndarray, " n"],
    step_size: float = 2.0,
    strength: float | None = None,
    activation: str | Monotone = "relu",
    tol: float = 1e-5,
    dtype: Any = "float32",
) -> LipschitzBound:
    r"""A Lipschitz constant of a chain of layers, and a bound of its rounding errors in
    balls around examples.

    Steps of `convex_potential` and reflections of `convex_equilibrium` have 1, a matrix
    has its norm; the constant of the chain is the product. Rounding errors of all
    products and sums, in any order of summation, are bounded with the float64 states
    of the examples and the radius, and added up over the layers.

    T is computed from the weights only, the same for all inputs of a program. Its
    rounding makes no error of f, which has the rounded T, but raises the constant:
    above 1 by about 1e-4 a layer in float32 if W is nearly orthogonal, else not at all.

    Args:
      *parts: the layers in order. `ConvexPotentialParams`, of one layer or stacked
        along a leading axis; a matrix M for ``z @ M`` (orthonormal maps, 1 x 1
        convolutions); or a function of the states (n, ...) that is 1-Lipschitz and sums
        at most 16 entries: `space_to_depth`, `pad_channels`, `pool`, biases, ReLU.
      x: the examples, (n, ...).
      radius: of the balls, at least 0. Radii beyond are not certified.
      step_size, activation: of the layers, as in `convex_potential`.
      strength: c of `convex_equilibrium`; the layers are then x - 2 z.
      tol: of `equilibrium`, started at 0, for converged examples.
      dtype: of the network, "float32" or "float64". Products of float32 must have full
        precision, as they have on CPUs.

    Returns:
      A `LipschitzBound`, for `certified_radius`.

    Raises:
      TypeError: if a part or x is traced, or a part of another kind.
      ValueError: if a number is out of range.

    Source: Araujo et al. (2023) for the steps; the errors follow Higham (2002),
    "Accuracy and stability of numerical algorithms", Section 3.1.

    Example:
      >>> import jax
      >>> from unroll_jax.energies import convex_potential
      >>> layer = convex_potential(4, 8)
      >>> keys = jax.random.split(jax.random.key(0), 6)
      >>> x = jax.numpy.ones((1, 4))
      >>> bound = lipschitz(jax.vmap(layer.init)(keys), x=x, radius=1.0)
      >>> round(bound.constant, 2), bool(0.0 < bound.error[0] < 1e-4)
      (1.0, True)
    """
    # not by `checked`, which does not know *parts
    check("step_size", step_size, in_interval("(0, 2]"))
    check("strength", strength, in_interval("(0, 1/2]"), optional=True)
    check("tol", tol, at_least(0.0))
    check("dtype", str(jnp.dtype(dtype)), one_of(("float32", "float64")))
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((parts, x, radius))):
        raise TypeError(
            "parts, x and radius must be known, got a traced value; call lipschitz"
            " outside of jax.jit"
        )
    radius = np.array(radius, float)  # a copy: the bound keeps it
    require(np.all(radius >= 0.0), "radius", "be at least 0", radius)

    sigma = resolve_monotone(activation).value
    # A function of the caller's may change between calls, and may be NumPy's.
    call = _compiled if isinstance(activation, str) else _call

    def run(*args: Any) -> Any:
        return jax.device_get(call(sigma, *args))

    unit = float(jnp.finfo(dtype).eps) / 2
    with jax.enable_x64(True), np.errstate(all="ignore"):
        z = _rounded(x, dtype)
        reach = np.broadcast_to(radius, z.shape[:1])
        state = _Reached(z, reach, np.zeros_like(reach), 1.0)
        for part in _single(parts, dtype):
            if callable(part):
                state = _behind_function(part, state, unit)
            elif not isinstance(part, ConvexPotentialParams):
                state = _behind_matrix(part, state, unit)
            else:
                layer = _potential(part, state.z, unit)
                if strength is None:
                    state = _behind_step(run, layer, state, step_size)
                else:
                    state = _behind_equilibrium(run, layer, state, strength, tol)
        size = SLACK * (_lengths(state.z) + state.ball())
    return LipschitzBound(float(state.constant), state.error, size, reach)


def _rounded(array: Any, dtype: Any) -> np.ndarray:
    """What the network gets of an array, in float64."""
    return np.asarray(array, dtype).astype(float)


def _single(parts: tuple[Any, ...], dtype: Any) -> Iterator[Any]:
    """The parts with stacked layers one by one, as float64 arrays."""
    for part in parts:
        if callable(part):
            yield part
            continue
        is_layer = isinstance(part, ConvexPotentialParams)
        if not is_layer:
            allowed = "be ConvexPotentialParams, matrices or functions"
            shape = getattr(part, "shape", None)
            got = type(part).__name__ if shape is None else f"shape {shape}"
            require(shape is not None and len(shape) == 2, "parts", allowed, got)
        wide = jax.tree.map(lambda leaf: _rounded(leaf, dtype), part)
        stacked = is_layer and wide.b.ndim > 1
        for place in range(len(wide.b)) if stacked else [...]:
            yield jax.tree.map(operator.itemgetter(place), wide)


def _behind_function(
    function: Callable[..., Any], state: _Reached, unit: float
) -> _Reached:
    """States behind a function that is 1-Lipschitz."""
    after = function(jnp.asarray(state.z))
    if not isinstance(after, jax.Array | np.ndarray):
        raise TypeError(f"parts must return arrays, got {type(after).__name__}")
    z = np.asarray(after)
    size = np.maximum(_lengths(state.z), _lengths(z)) + state.ball()
    error = state.error + SLACK * _gamma(MAX_WINDOW, unit) * size
    return state._replace(z=z, error=error)


def _behind_matrix(M: np.ndarray, state: _Reached, unit: float) -> _Reached:
    _check_fits(M.shape, state.z, len(M))
    constant = _norm(M)
    sizes = np.abs(M)
    of_sizes = _lengths(np.abs(state.z) @ sizes) + _norm(sizes) * state.ball()
    return _Reached(
        state.z @ M,
        constant * state.reach,
        constant * state.error + SLACK * _gamma(len(M), unit) * of_sizes,
        constant * state.constant,
    )


def _check_fits(shape: tuple[int, ...], z: np.ndarray, width: int) -> None:
    wanted = f"fit states of shape {z.shape}"
    require(z.shape[-1] == width, "parts", wanted, f"weights of shape {shape}")


def _behind_step(
    run: Run, layer: _Potential, state: _Reached, step_size: float
) -> _Reached:
    """States behind z - a grad psi(z)."""
    moved = step_size * run(_gradient, layer, state.z)
    local, drift, size = run(_gradient_errors, layer, state.z, state.ball())
    rounding = 3.0 * layer.unit * (_lengths(state.z) + state.ball() + step_size * size)
    # The Jacobian has eigenvalues in [1 - a |Hessian|, 1].
    constant = max(1.0, step_size * layer.smoothness - 1.0)
    return _Reached(
        state.z - moved,
        constant * state.reach + step_size * drift,
        constant * state.error + SLACK * (step_size * local + rounding),
        constant * state.constant,
    )


def _behind_equilibrium(
    run: Run, layer: _Potential, state: _Reached, strength: float, tol: float
) -> _Reached:
    """States behind x - 2 z with z = c grad psi(z + x)."""
    x = state.z
    z = np.zeros_like(x)
    for _ in range(ITERATIONS):
        z = strength * run(_gradient, layer, z + x)

    rate = strength * layer.smoothness
    # At rates of 1 and above there need be no equilibrium.
    slope = rate / (1.0 - rate) if rate < 1.0 else math.inf
    size = _lengths(z) + slope * state.ball()
    unsolved = drift = 0.0
    # The second time with the distance of the last iterates from the equilibrium.
    for _ in range(2):
        ball = (1.0 + slope) * state.ball() + 2.0 * unsolved
        local, drift, _ = run(_gradient_errors, layer, z + x, ball)
        local = strength * local + 3.0 * layer.unit * (size + _lengths(x) + ball)
        # The last iterate is within (tol |f| + local) / (1 - rate) of the equilibrium,
        # and one more evaluation is returned.
        unsolved = (1.0 + slope / strength) * (tol * size + 2.0 * local)

    rounding = 3.0 * layer.unit * (_lengths(x) + state.ball() + 2.0 * size)
    constant = max(1.0, 2.0 * slope - 1.0)
    return _Reached(
        x - 2.0 * z,
        constant * state.reach + 2.0 * slope * drift,
        constant * state.error + SLACK * (2.0 * unsolved + rounding),
        constant * state.constant,
    )


_conv_norm_bound = jax.jit(
    conv_norm_bound, static_argnames=("image_shape", "num_squarings")
)
_relative_q = jax.jit(relative_q)
_scaling = jax.jit(potential_scaling, static_argnums=1)


def _potential(params: ConvexPotentialParams, z: np.ndarray, unit: float) -> _Potential:
    """The norms of a potential on states like z."""
    W, b, log_q = params
    is_dense = W.ndim == 2
    _check_fits(W.shape, z, W.shape[-1 if is_dense else -2])
    images = "fit the shape of states, images for a kernel"
    require(is_dense or z.ndim == 4, "parts", images, z.shape)
    image_shape = None if is_dense else z.shape[1:3]
    taps = math.prod(W.shape[:-2])
    # The sums over the taps bound the symbol of the convolution at each frequency.
    matrix = np.abs(W) if is_dense else np.abs(W).sum((0, 1)).T
    fan_out, fan_in = (taps * size for size in matrix.shape)

    T = np.asarray(_scaling(params, image_shape))
    both = unit + np.finfo(float).eps  # T is rounded here too
    if log_q is None:
        # of the squared Gram matrices of `matrix_norm_bound`
        least = T * (1.0 - 4.0 * _gamma(fan_in, both) * math.sqrt(fan_in))
        overlap = T
    else:
        # Terms of the entries of W W^T cancel, except on the diagonal. Those of their
        # weighted sum do not.
        terms = 4 * taps + len(b) + RATIO_UNITS
        of_sizes = np.asarray(_scaling(params._replace(W=np.abs(W)), image_shape))
        lost = _gamma(fan_in, both) * of_sizes + _gamma(terms, both) * T
        squares = (W**2).sum(1 if is_dense else (0, 1, 2))
        least = np.maximum(T - lost, (1.0 - _gamma(fan_in + terms, both)) * squares)
        overlap = T * np.asarray(_relative_q(log_q))

    # No certificate where a unit may be too small for an effect, or 1 / T be 0.
    limits = np.finfo(np.float32 if unit > 1e-10 else float)
    within = (overlap > 2.0 * smallest_overlap(unit)) & (0.1 * limits.max > T)
    least = np.where(within, least, np.nan)
    absent = T == 0.0
    inverse = np.where(absent, 0.0, 1.0 / T)
    # of the computed 1 / T to it, at most
    ratio = T / np.where(absent, 1.0, least) * (1.0 + INVERSE_UNITS * both)
    root = np.sqrt(ratio * inverse)

    # W^T T^-1 W <= I, and the ratio
    smoothness = np.max(ratio, initial=0.0)
    if is_dense:
        smoothness = min(smoothness, _norm(root[:, None] * W) ** 2)
    else:
        norm = _conv_norm_bound(root * W, image_shape, num_squarings=SQUARINGS)
        smoothness = min(smoothness, float(norm) ** 2)
    return _Potential(
        params,
        inverse,
        root,
        difference=ratio - 1.0,
        of_sizes=_norm(root[:, None] * matrix),
        smoothness=smoothness,
        products=_gamma(fan_in + 1, unit),
        transposed=_gamma(fan_out + 1, unit),
        unit=unit,
    )


def _call(sigma: Callable[[Array], Array], function: Any, *args: Any) -> Any:
    return function(sigma, *jax.tree.map(jnp.asarray, args))


_compiled = jax.jit(_call, static_argnums=(0, 1))


def _gradient(sigma: Callable[[Array], Array], layer: _Potential, z: Array) -> Array:
    """grad psi(z) with the exact T."""
    W, b, _ = layer.params
    activated = sigma(opteq_linear(W, z) + b)
    return transposed_linear(W, layer.inverse * activated)


def _gradient_errors(
    sigma: Callable[[Array], Array], layer: _Potential, z: Array, ball: Array
) -> tuple[Array, Array, Array]:
    """Rounding error of grad psi at states in a ball around z, its change at z by the
    rounding of T, and its norm in the ball."""
    W, b, _ = layer.params
    sizes = jnp.abs(W)
    gain = jnp.sqrt(layer.smoothness)
    activated = jnp.abs(sigma(opteq_linear(W, z) + b))
    resting = jnp.abs(sigma(jnp.zeros_like(activated)))

    # Norms weighted by T^-1/2: of W z + b, of its activation, of the products with W^T.
    terms = opteq_linear(sizes, jnp.abs(z)) + jnp.abs(b)
    hidden = _lengths(layer.root * terms) + layer.of_sizes * ball
    hidden = layer.products * hidden
    size = _lengths(layer.root * activated) + gain * ball + hidden
    rounded = size + _lengths(layer.root * resting)
    rounded = ACTIVATION_UNITS * layer.unit * rounded
    back = _lengths(transposed_linear(sizes, layer.root**2 * activated))
    back = back + layer.of_sizes * (gain * ball + hidden + rounded)

    error = gain * (hidden + rounded) + layer.transposed * back
    drift = gain * _lengths(layer.root * layer.difference * activated)
    return error, drift, gain * size


def _lengths(z: Any) -> Any:
    """The Euclidean norm of each example, (n,)."""
    return (z**2).sum(axis=tuple(range(1, z.ndim))) ** 0.5


def _norm(M: np.ndarray) -> float:
    """The spectral norm, rounded up; NaN for weights that are not finite."""
    if not np.all(np.isfinite(M)):
        return math.nan
    units = sum(M.shape) * np.finfo(float).eps
    return np.linalg.norm(M, 2) * (1.0 + units)


def _gamma(terms: int | float, unit: float) -> float:
    """The relative error of a sum of products with so many terms, in any order."""
    share = terms * unit
    return share / (1.0 - share) if share < 1.0 else math.inf
