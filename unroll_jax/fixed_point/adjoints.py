"""Adjoints by name: the gradient of a fixed point by linear solves with J^T, or by differentiating a loop."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array

from unroll_jax.arguments import at_least, checked, in_interval, look_up
from unroll_jax.fixed_point import linear
from unroll_jax.fixed_point.differentiated_steps import phantom, reversible, unrolled
from unroll_jax.fixed_point.neumann_gcr import neumann_gcr as solve_general
from unroll_jax.fixed_point.problem import Adjoint, Linear, SolveInfo, Unrolled

__all__ = [
    "ADJOINTS",
    "conjugate_gradient",
    "gmres",
    "neumann",
    "neumann_gcr",
    "one_step",
    "resolve_adjoint",
]


def conjugate_gradient() -> Adjoint:
    """Conjugate gradients: the quickest where J is symmetric, as of every layer that is a gradient.

    Source: Hestenes and Stiefel (1952).

    Example:
      >>> import jax.numpy as jnp
      >>> w, info = conjugate_gradient().solve(lambda w: 0.5 * w, jnp.ones((1, 1)), 1e-6, 20)
      >>> round(w.item(), 3), info.steps.tolist()  # w - w / 2 = 1
      (2.0, [1])
    """
    return Adjoint(
        lambda operator, v, tol, max_steps: linear.conjugate_gradient(operator, v, tol=tol, max_steps=max_steps),
        symmetric=True,
    )


@checked(restart=at_least(1))
def gmres(restart: int = 20) -> Adjoint:
    """GMRES, restarted: for any J with I - J invertible; keeps restart + 1 vectors an example.

    Args:
      restart: vectors after which it starts again, at least 1.

    Raises:
      ValueError: if restart is below 1.

    Source: Saad and Schultz (1986).

    Example:
      >>> import jax.numpy as jnp
      >>> turn = lambda w: jnp.stack([-w[:, 1], w[:, 0]], axis=1)  # J^T is not symmetric
      >>> w, _ = gmres().solve(turn, jnp.array([[2.0, 0.0]]), 1e-6, 20)
      >>> [round(value, 3) for value in w[0].tolist()]  # w - J^T w = (2, 0)
      [1.0, 1.0]
    """
    return Adjoint(
        lambda operator, v, tol, max_steps: linear.gmres(operator, v, tol=tol, max_steps=max_steps, restart=restart)
    )


@checked(window=at_least(1))
def neumann_gcr(window: int = 20) -> Adjoint:
    """The Neumann series as long as it converges quickly, then generalised conjugate residuals, for any J.

    Conjugate residuals (GCR) take as many products as GMRES in exact arithmetic and keep 2 ``window`` vectors an
    example; the series keeps none.

    Args:
      window: directions that a new one is made conjugate to, at least 1.

    Raises:
      ValueError: if window is below 1.

    Source: Eisenstat, Elman and Schultz (1983).

    Example:
      >>> import jax.numpy as jnp
      >>> turn = lambda w: jnp.stack([-w[:, 1], w[:, 0]], axis=1)  # of which the series does not converge
      >>> w, _ = neumann_gcr().solve(turn, jnp.array([[2.0, 0.0]]), 1e-6, 20)
      >>> [round(value, 3) for value in w[0].tolist()]  # w - J^T w = (2, 0)
      [1.0, 1.0]
    """
    return Adjoint(
        lambda operator, v, tol, max_steps: solve_general(operator, v, tol=tol, max_steps=max_steps, window=window)
    )


@checked(terms=at_least(1), damping=in_interval("(0, 1]"))
def neumann(terms: int = 10, *, damping: float = 1.0) -> Adjoint:
    r"""The phantom gradient by the Neumann series, cut off and damped.

    .. math:: w = \lambda \sum_{k < terms} ((1 - \lambda) I + \lambda J^T)^k v .

    Damping 1 are the first terms of the series of :math:`(I - J^T)^{-1}`. A smaller one is for a J with eigenvalues
    below -1, with which the plain series diverges. `phantom` differentiates as many steps and takes no fixed J.

    Args:
      terms: how many, at least 1.
      damping: :math:`\lambda`, in (0, 1].

    Raises:
      ValueError: if an argument is out of range.

    Source: Geng et al. (2021), On Training Implicit Models, eq. 12.

    Example:
      >>> import jax.numpy as jnp
      >>> neumann(3).solve(lambda w: 0.5 * w, jnp.ones((1, 1)), 1e-6, 20)[0].tolist()  # 1 + 1 / 2 + 1 / 4
      [[1.75]]
    """

    def solve(operator: Linear, v: Array, tol: float, max_steps: int) -> tuple[Array, SolveInfo]:
        return linear.neumann(operator, v, terms=terms, damping=damping, tol=tol)

    return Adjoint(solve, exact=False)


def one_step() -> Adjoint:
    """w = v: the gradient of one step at the equilibrium, Jacobian-free.

    Source: Fung et al. (2022), JFB.

    Example:
      >>> import jax.numpy as jnp
      >>> one_step().solve(lambda w: 0.5 * w, jnp.ones((1, 1)), 1e-6, 20)[0].tolist()
      [[1.0]]
    """

    def solve(operator: Linear, v: Array, tol: float, max_steps: int) -> tuple[Array, SolveInfo]:
        rows = v.shape[0]
        unknown = jnp.full(rows, jnp.nan, v.dtype)  # not measured: that would cost the product that this one saves
        return v, SolveInfo(unknown, jnp.zeros(rows, jnp.int32), jnp.zeros(rows, jnp.int32))

    return Adjoint(solve, exact=False)


#: Ways to the gradient of `equilibrium` by name; each entry is a factory whose options have defaults.
ADJOINTS: dict[str, Callable[..., Adjoint | Unrolled]] = {
    "conjugate_gradient": conjugate_gradient,
    "gmres": gmres,
    "neumann_gcr": neumann_gcr,
    "neumann": neumann,
    "one_step": one_step,
    "unrolled": unrolled,
    "phantom": phantom,
    "reversible": reversible,
}


def resolve_adjoint(adjoint: str | Adjoint | Unrolled) -> Adjoint | Unrolled:
    """The `Adjoint` or `Unrolled` of a name of `ADJOINTS`, or the one given.

    Raises:
      ValueError: if the name is not in `ADJOINTS`.
      TypeError: if it is none of these.
    """
    entry = look_up("adjoint", adjoint, ADJOINTS, Adjoint, Unrolled)
    return entry if isinstance(entry, Adjoint | Unrolled) else entry()
