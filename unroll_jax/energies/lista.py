"""Sparse coding of single tokens (ISTA, LISTA), and LISTA with free weights."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, SIZE, at_least, checked
from unroll_jax.descent import Descent
from unroll_jax.energies.cosine import cosine_dictionary
from unroll_jax.energies.examples import DIM, TOKENS, Example, normal
from unroll_jax.energies.tokens import InputRows, Tokens, on_tokens, sum_present
from unroll_jax.norm_bounds import matrix_norm_bound
from unroll_jax.numerics import common_dtype, linear, shrink

__all__ = [
    "ListaLayerParams",
    "ListaParams",
    "ista_layer",
    "lista",
    "lista_example",
    "lista_layer",
]

ATOMS = 6
# c is then at most 2.2% above |D|_2^2 at rank 256, in the worst case: all singular
# values alike.
SQUARINGS = 7


class ListaParams(NamedTuple):
    """D (num_atoms, dim), the dictionary: atoms as rows.

    Example: see `lista`.
    """

    D: Float[Array, "atoms dim"]


@checked(dim=SIZE, num_atoms=SIZE, sparsity=at_least(0.0), curvature=POSITIVE)
def lista(
    dim: int, num_atoms: int, *, sparsity: float = 0.1, curvature: float | None = None
) -> Descent:
    r"""Sparse coding of tokens, each on its own, by iterative soft thresholding.

    With the codes H (n, num_atoms) as state and the signal x (n, dim) as input,

    .. math:: g(H) = \tfrac12 |x - H D|_F^2 + \lambda |H|_1 , \qquad
              H' = S_{\lambda / c}( H + \tfrac1c (x - H D) D^T ) , \quad
              S_t(h) = sign(h) \max(|h| - t, 0) ,

    a proximal gradient step of length 1 / c. It never raises g for
    :math:`c \ge \tfrac12 |D|_2^2`: the quadratic part curves by at most
    :math:`|D|_2^2`, hence

    .. math:: g(H') \le g(H) - (c - \tfrac12 |D|_2^2) |H' - H|_F^2 .

    By default c is an upper bound of :math:`|D|_2^2` by `matrix_norm_bound`, computed
    in every step, so it holds while D is trained. At rank 256 it is at most 2.2% above,
    and less than 0.1% unless many singular values are alike. Derivatives pass through
    c. If c is held constant in the gradient, D grows without effect.

    With one fixed D this is ISTA. With a learned one for each layer it is LISTA
    with coupled weights.

    Args:
      dim, num_atoms: widths of the signal and of the codes. ``num_atoms > dim`` is
        overcomplete.
      sparsity: lambda >= 0, in units of the signal.
      curvature: c > 0, fixed. None takes the bound.

    Returns:
      A `Descent` with params `ListaParams`, D starting as `cosine_dictionary`. ``y`` is
      the codes H (zeros are a good start), ``x`` the signal (*batch, n, dim) or
      broadcasting to it, or an `Anchor` of it that marks the tokens present. The
      reconstruction of the signal is ``y @ params.D``.

    Source: Gregor and LeCun (2010) for LISTA. The coupling of D^T and D is as in
    Porras-Valenzuela et al. (2026), C.4.

    Example:
      >>> import jax
      >>> layer = lista(4, 6)
      >>> params: ListaParams = jax.jit(layer.init)(jax.random.key(1))
      >>> x = jax.random.normal(jax.random.key(0), (5, 4))
      >>> codes = jax.numpy.zeros((5, 6))
      >>> stepped = layer.step(params, codes, x)
      >>> bool(layer.energy(params, stepped, x) < layer.energy(params, codes, x))
      True
    """

    def init(key: jax.Array) -> ListaParams:
        return ListaParams(jnp.asarray(cosine_dictionary(num_atoms, dim), jnp.float32))

    def energy(params: ListaParams, tokens: Tokens) -> Float[Array, "*batch"]:
        codes, signal, present, _ = tokens
        misfit = 0.5 * jnp.sum((signal - linear(codes, params.D)) ** 2, axis=-1)
        penalty = sparsity * jnp.sum(jnp.abs(codes), axis=-1)
        return sum_present(misfit + penalty, present)

    def step(params: ListaParams, tokens: Tokens) -> Array:
        codes, signal, _, _ = tokens
        c = _square_norm_bound(params.D) if curvature is None else curvature
        moved = codes + linear(signal - linear(codes, params.D), params.D.T / c)
        return shrink(moved, sparsity / c)

    return on_tokens(
        init, energy, step, dim=num_atoms, rows=InputRows("the signal", dim)
    )


class ListaLayerParams(NamedTuple):
    """A (atoms, atoms), B (atoms, dim) and theta (atoms,) of one `lista_layer`.

    Example: see `lista_layer`.
    """

    A: Float[Array, "atoms atoms"]
    B: Float[Array, "atoms dim"]
    theta: Float[Array, "atoms"]


def lista_layer(
    params: ListaLayerParams,
    z: Float[Array, "*batch atoms"],
    x: Float[Array, "*batch dim"],
) -> Float[Array, "*batch atoms"]:
    r"""Applies one layer of LISTA, with its weights:

    .. math:: z' = S_{|\theta|}(A z + B x) , \qquad S_t(v) = sign(v) \max(|v| - t, 0) .

    The threshold is :math:`|\theta|`: no training makes it negative. With the weights
    of `ista_layer` it is a step of ISTA, which lowers the Lasso's objective. With free
    ones it lowers no known energy, and `unroll_jax.constrained` makes it lower the task
    loss. `unroll_jax.lista` couples A and B to one dictionary.

    Args:
      params, z, x: weights of the layer, codes and signals. z' has the dtype of z.

    Source: Gregor and LeCun (2010), with A, B and theta of every layer its own, as in
    Hadou et al. (2023).

    Example:
      >>> import jax.numpy as jnp
      >>> params = ListaLayerParams(A=jnp.eye(2), B=jnp.eye(2), theta=jnp.ones(2))
      >>> lista_layer(params, jnp.array([2.0, 0.0]), jnp.array([1.0, 0.5])).tolist()
      [2.0, 0.0]
    """
    dtype = common_dtype(z, x, *params)
    A, B, theta = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    moved = z.astype(dtype) @ A.T + x.astype(dtype) @ B.T
    return shrink(moved, jnp.abs(theta)).astype(z.dtype)


def ista_layer(
    dictionary: Float[Array, "atoms dim"], sparsity: float
) -> ListaLayerParams:
    r"""Returns the weights with which `lista_layer` is a step of ISTA.

    The step lowers :math:`\tfrac12 |x - D^T z|^2 + \lambda |z|_1`, with

    .. math:: A = I - \tfrac1c D D^T , \quad B = \tfrac1c D , \quad
              \theta = \tfrac{\lambda}{c} , \quad c = |D|_2^2 .

    Source: Gregor and LeCun (2010), ISTA as the recurrent network whose weights LISTA
    learns. Atoms are rows.
    """
    D = jnp.asarray(dictionary)
    atoms, dim = D.shape
    curvature = jnp.linalg.norm(D @ D.T if atoms <= dim else D.T @ D, 2)
    return ListaLayerParams(
        A=jnp.eye(atoms, dtype=D.dtype) - D @ D.T / curvature,
        B=D / curvature,
        theta=jnp.full(atoms, sparsity, D.dtype) / curvature,
    )


def lista_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Sparse coding of single tokens. Its condition holds for every D."""
    key_y, key_x = jax.random.split(key)
    y = jax.random.normal(key_y, (*batch, TOKENS, ATOMS))
    return lista(DIM, ATOMS), y, normal(key_x, 1, batch)[0]


def _square_norm_bound(D: Float[Array, "atoms dim"]) -> Float[Array, ""]:
    bound = matrix_norm_bound(D, num_squarings=SQUARINGS) ** 2
    # A dictionary of zeros leaves no code, and divides by c: at least so much that
    # derivatives do not overflow.
    return jnp.maximum(bound, float(jnp.finfo(bound.dtype).tiny) ** 0.5)
