"""Sparse coding of single tokens (ISTA, LISTA) and of sequences of them (DUST)."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from unroll_jax.arguments import typed
from unroll_jax.descent import Anchor, Descent, as_anchor, blank_absent, check_tokens, compute_dtype
from unroll_jax.energies.attention.pairwise import FORMS, AttentionParams, attention
from unroll_jax.energies.examples import DIM, TOKENS, Example, normal
from unroll_jax.energies.inputs import check_input, guarded, sum_present
from unroll_jax.energies.proximal.penalty import check_positive

__all__ = [
    "DustParams",
    "ListaParams",
    "cosine_dictionary",
    "dust",
    "dust_descends",
    "dust_example",
    "lista",
    "lista_example",
]

ATOMS = 6
# L of this layer is about 7: |D|_2^2 is below 2.3, and n |V|_2^2 is 5.
EXAMPLE: dict[str, Any] = {"curvature": 8.0}


class ListaParams(NamedTuple):
    """D (num_atoms, dim), the dictionary: atoms as rows."""

    D: Float[Array, "atoms dim"]


class DustParams(NamedTuple):
    """D (num_atoms, dim), the dictionary, and V (rank, num_atoms), through which attention sees codes."""

    D: Float[Array, "atoms dim"]
    V: Float[Array, "rank atoms"]


@typed
def lista(dim: int, num_atoms: int, *, sparsity: float = 0.1, curvature: float | None = None) -> Descent:
    r"""Sparse coding of tokens, each on its own, by iterative soft thresholding.

    With the codes H (n, num_atoms) as state and the signal x (n, dim) as input,

    .. math:: g(H) = \tfrac12 |x - H D|_F^2 + \lambda |H|_1 , \qquad
              H' = S_{\lambda / c}( H + \tfrac1c (x - H D) D^T ) , \quad S_t(h) = sign(h) \max(|h| - t, 0) ,

    a proximal gradient step of length 1 / c; c is :math:`|D|_2^2`, or ``curvature``. It never raises g for
    :math:`c \ge \tfrac12 |D|_2^2`: the quadratic part curves by at most :math:`|D|_2^2`, so that

    .. math:: g(H') \le g(H) - (c - \tfrac12 |D|_2^2) |H' - H|_F^2 .

    With one fixed D this is ISTA; with a learned one for each layer, LISTA with coupled weights.

    Args:
      dim: width of the signal.
      num_atoms: width of the codes; more than ``dim`` makes the dictionary overcomplete.
      sparsity: lambda >= 0, in units of the signal.
      curvature: c > 0, fixed; None takes |D|_2^2, one singular value problem of size min(dim, num_atoms) a step.

    Returns:
      A `Descent` with params `ListaParams`, D starting as `cosine_dictionary`; ``y`` is the codes H (zeros are a good
      start), ``x`` the signal (*batch, n, dim) or broadcasting to it, or an `Anchor` of it that says which tokens are
      there. The reconstruction is ``y @ params.D``.

    Raises:
      ValueError: if an option is outside what is stated here; while tracing, if y or x does not fit, or x is None.
      TypeError: while tracing, if y or x is not floating.

    Source: Gregor and LeCun (2010) for LISTA; the coupling of D^T and D as in Porras-Valenzuela et al. (2026), C.4.

    Example:
      >>> import jax
      >>> layer, x = lista(4, 6), jax.random.normal(jax.random.key(0), (5, 4))
      >>> params, codes = layer.init(jax.random.key(1)), jax.numpy.zeros((5, 6))
      >>> bool(layer.energy(params, layer.step(params, codes, x), x) < layer.energy(params, codes, x))
      True
    """
    for name, size in (("dim", dim), ("num_atoms", num_atoms)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    if not (sparsity >= 0.0 and math.isfinite(sparsity)):
        raise ValueError(f"sparsity must be finite and at least 0, got {sparsity}")
    if curvature is not None:
        check_positive("curvature", curvature)

    def init(key: jax.Array) -> ListaParams:
        return ListaParams(jnp.asarray(cosine_dictionary(num_atoms, dim), jnp.float32))

    def energy(params: ListaParams, y: Array, x: Any = None) -> Float[Array, "*batch"]:
        codes, D, signal, present = _prepare(params, y, x)
        misfit = 0.5 * jnp.sum((signal - codes @ D) ** 2, axis=-1)
        return sum_present(misfit + sparsity * jnp.sum(jnp.abs(codes), axis=-1), present)

    def step(params: ListaParams, y: Array, x: Any = None) -> Array:
        codes, D, signal, present = _prepare(params, y, x)
        c = _square_norm(D) if curvature is None else curvature
        moved = codes + (signal - codes @ D) @ D.T / c
        coded = (jnp.sign(moved) * jax.nn.relu(jnp.abs(moved) - sparsity / c)).astype(y.dtype)
        return coded if present is None else jnp.where(present[..., None], coded, y)

    def _prepare(params: ListaParams, y: Array, x: Any) -> tuple[Array, Array, Array, Any]:
        signal, present = as_anchor(x)
        check_tokens(y, Anchor(None, present), dim=num_atoms)
        check_input(signal, y.shape[:-1], width=dim, what="the signal", present=present)
        dtype = compute_dtype(y, signal, params.D)
        codes, signal = (blank_absent(a, present).astype(dtype) for a in (y, signal))
        return codes, params.D.astype(dtype), signal, present

    return guarded(Descent(init=init, energy=energy, step=step), ListaParams)


@typed
def dust(
    dim: int,
    num_atoms: int,
    *,
    rank: int | None = None,
    form: str = "softmax",
    sparsity: float = 0.1,
    curvature: float | None = None,
    attention_step_size: float = 1.0,
    mask: Any = None,
) -> Descent:
    r"""Sparse coding of a sequence (DUST): attention among the codes, then a step of `lista`.

    .. math:: E(H) = \sum_{\{u,v\} \in G} \rho(\tfrac12 |V (h_u - h_v)|^2)
                   + \tfrac12 |x - H D|_F^2 + \lambda |H|_1 , \qquad \rho(z) = -e^{-z} ,

    .. math:: U = softmax_\beta(H V^T V H^T) H , \qquad
              H' = S_{\lambda / c}( U + \tfrac1c (x - U D) D^T ) , \quad \beta_v = e^{-|V h_v|^2 / 2} .

    ``form`` names the first half. "softmax", above, and "jacobi" are those of `attention`, which always lower the first
    term. "plain" is the published layer, without beta: softmax(H V^T V H^T) H. It is the same where all |V h_v| are
    equal; elsewhere it leans to long codes, and there are points where it raises the first term.

    The second half lowers the other terms for :math:`c \ge \tfrac12 |D|_2^2`, see `lista`. The whole E falls where
    attention leaves little undone: with f the first term, a = 1 / c, and
    :math:`L = |D|_2^2 + n |V|_2^2`, which bounds the curvature of f + g from above, E does not rise if

    .. math:: | a \nabla f(H) + (U - H)(I - a D D^T) |_F \le (1 - \tfrac12 a L) |H' - H|_F .

    For H' is a proximal gradient step on the whole of E, from H, with an error of that size over a in the gradient:
    convexity of the last term gives :math:`E(H') - E(H) \le |e| |\Delta| - (\tfrac1a - \tfrac L2) |\Delta|^2`. It takes
    a curvature c above L / 2, more than |D|_2^2 asks for where V is not small. A sequence of equal codes that is
    stationary for g is a fixed point.

    Args:
      dim: width of the signal.
      num_atoms: width of the codes.
      rank: rows of V; None means ``num_atoms``.
      form: "softmax", "jacobi" or "plain", see above.
      sparsity: lambda >= 0.
      curvature: c > 0, fixed; None takes |D|_2^2, see `lista`.
      attention_step_size: damping of the attention half, in (0, 1].
      mask: symmetric boolean (n, n) graph of the tokens; None is the complete graph.

    Returns:
      A `Descent` with params `DustParams`, D starting as `cosine_dictionary` and V as the identity (its first rows);
      ``y`` is the codes H, ``x`` the signal, see `lista`.

    Raises:
      ValueError: as `lista` and `attention`; for form="plain" with a mask.
      TypeError: while tracing, if y or x is not floating.

    Source: De Weerdt, Eldar, Deligiannis (2023) in the reading of Porras-Valenzuela, Hadou, Ribeiro (2026), C.3 and
    C.4, without compressed sensing; their default form is "plain", c a constant. Their start of V did not survive.

    Example:
      >>> import jax
      >>> layer, x = dust(4, 6, curvature=16.0), 9.0 * jax.random.normal(jax.random.key(0), (5, 4))
      >>> params, codes = layer.init(jax.random.key(1)), jax.numpy.zeros((5, 6))
      >>> bool(layer.energy(params, layer.step(params, codes, x), x) < layer.energy(params, codes, x))
      True
    """
    sparse = lista(dim, num_atoms, sparsity=sparsity, curvature=curvature)
    if form not in (*FORMS, "plain"):
        raise ValueError(f"form must be one of {(*FORMS, 'plain')}, got {form!r}")
    if form == "plain" and mask is not None:
        raise ValueError("mask must be None for form='plain', which is softmax over all tokens")
    chosen = FORMS[0] if form == "plain" else form
    pair = attention(form=chosen, step_size=attention_step_size, mask=mask, dim=num_atoms, rank=rank)

    def init(key: jax.Array) -> DustParams:
        return DustParams(sparse.init(key).D, jnp.eye(rank or num_atoms, num_atoms))

    def energy(params: DustParams, y: Array, x: Any = None) -> Float[Array, "*batch"]:
        coding = sparse.energy(ListaParams(params.D), y, x)
        return coding + pair.energy(AttentionParams(params.V.T), y, Anchor(None, as_anchor(x).present))

    def step(params: DustParams, y: Array, x: Any = None) -> Array:
        present = as_anchor(x).present
        if form == "plain":
            check_tokens(y, Anchor(None, present), dim=num_atoms)
            mixed = _plain_softmax(params.V, y, present, attention_step_size)
        else:
            mixed = pair.step(AttentionParams(params.V.T), y, Anchor(None, present))
        return sparse.step(ListaParams(params.D), mixed, x)

    return guarded(Descent(init=init, energy=energy, step=step), DustParams)


@typed
def cosine_dictionary(num_atoms: int, dim: int) -> np.ndarray:
    """The cosine dictionary (num_atoms, dim): sampled cosines as atoms, of unit length, lowest frequencies first.

    For num_atoms = dim it is the orthonormal discrete cosine transform, for fewer its first rows. For more, atom k has
    frequency pi k / num_atoms, finer than the transform's, and the square of the spectral norm is about
    num_atoms / dim. When ``dim`` is a perfect square it is taken for the pixels of a square patch, row by row, and
    atoms are products of two cosines.

    Raises:
      ValueError: if a size is below 1.

    Source: Porras-Valenzuela et al. (2026), B.2, after Luong et al. (2021).
    """
    for name, size in (("num_atoms", num_atoms), ("dim", dim)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    side, across = math.isqrt(dim), math.isqrt(max(num_atoms - 1, 0)) + 1
    if side * side == dim:
        across = max(across, side)
        single = _cosines(across, side)
        frequencies = np.add.outer(np.arange(across), np.arange(across)).ravel()
        atoms = np.kron(single, single)[np.argsort(frequencies, kind="stable")]
    else:
        atoms = _cosines(max(num_atoms, dim), dim)
    return atoms[:num_atoms]


def lista_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Sparse coding of single tokens; its condition holds for every D."""
    key_y, key_x = jax.random.split(key)
    y = jax.random.normal(key_y, (*batch, TOKENS, ATOMS))
    return lista(DIM, ATOMS), y, normal(key_x, 1, batch)[0]


def dust_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Sparse coding of a sequence: codes that spread about a consensus, and a signal they do not explain."""
    key_consensus, key_spread, key_y, key_x = jax.random.split(key, 4)
    spread = 10.0 ** jax.random.uniform(key_spread, (*batch, 1, 1), minval=-3.0, maxval=0.0)
    y = jax.random.normal(key_consensus, (*batch, 1, ATOMS))
    y = y + spread * jax.random.normal(key_y, (*batch, TOKENS, ATOMS))
    return dust(DIM, ATOMS, **EXAMPLE), y, 10.0 * normal(key_x, 1, batch)[0]


def dust_descends(params: DustParams, y: Array, x: Array | None) -> Bool[Array, "*batch"]:
    """The condition of `dust` for `dust_example`."""
    pair, W_a, c = attention(form="softmax", dim=ATOMS), AttentionParams(params.V.T), EXAMPLE["curvature"]
    gradient = jax.grad(lambda y: jnp.sum(pair.energy(W_a, y, None)))(y)
    left = (pair.step(W_a, y, None) - y) @ (jnp.eye(ATOMS, dtype=y.dtype) - params.D @ params.D.T / c)
    error = jnp.linalg.norm(gradient / c + left, axis=(-2, -1))
    # |M|_2^2 is at most |M|_1 |M|_inf, which needs no decomposition.
    bounds = [jnp.linalg.norm(M, 1) * jnp.linalg.norm(M, jnp.inf) for M in (params.D, params.V)]
    room = 1.0 - (bounds[0] + y.shape[-2] * bounds[1]) / (2.0 * c)
    moved = jnp.linalg.norm(dust(DIM, ATOMS, **EXAMPLE).step(params, y, x) - y, axis=(-2, -1))
    return error <= room * moved


def _cosines(count: int, samples: int) -> np.ndarray:
    from scipy.fft import dct as cosine_transform  # takes as long to import as the rest of the library

    waves = np.asarray(cosine_transform(np.eye(count), axis=0, norm="ortho"))[:, :samples]
    return waves / np.linalg.norm(waves, axis=1, keepdims=True)


def _square_norm(D: Float[Array, "atoms dim"]) -> Float[Array, ""]:
    """|D|_2^2 as the norm of the smaller Gram matrix."""
    gram = D @ D.T if D.shape[0] <= D.shape[1] else D.T @ D
    return jnp.linalg.norm(gram, 2)


def _plain_softmax(V: Array, y: Array, present: Any, step_size: float) -> Array:
    codes = blank_absent(y, present).astype(compute_dtype(y, V))
    projected = codes @ V.T.astype(codes.dtype)
    logits = projected @ jnp.swapaxes(projected, -1, -2)
    if present is not None:
        logits = jnp.where(present[..., None, :], logits, jnp.finfo(logits.dtype).min)
    mixed = codes + step_size * (jax.nn.softmax(logits, axis=-1) @ codes - codes)
    return mixed.astype(y.dtype) if present is None else jnp.where(present[..., None], mixed.astype(y.dtype), y)
