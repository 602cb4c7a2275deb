"""Layer normalisation, on half the squared distance to a sphere of centred tokens."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, SHARE, at_least, checked
from unroll_jax.descent import Descent
from unroll_jax.energies.examples import DIM, Example, normal
from unroll_jax.energies.tokens import Tokens, no_params, on_tokens, sum_present
from unroll_jax.numerics import safe_sqrt, unit_powers

__all__ = ["layer_norm", "layer_norm_example"]


@checked(dim=at_least(2), radius=POSITIVE, epsilon=at_least(0.0), step_size=SHARE)
def layer_norm(
    dim: int,
    *,
    radius: float | None = None,
    epsilon: float = 0.0,
    step_size: float = 1.0,
) -> Descent:
    r"""Layer normalisation (without scale and bias) as two gradient steps.

    With m the mean of a token y of width d, u = y - m 1, R the radius and
    :math:`c = d \epsilon`,

    .. math:: E(Y) = \sum_{tokens} \frac{1}{2 d} (1^T y)^2 + \tfrac12 |u|^2
                  - R \sqrt{|u|^2 + c} + \tfrac12 R^2 , \qquad
              y' = (1 - a) y + a R \frac{u}{\sqrt{|u|^2 + c}} .

    The first term depends only on m, the others only on u. Centring, y - m 1, is a
    gradient step of length 1 on the first, and rescaling u one on the others. Together
    they are y - a grad E(y). No step ever raises E, for a in (0, 1]:
    :math:`-R \sqrt{|u|^2 + c}` is concave along u, so E lies below a quadratic of
    curvature 1.

    With epsilon = 0, :math:`E = \tfrac12 (m \sqrt d)^2 + \tfrac12 (|u| - R)^2` is half
    the squared distance to the sphere of centred tokens of norm R. The undamped step
    projects onto it, where E = 0. A token whose entries are all equal has no nearest
    point. Its u stays 0.

    Args:
      dim: width d of the tokens, at least 2.
      radius: R > 0, the norm of a normalised token. None is sqrt(d), as in
        `flax.linen.LayerNorm`.
      epsilon: added to the variance |u|^2 / d, as in flax. 0 is the exact projection.
      step_size: a in (0, 1], unitless. 1 is the undamped step.

    Returns:
      A `Descent` without parameters (None). ``x`` only marks absent tokens (`Anchor`).

    Source: Yang, Huang, Wipf (2022), supplement F.3, without the factor 1 / (2 d), and
    with R = 1.

    Example:
      >>> import jax
      >>> layer = layer_norm(4)
      >>> y = jax.random.normal(jax.random.key(0), (5, 4))
      >>> round(float(layer.energy(None, layer.step(None, y))), 6)
      0.0
    """
    norm = math.sqrt(dim) if radius is None else radius

    def energy(params: None, tokens: Tokens) -> Float[Array, "*batch"]:
        mean, _, length, up = _split(tokens.y, epsilon)
        # |u|^2 / 2 - R sqrt(|u|^2 + c) + R^2 / 2, as a square: nothing cancels near the
        # sphere.
        of_centred = 0.5 * (length * up - norm) ** 2 - 0.5 * dim * epsilon
        per_token = 0.5 * dim * mean**2 + of_centred
        return sum_present(per_token[..., 0], tokens.present)

    def step(params: None, tokens: Tokens) -> Array:
        # The factors of u and of its norm cancel.
        _, centred, length, _ = _split(tokens.y, epsilon)
        normed = centred * (norm / jnp.where(length == 0.0, 1.0, length))
        return (1.0 - step_size) * tokens.y + step_size * normed

    return on_tokens(no_params, energy, step, dim=dim)


def layer_norm_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Layer normalisation."""
    return layer_norm(DIM), normal(key, 1, batch)[0], None


def _split(y: Array, epsilon: float) -> tuple[Array, Array, Array, Array]:
    """Returns m, u / up, sqrt(|u|^2 + c) / up, and the factor up of each token.

    The factor is a power of two that brings the token, or the smoothing if it is
    larger, near 1. Squares then do not over- or underflow.
    """
    down, up = unit_powers(y, -1, math.sqrt(epsilon))
    scaled = y * down
    mean = jnp.mean(scaled, axis=-1, keepdims=True)
    centred = scaled - mean
    square = jnp.sum(centred**2, axis=-1, keepdims=True)
    # Without smoothing nothing is added: 0 times an infinite square would be NaN.
    if epsilon > 0.0:
        square = square + y.shape[-1] * (math.sqrt(epsilon) * down) ** 2
    return mean * up, centred, safe_sqrt(square), up
