"""Hyper-SET: attention spreads tokens on spheres, a feed-forward part aligns them."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, SIZE, checked, one_of
from unroll_jax.descent import Descent
from unroll_jax.energies.examples import DIM, Example, normal
from unroll_jax.energies.safeguard import safeguarded
from unroll_jax.energies.tokens import Tokens, on_tokens, sum_present
from unroll_jax.numerics import unit_powers

__all__ = ["HyperSetParams", "hyper_set", "hyper_set_example"]

FORMS = ("published", "gradient")


class HyperSetParams(NamedTuple):
    """Projections of the heads, W (heads, p, dim), and a dictionary, D (m, dim).

    Example:
      >>> import jax
      >>> layer = hyper_set(4, num_heads=2, head_dim=3, width=8)
      >>> params = jax.jit(layer.init)(jax.random.key(0))
      >>> params.W.shape, params.D.shape
      ((2, 3, 4), (8, 4))
    """

    W: Float[Array, "h p d"]
    D: Float[Array, "m d"]


@checked(
    dim=SIZE,
    num_heads=SIZE,
    head_dim=SIZE,
    width=SIZE,
    step_size=POSITIVE,
    form=one_of(FORMS),
    epsilon=POSITIVE,
)
def hyper_set(
    dim: int,
    *,
    num_heads: int,
    head_dim: int,
    width: int,
    step_size: float = 0.1,
    form: str = "published",
    epsilon: float = 1e-6,
) -> Descent:
    r"""Hyper-SET layer on tokens whose projections are normalised to spheres.

    With :math:`z_i^h = \sqrt p \, W_h y_i / |W_h y_i|`,
    :math:`u_i = \sqrt m \, D y_i / |D y_i|` and :math:`\beta = 1 / \sqrt p`,

    .. math:: E(Y) = \tfrac1\beta \sum_h \sum_i \log \sum_j \exp(\beta z_i^h . z_j^h)
                  - \tfrac12 \sum_i |relu(u_i)|^2 .

    The published step (``form="published"``) takes attention first and then the
    feed-forward part,

    .. math:: Y^{1/2} = Y - a \sum_h W_h^T (S_h + S_h^T) Z^h , \qquad
              Y' = Y^{1/2} + a D^T relu(U^{1/2}) ,

    with S_h the softmax over rows. It leaves out the derivative of the normalisation,
    and for some weights and tokens raises E at every step size (tests/energies hold an
    example). With ``form="gradient"`` the step is :math:`Y' = Y - a \nabla E(Y)`, which
    lowers E for small enough a. `safeguarded` finds such an a for every example.

    Args:
      dim, num_heads, head_dim, width: width d of the tokens, heads h, width p of each
        head's subspace, rows m of D.
      step_size, form: a > 0, unitless, and "published" or "gradient".
      epsilon: added to mean squares under the root, as in RMSNorm. It makes E smooth at
        0.

    Returns:
      A `Descent` with params `HyperSetParams`. ``x`` only marks absent tokens
      (`Anchor`).

    Source: Hu, Zou, Xu (2026), *Hyper-SET: Designing Transformers via Hyperspherical
    Energy Minimization*. Their public code has GELU in the step and ReLU in the energy
    that it plots. Here both have ReLU. Its step size is computed for each token and
    feature, and its RMSNorm before GELU has weights. Here a is one number, and norms
    have no weights.

    Example:
      >>> import jax
      >>> from unroll_jax import safeguarded
      >>> layer = hyper_set(4, num_heads=2, head_dim=3, width=8, form="gradient")
      >>> layer = safeguarded(layer)
      >>> params = jax.jit(layer.init)(jax.random.key(0))
      >>> y = jax.random.normal(jax.random.key(1), (5, 4))
      >>> energy, step = jax.jit(layer.energy), jax.jit(layer.step)
      >>> bool(energy(params, step(params, y)) < energy(params, y))
      True
    """

    def init(key: jax.Array) -> HyperSetParams:
        key_w, key_d = jax.random.split(key)
        scale = 1.0 / math.sqrt(dim)
        heads = scale * jax.random.normal(key_w, (num_heads, head_dim, dim))
        return HyperSetParams(heads, scale * jax.random.normal(key_d, (width, dim)))

    def energy(params: HyperSetParams, tokens: Tokens) -> Float[Array, "*batch"]:
        return _energy(params, tokens.y, tokens.present, epsilon)

    def gradient_step(params: HyperSetParams, tokens: Tokens) -> Array:
        def total(y: Array) -> Array:
            return jnp.sum(_energy(params, y, tokens.present, epsilon))

        return tokens.y - step_size * jax.grad(total)(tokens.y)

    def published_step(params: HyperSetParams, tokens: Tokens) -> Array:
        z, scores = _heads(params, tokens.y, tokens.present, epsilon)
        weights = jax.nn.softmax(scores, axis=-1)
        attended = (weights + weights.mT) @ z
        pull = jnp.einsum("...hip,hpd->...id", attended, params.W)
        half = tokens.y - step_size * pull
        features = jax.nn.relu(_normalise(half @ params.D.T, epsilon))
        return half + step_size * features @ params.D

    step = published_step if form == "published" else gradient_step
    return on_tokens(init, energy, step, dim=dim)


def hyper_set_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Gradient steps, safeguarded."""
    layer = hyper_set(
        DIM, num_heads=2, head_dim=3, width=6, form="gradient", epsilon=0.01
    )
    return safeguarded(layer, halvings=30), normal(key, 1, batch)[0], None


def _normalise(rows: Array, epsilon: float) -> Array:
    """Divides each row by the root of its mean square plus epsilon."""
    # The larger of a row and of the smoothing is brought near 1.
    down, _ = unit_powers(rows, -1, math.sqrt(epsilon))
    scaled = rows * down
    square = jnp.mean(scaled**2, axis=-1, keepdims=True)
    return scaled / jnp.sqrt(square + (math.sqrt(epsilon) * down) ** 2)


def _heads(
    params: HyperSetParams, y: Array, present, epsilon: float
) -> tuple[Array, Array]:
    """Returns z (*batch, h, n, p) and the logits of attention (*batch, h, n, n).

    Absent tokens have no weight.
    """
    z = _normalise(jnp.einsum("...nd,hpd->...hnp", y, params.W), epsilon)
    scores = jnp.einsum("...hip,...hjp->...hij", z, z) / math.sqrt(z.shape[-1])
    if present is None:
        return z, scores
    both = present[..., None, :, None] & present[..., None, None, :]
    # An absent token sees only itself, as its row needs a softmax. z is 0 there.
    return z, jnp.where(both | jnp.eye(y.shape[-2], dtype=bool), scores, -jnp.inf)


def _energy(
    params: HyperSetParams, y: Array, present, epsilon: float
) -> Float[Array, "*batch"]:
    z, scores = _heads(params, y, present, epsilon)
    spread = jnp.sum(jax.nn.logsumexp(scores, axis=-1), axis=-2)
    spread = math.sqrt(z.shape[-1]) * spread
    features = jax.nn.relu(_normalise(y @ params.D.T, epsilon))
    aligned = 0.5 * jnp.sum(features**2, axis=-1)
    return sum_present(spread - aligned, present)
