"""The layer of LISTA with free weights, whose descent is trained."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.numerics import shrink

__all__ = ["ListaLayerParams", "ista_layer", "lista_layer"]


class ListaLayerParams(NamedTuple):
    """A (atoms, atoms), B (atoms, dim) and theta (atoms,) of one `lista_layer`.

    Example: see `lista_layer`.
    """

    A: Float[Array, "atoms atoms"]
    B: Float[Array, "atoms dim"]
    theta: Float[Array, "atoms"]


def lista_layer(
    params: ListaLayerParams, z: Float[Array, "*batch atoms"], x: Float[Array, "*batch dim"]
) -> Float[Array, "*batch atoms"]:
    r"""One layer of LISTA, with its weights:

    .. math:: z' = S_{|\theta|}(A z + B x) , \qquad S_t(v) = sign(v) \max(|v| - t, 0) .

    The threshold is :math:`|\theta|`, so that no training makes it negative. With the weights of `ista_layer` it is a
    step of ISTA, which lowers the Lasso's objective; with free ones it lowers no energy known in advance, and descent
    of the task loss is what `unroll_jax.constrained` asks of it. `unroll_jax.lista` couples A and B to one dictionary.

    Args:
      params: weights of the layer.
      z: codes.
      x: signals.

    Returns:
      z', same shape and dtype as z.

    Source: Gregor and LeCun (2010), with A, B and theta of every layer its own, as in Hadou et al. (2023).

    Example:
      >>> import jax.numpy as jnp
      >>> params = ListaLayerParams(A=jnp.eye(2), B=jnp.eye(2), theta=jnp.ones(2))
      >>> lista_layer(params, jnp.array([2.0, 0.0]), jnp.array([1.0, 0.5])).tolist()
      [2.0, 0.0]
    """
    moved = z @ params.A.T + x @ params.B.T
    return shrink(moved, jnp.abs(params.theta)).astype(z.dtype)


def ista_layer(dictionary: Float[Array, "atoms dim"], sparsity: float) -> ListaLayerParams:
    r"""A, B and theta with which `lista_layer` is a step of ISTA on :math:`\tfrac12 |x - D^T z|^2 + \lambda |z|_1`:

    .. math:: A = I - \tfrac1c D D^T , \quad B = \tfrac1c D , \quad \theta = \tfrac{\lambda}{c} , \quad c = |D|_2^2 .

    Source: Gregor and LeCun (2010), ISTA as the recurrent network whose weights LISTA learns; atoms as rows.
    """
    D = jnp.asarray(dictionary)
    atoms, dim = D.shape
    curvature = jnp.linalg.norm(D @ D.T if atoms <= dim else D.T @ D, 2)
    return ListaLayerParams(
        A=jnp.eye(atoms, dtype=D.dtype) - D @ D.T / curvature,
        B=D / curvature,
        theta=jnp.full(atoms, sparsity, D.dtype) / curvature,
    )
