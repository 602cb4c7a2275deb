"""Sparse coding of sequences of tokens (DUST): attention, then soft thresholding."""

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
    """D (num_atoms, dim), the dictionary, and V (rank, num_atoms) or None.

    Attention sees codes through V.

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
    r"""Sparse coding of a sequence: attention among the codes, then a step of `lista`.

    .. math:: E(H) = \sum_{\{u,v\} \in G} \rho(\tfrac12 |V (h_u - h_v)|^2)
                   + \tfrac12 |x - H D|_F^2 + \lambda |H|_1 , \qquad
              \rho(z) = -e^{-z} ,

    .. math:: U = softmax_\beta(H V^T V H^T) H , \qquad
              H' = S_{\lambda / c}( U + \tfrac1c (x - U D) D^T ) , \quad
              \beta_v = e^{-|V h_v|^2 / 2} .

    ``form`` names the first half. "softmax", above, and "jacobi" are forms of
    `attention`. They always lower the first term. "plain" is the published layer,
    without beta: softmax(H V^T V H^T) H. If all |V h_v| are equal it is the same. Else
    it may raise the first term.

    The second half lowers the other terms for :math:`c \ge \tfrac12 |D|_2^2`, see
    `lista`. With f the first term, a = 1 / c, and :math:`L = |D|_2^2 + n |V|_2^2`,
    which bounds the curvature from above, the whole E does not rise if

    .. math:: | a \nabla f(H) + (U - H)(I - a D D^T) |_F
                  \le (1 - \tfrac12 a L) |H' - H|_F .

    For H' is a proximal gradient step on all of E whose gradient has an error e, the
    left side over a, and
    :math:`E(H') - E(H) \le |e| |\Delta| - (\tfrac1a - \tfrac L2) |\Delta|^2`. The
    condition needs a curvature c above L / 2. A sequence of equal codes that is
    stationary for the other terms is a fixed point.

    Args:
      dim, num_atoms: widths of the signal and of the codes.
      rank: rows of V. None means ``num_atoms``.
      form: "softmax", "jacobi" or "plain", see above.
      sparsity: lambda >= 0.
      curvature: c > 0, fixed. None takes a bound of |D|_2^2, see `lista`.
      attention_step_size: damping of the attention half, in (0, 1].
      attention_scale: V as this positive multiple of the identity, fixed, without a
        product. None makes V a parameter.
      self_loops: for form="plain", lets tokens attend to themselves, see
        `unrolled_layer`. Without them a token that has no other to attend to stays.
        "softmax" always has them, "jacobi" never.
      mask: as in `attention`.

    Returns:
      A `Descent` with params `DustParams`, D starting as `cosine_dictionary` and V as
      the identity (its first rows), or None with ``attention_scale``. ``y`` is the
      codes H, ``x`` the signal, see `lista`.

    Source: De Weerdt, Eldar, Deligiannis (2023) in the reading of Porras-Valenzuela,
    Hadou, Ribeiro (2026), C.3 and C.4. Their form is "plain", with a constant c. Their
    initial V is not known.

    Example:
      >>> import jax
      >>> layer = dust(4, 6, curvature=16.0)
      >>> params: DustParams = jax.jit(layer.init)(jax.random.key(1))
      >>> x = 9.0 * jax.random.normal(jax.random.key(0), (5, 4))
      >>> codes = jax.numpy.zeros((5, 6))
      >>> stepped = jax.jit(layer.step)(params, codes, x)
      >>> energy = jax.jit(layer.energy)
      >>> bool(energy(params, stepped, x) < energy(params, codes, x))
      True
    """
    coder = lista(dim, num_atoms, sparsity=sparsity, curvature=curvature)
    _check_attention(form, rank, attention_scale, self_loops, mask)
    fixed = attention_scale is not None
    scale = attention_scale or 1.0
    pair_layer = attention(
        form="softmax" if form == "plain" else form,
        step_size=attention_step_size,
        mask=mask,
        dim=None if fixed else num_atoms,
        rank=rank,
    )
    pair = unchecked(pair_layer)
    sparse = unchecked(coder)

    def init(key: jax.Array) -> DustParams:
        V = None if fixed else jnp.eye(rank or num_atoms, num_atoms)
        return DustParams(coder.init(key).D, V)

    def energy(params: DustParams, tokens: Tokens) -> Float[Array, "*batch"]:
        scaled = tokens._replace(y=scale * tokens.y, x=None)
        pairs = pair.energy(weight(params), scaled)
        return sparse.energy(ListaParams(params.D), tokens) + pairs

    def step(params: DustParams, tokens: Tokens) -> Array:
        codes, _, present, _ = tokens
        scaled = scale * codes
        if form == "plain":
            z = project(scaled, weight(params).W_a)
            attended = _softmax_attention(z, codes, present, self_loops)
            mixed = codes + attention_step_size * (attended - codes)
        else:
            stepped = pair.step(weight(params), tokens._replace(y=scaled, x=None))
            mixed = stepped / scale
        return sparse.step(ListaParams(params.D), tokens._replace(y=mixed))

    def weight(params: DustParams) -> AttentionParams:
        return AttentionParams(None if params.V is None else params.V.T)

    return on_tokens(
        init, energy, step, dim=num_atoms, rows=InputRows("the signal", dim)
    )


def dust_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Codes that spread about a consensus, and a signal they do not explain."""
    key_consensus, key_spread, key_y, key_x = jax.random.split(key, 4)
    digits = jax.random.uniform(key_spread, (*batch, 1, 1), minval=-3.0, maxval=0.0)
    spread = 10.0**digits
    y = jax.random.normal(key_consensus, (*batch, 1, ATOMS))
    y = y + spread * jax.random.normal(key_y, (*batch, TOKENS, ATOMS))
    return dust(DIM, ATOMS, **EXAMPLE), y, 10.0 * normal(key_x, 1, batch)[0]


def dust_descends(
    params: DustParams, y: Array, x: Array | None
) -> Bool[Array, "*batch"]:
    """The condition of `dust` for `dust_example`."""
    assert params.V is not None
    pair = attention(form="softmax", dim=ATOMS)
    W_a = AttentionParams(params.V.T)
    c = EXAMPLE["curvature"]
    gradient = jax.grad(lambda y: jnp.sum(pair.energy(W_a, y, None)))(y)
    change = pair.step(W_a, y, None) - y
    mixing = jnp.eye(ATOMS, dtype=y.dtype) - params.D @ params.D.T / c
    error = jnp.linalg.norm(gradient / c + change @ mixing, axis=(-2, -1))

    def square_norm_bound(M: Array) -> Array:
        # |M|_2^2 is at most |M|_1 |M|_inf, which needs no decomposition.
        return jnp.linalg.norm(M, 1) * jnp.linalg.norm(M, jnp.inf)

    L = square_norm_bound(params.D) + y.shape[-2] * square_norm_bound(params.V)
    step = dust(DIM, ATOMS, **EXAMPLE).step(params, y, x) - y
    length = jnp.linalg.norm(step, axis=(-2, -1))
    return error <= (1.0 - L / (2.0 * c)) * length


def _check_attention(
    form: str,
    rank: int | None,
    attention_scale: float | None,
    self_loops: bool,
    mask: Any,
) -> None:
    is_plain = form == "plain"
    wanted = "be None for form='plain', which is softmax over all tokens"
    require(not is_plain or mask is None, "mask", wanted, "a mask")
    wanted = f"be True for form={form!r}"
    way_out = "or choose 'plain' or 'jacobi'"
    require(is_plain or self_loops, "self_loops", wanted, self_loops, way_out)
    fits = attention_scale is None or rank is None
    wanted = f"be None where attention_scale={attention_scale} fixes V"
    require(fits, "rank", wanted, rank)


def _softmax_attention(
    z: Array, codes: Array, present: Any, self_loops: bool
) -> Float[Array, "*batch n atoms"]:
    """Returns softmax(Z Z^T) H, over the tokens present."""
    logits = gram(z)
    seen = None if present is None else present[..., None, :]
    if not self_loops:
        others = ~jnp.eye(codes.shape[-2], dtype=bool)
        seen = others if seen is None else others & seen
    if seen is None:
        return jax.nn.softmax(logits, axis=-1) @ codes
    logits = jnp.where(seen, logits, jnp.finfo(logits.dtype).min)
    mixed = jax.nn.softmax(logits, axis=-1) @ codes
    return jnp.where(jnp.any(seen, axis=-1, keepdims=True), mixed, codes)
