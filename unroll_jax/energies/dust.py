"""Sparse coding of sequences of tokens (DUST): attention among codes, then soft
thresholding."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from unroll_jax.arguments import POSITIVE, checked, one_of, require
from unroll_jax.descent import Descent
from unroll_jax.energies.attention.pairwise import FORMS, AttentionParams, attention
from unroll_jax.energies.examples import DIM, TOKENS, Example, normal
from unroll_jax.energies.lista import ListaParams, lista
from unroll_jax.energies.tokens import InputRows, Tokens, on_tokens, project, unchecked
from unroll_jax.numerics import gram

__all__ = ["DustParams", "dust", "dust_descends", "dust_example"]

ATOMS = 6
# L of this layer is about 7: |D|_2^2 is below 2.3, and n |V|_2^2 is 5.
EXAMPLE: dict[str, Any] = {"curvature": 8.0}


class DustParams(NamedTuple):
    """D (num_atoms, dim), the dictionary, and V (rank, num_atoms), through which
    attention sees codes, or None.

    Example: see `dust`.
    """

    D: Float[Array, "atoms dim"]
    V: Float[Array, "rank atoms"] | None


@checked(form=one_of((*FORMS, "plain")), attention_scale=POSITIVE)
def dust(
    dim: int,
    num_atoms: int,
    *,
    rank: int | None = None,
    form: str = "softmax",
    sparsity: float = 0.1,
    curvature: float | None = None,
    attention_step_size: float = 1.0,
    attention_scale: float | None = None,
    self_loops: bool = True,
    mask: Any = None,
) -> Descent:
    r"""Sparse coding of a sequence (DUST): attention among the codes, then a step of
    `lista`.

    .. math:: E(H) = \sum_{\{u,v\} \in G} \rho(\tfrac12 |V (h_u - h_v)|^2)
                   + \tfrac12 |x - H D|_F^2 + \lambda |H|_1 , \qquad \rho(z) = -e^{-z} ,

    .. math:: U = softmax_\beta(H V^T V H^T) H , \qquad
              H' = S_{\lambda / c}( U + \tfrac1c (x - U D) D^T ) , \quad \beta_v = e^{-|V h_v|^2 / 2} .

    ``form`` names the first half. "softmax", above, and "jacobi" are forms of
    `attention`, which always lower the first term. "plain" is the published layer,
    without beta: softmax(H V^T V H^T) H. It is the same where all |V h_v| are equal;
    else it may raise the first.

    The second half lowers the other terms for :math:`c \ge \tfrac12 |D|_2^2`, see
    `lista`. With f the first term, a = 1 / c, and :math:`L = |D|_2^2 + n |V|_2^2`,
    which bounds the curvature from above, the whole E does not rise if

    .. math:: | a \nabla f(H) + (U - H)(I - a D D^T) |_F \le (1 - \tfrac12 a L) |H' - H|_F .

    For H' is a proximal gradient step on the whole of E with an error of that size over
    a in the gradient, and
    :math:`E(H') - E(H) \le |e| |\Delta| - (\tfrac1a - \tfrac L2) |\Delta|^2`. It takes
    a curvature c above L / 2. A sequence of equal codes that is stationary for g is a
    fixed point.

    Args:
      dim, num_atoms: widths of the signal and of the codes.
      rank: rows of V; None means ``num_atoms``.
      form: "softmax", "jacobi" or "plain", see above.
      sparsity: lambda >= 0.
      curvature: c > 0, fixed; None takes a bound of |D|_2^2, see `lista`.
      attention_step_size: damping of the attention half, in (0, 1].
      attention_scale: V as this positive multiple of the identity, fixed, without a
        product; None makes V a parameter.
      self_loops: for form="plain", whether tokens attend to themselves, see
        `unrolled_layer`; without, a token that has no other to attend to stays where it
        is. "softmax" has them, "jacobi" has not.
      mask: as in `attention`.

    Returns:
      A `Descent` with params `DustParams`, D starting as `cosine_dictionary` and V as
      the identity (its first rows), or None with ``attention_scale``; ``y`` is the
      codes H, ``x`` the signal, see `lista`.

    Source: De Weerdt, Eldar, Deligiannis (2023) in the reading of Porras-Valenzuela,
    Hadou, Ribeiro (2026), C.3 and C.4; their default form is "plain", c a constant.
    Their start of V did not survive.

    Example:
      >>> import jax
      >>> layer, x = (
      ...     dust(4, 6, curvature=16.0),
      ...     9.0 * jax.random.normal(jax.random.key(0), (5, 4)),
      ... )
      >>> params: DustParams = layer.init(jax.random.key(1))
      >>> codes = jax.numpy.zeros((5, 6))
      >>> bool(
      ...     layer.energy(params, layer.step(params, codes, x), x)
      ...     < layer.energy(params, codes, x)
      ... )
      True
    """
    coder = lista(dim, num_atoms, sparsity=sparsity, curvature=curvature)
    _check_attention(form, rank, attention_scale, self_loops, mask)
    fixed, scale = attention_scale is not None, attention_scale or 1.0
    options = {
        "step_size": attention_step_size,
        "mask": mask,
        "dim": None if fixed else num_atoms,
        "rank": rank,
    }
    pair = unchecked(attention(form=FORMS[0] if form == "plain" else form, **options))
    sparse = unchecked(coder)
    shape = None if fixed else (rank or num_atoms, num_atoms)

    def init(key: jax.Array) -> DustParams:
        return DustParams(coder.init(key).D, None if shape is None else jnp.eye(*shape))

    def energy(params: DustParams, tokens: Tokens) -> Float[Array, "*batch"]:
        pairs = pair.energy(weight(params), tokens._replace(y=scale * tokens.y, x=None))
        return sparse.energy(ListaParams(params.D), tokens) + pairs

    def step(params: DustParams, tokens: Tokens) -> Array:
        codes, _, present, _ = tokens
        if form == "plain":
            moved = (
                _plain_softmax(
                    project(scale * codes, weight(params).W_a),
                    codes,
                    present,
                    self_loops,
                )
                - codes
            )
            mixed = codes + attention_step_size * moved
        else:
            mixed = (
                pair.step(weight(params), tokens._replace(y=scale * codes, x=None))
                / scale
            )
        return sparse.step(ListaParams(params.D), tokens._replace(y=mixed))

    def weight(params: DustParams) -> AttentionParams:
        return AttentionParams(None if params.V is None else params.V.T)

    return on_tokens(
        init, energy, step, dim=num_atoms, rows=InputRows("the signal", dim)
    )


def dust_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Sparse coding of a sequence: codes that spread about a consensus, and a signal
    they do not explain."""
    key_consensus, key_spread, key_y, key_x = jax.random.split(key, 4)
    spread = 10.0 ** jax.random.uniform(
        key_spread, (*batch, 1, 1), minval=-3.0, maxval=0.0
    )
    y = jax.random.normal(key_consensus, (*batch, 1, ATOMS))
    y = y + spread * jax.random.normal(key_y, (*batch, TOKENS, ATOMS))
    return dust(DIM, ATOMS, **EXAMPLE), y, 10.0 * normal(key_x, 1, batch)[0]


def dust_descends(
    params: DustParams, y: Array, x: Array | None
) -> Bool[Array, "*batch"]:
    """The condition of `dust` for `dust_example`."""
    assert params.V is not None
    pair, W_a, c = (
        attention(form="softmax", dim=ATOMS),
        AttentionParams(params.V.T),
        EXAMPLE["curvature"],
    )
    gradient = jax.grad(lambda y: jnp.sum(pair.energy(W_a, y, None)))(y)
    left = (pair.step(W_a, y, None) - y) @ (
        jnp.eye(ATOMS, dtype=y.dtype) - params.D @ params.D.T / c
    )
    error = jnp.linalg.norm(gradient / c + left, axis=(-2, -1))
    # |M|_2^2 is at most |M|_1 |M|_inf, which needs no decomposition.
    bounds = [
        jnp.linalg.norm(M, 1) * jnp.linalg.norm(M, jnp.inf)
        for M in (params.D, params.V)
    ]
    room = 1.0 - (bounds[0] + y.shape[-2] * bounds[1]) / (2.0 * c)
    moved = jnp.linalg.norm(
        dust(DIM, ATOMS, **EXAMPLE).step(params, y, x) - y, axis=(-2, -1)
    )
    return error <= room * moved


def _check_attention(
    form: str,
    rank: int | None,
    attention_scale: float | None,
    self_loops: bool,
    mask: Any,
) -> None:
    plain, fixed = form == "plain", attention_scale is not None
    require(
        not plain or mask is None,
        "mask",
        "be None for form='plain', which is softmax over all tokens",
        "a mask",
    )
    require(
        plain or self_loops,
        "self_loops",
        f"be True for form={form!r}",
        self_loops,
        "or choose 'plain' or 'jacobi'",
    )
    require(
        not fixed or rank is None,
        "rank",
        f"be None where attention_scale={attention_scale} fixes V",
        rank,
    )


def _plain_softmax(z: Array, codes: Array, present: Any, self_loops: bool) -> Array:
    """softmax(Z Z^T) H, over the tokens that are there."""
    logits, seen = gram(z), None if present is None else present[..., None, :]
    if not self_loops:
        others = ~jnp.eye(codes.shape[-2], dtype=bool)
        seen = others if seen is None else others & seen
    if seen is None:
        return jax.nn.softmax(logits, axis=-1) @ codes
    mixed = (
        jax.nn.softmax(jnp.where(seen, logits, jnp.finfo(logits.dtype).min), axis=-1)
        @ codes
    )
    return jnp.where(jnp.any(seen, axis=-1, keepdims=True), mixed, codes)
