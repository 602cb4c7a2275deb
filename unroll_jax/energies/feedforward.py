"""The quadratic energy of a token's features, and the linear layer that lowers it."""

import functools
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import FINITE, POSITIVE, SIZE, checked, require
from unroll_jax.arrays import check_square
from unroll_jax.descent import Descent
from unroll_jax.energies.examples import DIM, Example, normal
from unroll_jax.energies.proximal.operators import resolve_proximal
from unroll_jax.energies.proximal.penalty import Proximal, penalty_of_present
from unroll_jax.energies.tokens import Tokens, on_tokens
from unroll_jax.numerics import compute_dtype, linear, square_range

__all__ = ["FeedForwardParams", "clip_spectrum", "feedforward", "feedforward_example"]

# Spectral norm of W_f at initialisation: the upper end of the interval that the paper
# clips eigenvalues to.
INITIAL_NORM = 0.95


class FeedForwardParams(NamedTuple):
    """W_f (d, d). Only its symmetric part counts.

    Example: see `feedforward`.
    """

    W_f: Float[Array, "d d"]


@checked(dim=SIZE, step_size=POSITIVE)
def feedforward(
    dim: int,
    *,
    step_size: float = 0.5,
    phi: str | Proximal = "identity",
    spectrum: tuple[float, float] | None = None,
) -> Descent:
    r"""Feed-forward layer as a (proximal) gradient step on a quadratic energy.

    .. math:: E(Y) = \tfrac12 Tr(Y W_f Y^T) + \tfrac12 |Y - B|_F^2 + \phi(Y) , \qquad
              Y' = prox_{a \phi}( Y - a ( Y W_f^+ + Y - B ) ) , \quad
              W_f^+ = (W_f + W_f^T) / 2 ,

    with B = x (0 when x is None). The step never raises E when :math:`a \le 1 / L`,
    :math:`L = \max(0, \lambda_{max}(W_f^+)) + 1`. Initially L <= 1.95, so the default
    step qualifies, and ``spectrum`` keeps it so.

    Args:
      dim: width d of the tokens.
      step_size: a > 0, the length of the gradient step (not a multiple of 1/L).
      phi: a name of `PROXIMALS`, or a `Proximal`. The name of an activation means that
        the layer applies it as it is: its penalty is the one of `activation` at this
        step size.
      spectrum: (lower, upper), to use ``clip_spectrum(W_f, lower, upper)`` for W_f. It
        costs a decomposition of a (d, d) matrix in each energy and step. With tied
        layers, clip once before them instead.

    Returns:
      A `Descent` with params `FeedForwardParams`. ``x`` is B, broadcastable to y, or an
      `Anchor`, or None.

    Warns:
      UserWarning: if ``spectrum`` allows eigenvalues for which step_size is beyond 1 /
        L.

    Source: Yang, Huang, Wipf (2022), eqs. 14 to 16 and 20 with prox scaled by the step
    size, as proximal descent needs. The authors' code takes a = 1 with eigenvalues up
    to 0.95, which is beyond 1 / L = 0.51.

    Example:
      >>> import jax
      >>> layer = feedforward(3, phi="relu")
      >>> params: FeedForwardParams = jax.jit(layer.init)(jax.random.key(0))
      >>> y = jax.random.uniform(jax.random.key(1), (5, 3))
      >>> energy, step = jax.jit(layer.energy), jax.jit(layer.step)
      >>> bool(energy(params, step(params, y)) < energy(params, y))
      True
    """
    proximal = resolve_proximal(phi, step_size)
    if spectrum is not None:
        _check_spectrum(spectrum, step_size)

    def matrix(params: FeedForwardParams) -> Array:
        return params.W_f if spectrum is None else clip_spectrum(params.W_f, *spectrum)

    def init(key: jax.Array) -> FeedForwardParams:
        W_f = jax.nn.initializers.xavier_normal()(key, (dim, dim))
        return FeedForwardParams(W_f * (INITIAL_NORM / jnp.linalg.norm(W_f, 2)))

    def energy(params: FeedForwardParams, tokens: Tokens) -> Float[Array, "*batch"]:
        y, B, present, _ = tokens
        largest = jnp.max(jnp.abs(y), axis=(-2, -1), keepdims=True, initial=0.0)
        down, up = square_range(largest, y.shape[-2] * dim)
        scaled = y * down
        distance = scaled
        if B is not None:
            distance = scaled - B * down

        terms = linear(scaled, matrix(params)) * scaled + distance**2
        quadratic = 0.5 * jnp.sum(terms, axis=(-2, -1))
        quadratic = quadratic * up[..., 0, 0] * up[..., 0, 0]
        return quadratic + penalty_of_present(proximal, y, present)

    def step(params: FeedForwardParams, tokens: Tokens) -> Array:
        y, B, _, _ = tokens
        W_f = matrix(params)
        scaled_identity = (1.0 - step_size) * jnp.eye(dim, dtype=y.dtype)
        after = linear(y, scaled_identity - 0.5 * step_size * (W_f + W_f.T))
        if B is not None:
            after = after + step_size * B
        return proximal.prox(after, step_size)

    return on_tokens(init, energy, step, dim=dim)


def clip_spectrum(
    W_f: Float[Array, "d d"], lower: float = 0.0, upper: float = 0.95
) -> Float[Array, "d d"]:
    r"""Returns the symmetric matrix nearest to W_f with eigenvalues in an interval.

    With :math:`(W_f + W_f^T)/2 = Q \Lambda Q^T` it is :math:`Q \, clip(\Lambda) Q^T`.
    The derivative uses divided differences of clip (Daleckii and Krein). They stay in
    [0, 1] where eigenvalues meet. The usual derivative of the eigenvectors divides by
    the gaps between eigenvalues, and is not finite there.

    Args:
      W_f: square matrix. Only its symmetric part counts. The result is differentiable
        once in it.
      lower, upper: finite ends of the interval, lower < upper.

    Source: Yang, Huang, Wipf (2022), Section 6, have ``clip_spectrum(W_f @ W_f.T)``.

    Example:
      >>> import jax.numpy as jnp
      >>> clip_spectrum(jnp.diag(jnp.array([-2.0, 0.5, 3.0]))).diagonal().tolist()
      [0.0, 0.5, 0.949999988079071]
    """
    _check_interval(lower, upper)
    check_square("W_f", W_f)
    wide = W_f.astype(compute_dtype(W_f))
    return _clip_eigenvalues(lower, upper, 0.5 * (wide + wide.T)).astype(W_f.dtype)


def feedforward_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """The feed-forward layer. Its condition holds for every ``init``."""
    y, x = normal(key, 2, batch)
    return feedforward(DIM), y, x


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _clip_eigenvalues(lower: float, upper: float, symmetric: Array) -> Array:
    values, basis = jnp.linalg.eigh(symmetric)
    return (basis * jnp.clip(values, lower, upper)) @ basis.T


@_clip_eigenvalues.defjvp
def _(
    lower: float, upper: float, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    (symmetric,), (tangent,) = primals, tangents
    values, basis = jnp.linalg.eigh(symmetric)
    clipped = jnp.clip(values, lower, upper)
    # Divided differences of clip, and its derivative where eigenvalues are equal.
    gaps = values[:, None] - values[None, :]
    rises = clipped[:, None] - clipped[None, :]
    inside = ((values >= lower) & (values <= upper)).astype(values.dtype)
    equal = gaps == 0.0
    slopes = jnp.where(equal, inside[:, None], rises / jnp.where(equal, 1.0, gaps))
    in_basis = slopes * (basis.T @ tangent @ basis)
    return (basis * clipped) @ basis.T, basis @ in_basis @ basis.T


@checked(lower=FINITE, upper=FINITE)
def _check_interval(lower: float, upper: float) -> None:
    got = f"lower={lower}, upper={upper}"
    require(lower < upper, "spectrum", "be finite with lower < upper", got)


def _check_spectrum(spectrum: Any, step_size: float) -> None:
    if not isinstance(spectrum, tuple | list) or len(spectrum) != 2:
        raise TypeError(f"spectrum must be a pair of numbers or None, got {spectrum!r}")
    _check_interval(*spectrum)
    smoothness = max(0.0, spectrum[1]) + 1.0
    if step_size * smoothness > 1.0:
        limit = f"1/L = {1.0 / smoothness:.3g} for eigenvalues up to {spectrum[1]}"
        warnings.warn(
            f"step_size={step_size} is beyond {limit}: the step may raise its energy",
            stacklevel=4,
        )
