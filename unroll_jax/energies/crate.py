"""CRATE: attention within subspaces and sparse coding, on the sparse rate reduction."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, SHARE, SIZE, at_least, checked, one_of
from unroll_jax.descent import Descent
from unroll_jax.energies.examples import DIM, Example, normal
from unroll_jax.energies.fast_weights import damped_inverse
from unroll_jax.energies.proximal.operators import nonnegative_soft_threshold
from unroll_jax.energies.proximal.penalty import penalty_of_present
from unroll_jax.energies.tokens import Tokens, on_tokens
from unroll_jax.spectral import norm

__all__ = ["CrateParams", "crate", "crate_example"]

FORMS = ("published", "proximal")


class CrateParams(NamedTuple):
    """Parameters of `crate`.

    Attributes:
      U: (heads, dim, p), bases of the subspaces.
      D: (dim, dim), the dictionary of the published step, else None.

    Example:
      >>> import jax
      >>> layer = crate(4, num_heads=2, head_dim=2)
      >>> params = jax.jit(layer.init)(jax.random.key(0))
      >>> params.U.shape, params.D.shape
      ((2, 4, 2), (4, 4))
    """

    U: Float[Array, "h d p"]
    D: Float[Array, "d d"] | None


@checked(dim=SIZE, num_heads=SIZE, head_dim=SIZE, form=one_of(FORMS))
@checked(sparsity=at_least(0.0), precision=POSITIVE, step_size=SHARE, compression=SHARE)
def crate(
    dim: int,
    *,
    num_heads: int,
    head_dim: int,
    form: str = "published",
    sparsity: float = 0.1,
    precision: float = 0.5,
    step_size: float | None = None,
    compression: float | None = None,
) -> Descent:
    r"""CRATE layer on the sparse rate reduction of its tokens Z.

    .. math:: E(Z) = \sum_k R_p(Z U_k) - R_d(Z) + \lambda |Z|_1
                  \text{ for } Z \ge 0 , \qquad
              R_m(Z) = \tfrac12 \log\det( I + \tfrac{m}{n \epsilon^2} Z^T Z ) ,

    in nats, with n the number of tokens. The code is short within the subspaces and
    long in the space of all tokens.

    The published step (``form="published"``) is multi-head subspace attention, then an
    ISTA step of size eta on D,

    .. math:: Z^{1/2} = (1 - w) Z + w A , \quad
              A = \sum_k softmax\big( (Z U_k) (Z U_k)^T / \sqrt p \big)
                  Z U_k U_k^T , \qquad
              Z' = relu\big( Z^{1/2} + \eta ( Z^{1/2} D - Z^{1/2} D^T D )
                  - \eta \lambda \big) ,

    with w = ``compression``. The public code has :math:`Z^{1/2} = Z + A`
    (``compression=None``). Neither half is a gradient step on E. With U_k that are
    together an orthonormal basis, the paper's first half lowers :math:`\sum_k R_p` on
    all tokens of our tests, and the public code's raises it
    (tests/energies/test_field.py).

    With ``form="proximal"`` the step is the proximal gradient step on E itself,

    .. math:: Z' = relu\big( Z - a \nabla ( \textstyle\sum_k R_p(Z U_k) - R_d(Z) )
                  - a \lambda \big) , \qquad
              a = \frac{step\_size}{L} , \quad
              L = \tfrac{p}{n \epsilon^2} \textstyle\sum_k |U_k|_2^2
                  + \tfrac{2 d}{n \epsilon^2} .

    It never raises E. With :math:`M = I + c Z Z^T` and :math:`S = Z V^T + V Z^T`, the
    second derivative of :math:`\tfrac12 \log\det M` along V is
    :math:`c \, tr(M^{-1} V V^T) - \tfrac{c^2}{2} tr(M^{-1} S M^{-1} S)`. It is at most
    :math:`c |V|^2`, and at least :math:`-2 c |V|^2` because
    :math:`|M^{-1/2} Z|_2 \le c^{-1/2}`. The terms of E sum to at most L.

    Args:
      dim, num_heads, head_dim: width d of the tokens, number of subspaces, width p of
        each.
      form: "published" or "proximal".
      sparsity: lambda >= 0, nats per unit of a token.
      precision: epsilon > 0, the distortion up to which tokens are coded, in units of
        the tokens.
      step_size: eta of ISTA (None is the public code's .1), or the multiple of 1 / L,
        in (0, 1] (None is 1).
      compression: w of the published form. None adds A to Z, as the public code does.

    Returns:
      A `Descent` with `CrateParams`. E is infinite at negative entries, and ``x`` only
      marks absent tokens (`Anchor`). Determinants come from singular values: tokens
      may be up to 1e6 :math:`\epsilon` in float32, however near to collinear.

    Source: Yu et al. (2023), *White-Box Transformers via Sparse Rate Reduction*, eqs.
    1, 11 to 17, with |Z|_1 for the number of nonzeros, as their ISTA has. The published
    step follows the public code, without its layer norms and with the output projection
    tied to U, as in the paper. The proximal step and its proof are ours.

    Example:
      >>> import jax
      >>> layer = crate(4, num_heads=2, head_dim=2, form="proximal")
      >>> params = jax.jit(layer.init)(jax.random.key(0))
      >>> y = jax.random.uniform(jax.random.key(1), (5, 4))
      >>> energy, step = jax.jit(layer.energy), jax.jit(layer.step)
      >>> bool(energy(params, step(params, y)) < energy(params, y))
      True
    """
    published = form == "published"
    phi = nonnegative_soft_threshold(sparsity)

    def init(key: jax.Array) -> CrateParams:
        key_u, key_d = jax.random.split(key)
        bases = jax.random.normal(key_u, (num_heads, dim, head_dim)) / math.sqrt(dim)
        if not published:
            return CrateParams(bases, None)
        dictionary = jax.random.normal(key_d, (dim, dim)) / math.sqrt(dim)
        return CrateParams(bases, dictionary)

    def energy(params: CrateParams, tokens: Tokens) -> Float[Array, "*batch"]:
        unit = _unit(tokens, precision)
        rates = _rate(_heads(params, tokens.y), head_dim * unit[..., None])
        smooth = jnp.sum(rates, axis=-1) - _rate(tokens.y, dim * unit)
        return smooth + penalty_of_present(phi, tokens.y, tokens.present)

    def published_step(params: CrateParams, tokens: Tokens) -> Array:
        heads = _heads(params, tokens.y)
        scores = jnp.einsum("...hip,...hjp->...hij", heads, heads) / math.sqrt(head_dim)
        seen = None if tokens.present is None else tokens.present[..., None, None, :]
        weights = jax.nn.softmax(scores, axis=-1, where=seen)
        attended = jnp.einsum("...hij,...hjp,hdp->...id", weights, heads, params.U)
        if compression is None:
            half = tokens.y + attended
        else:
            half = tokens.y + compression * (attended - tokens.y)
        eta = 0.1 if step_size is None else step_size
        D: Any = params.D
        return jax.nn.relu(half + eta * (half @ D - half @ D.T @ D) - eta * sparsity)

    def proximal_step(params: CrateParams, tokens: Tokens) -> Array:
        unit = _unit(tokens, precision)
        heads = _heads(params, tokens.y)
        gradient_in_heads = _rate_gradient(heads, head_dim * unit[..., None])
        gradient = jnp.einsum("...hip,hdp->...id", gradient_in_heads, params.U)
        gradient = gradient - _rate_gradient(tokens.y, dim * unit)

        # |U|_2^2 is at most |U^T U|_F.
        squares = norm(params.U.mT @ params.U, 1)
        smoothness = unit * (head_dim * jnp.sum(squares) + 2.0 * dim)
        multiple = 1.0 if step_size is None else step_size
        length = (multiple / smoothness)[..., None, None]
        # The proximal operator of phi. Its threshold, length * sparsity, varies by
        # example.
        return jax.nn.relu(tokens.y - length * (gradient + sparsity))

    step = published_step if published else proximal_step
    return on_tokens(init, energy, step, dim=dim)


def crate_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Proximal gradient steps on nonnegative tokens."""
    layer = crate(DIM, num_heads=2, head_dim=2, form="proximal")
    return layer, jnp.abs(normal(key, 1, batch)[0]), None


def _unit(tokens: Tokens, precision: float) -> Array:
    """Returns 1 / (n epsilon^2), with n the number of tokens present, at least 1."""
    dtype = tokens.y.dtype
    if tokens.present is None:
        count = jnp.full(tokens.y.shape[:-2], tokens.y.shape[-2], dtype)
    else:
        count = jnp.sum(tokens.present, axis=-1, dtype=dtype)
    return 1.0 / (jnp.maximum(count, 1.0) * precision**2)


def _heads(params: CrateParams, y: Array) -> Float[Array, "*batch h n p"]:
    return jnp.einsum("...nd,hdp->...hnp", y, params.U)


@jax.custom_jvp
def _rate(z: Array, scale: Array) -> Array:
    """Returns 1/2 log det(I + scale Z^T Z), one number per matrix.

    Singular values err by round-off of the largest. Eigenvalues of Z^T Z would err by
    round-off of its square, which may exceed the identity.
    """
    singular_values = jnp.linalg.svd(z, compute_uv=False)
    log_eigenvalues = jnp.log(scale)[..., None] + 2.0 * jnp.log(singular_values)
    return 0.5 * jnp.sum(jnp.logaddexp(0.0, log_eigenvalues), axis=-1)


@_rate.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple:
    # The scale is made of counts, which have no derivative.
    (z, scale), (tangent, _) = primals, tangents
    slope = jnp.sum(_rate_gradient(z, scale) * tangent, axis=(-2, -1))
    return _rate(z, scale), slope


def _rate_gradient(z: Array, scale: Array) -> Array:
    """Returns the gradient of `_rate`, scale Z (I + scale Z^T Z)^-1."""
    root = jnp.sqrt(scale)[..., None, None]
    scaled = root * z
    kind = jax.typeof(scaled).sharding
    if all(axes is None for axes in kind.spec):
        return root * damped_inverse(scaled, 1.0).mT

    # The derivative of a QR decomposition does not keep explicit shardings.
    inverse: Any = jax.sharding.auto_axes(
        lambda scaled: damped_inverse(scaled, 1.0).mT, out_sharding=kind
    )
    return root * inverse(scaled)
