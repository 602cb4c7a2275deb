"""Fixed-point iterations by name: plain and damped steps, Anderson's, averages, and
accelerated gradients."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.arguments import (
    POSITIVE,
    at_least,
    checked,
    in_interval,
    look_up,
    require,
)
from unroll_jax.fixed_point.loop import Map, Point, Solver
from unroll_jax.fixed_point.sizes import dot, filled
from unroll_jax.numerics import over

__all__ = [
    "SOLVERS",
    "accelerated_gradient",
    "anderson",
    "averaged",
    "damped",
    "jaxopt_solver",
    "picard",
    "resolve_solver",
    "shared",
]

# share of a squared difference that must be left of it, beyond round-off, to extend a
# basis
NEW_DIRECTION = 0.01


def shared(factory: Callable[..., Any]) -> Callable[..., Any]:
    """The factory, which returns the same value for the same options: programs with
    it are then compiled once."""
    cached = functools.lru_cache(maxsize=256)(factory)

    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        try:
            return cached(*args, **kwargs)
        except TypeError:  # an option without a hash
            return factory(*args, **kwargs)

    return make


def picard() -> Solver:
    """z' = f(z): converges at the rate of f's contraction.

    Example: see `anderson`.
    """
    return damped(1.0)


@checked(share=in_interval("(0, 1]"))
@shared
def damped(share: float = 0.5) -> Solver:
    """z' = (1 - share) z + share f(z) (Krasnoselskii-Mann): converges for every f that
    is nonexpansive.

    Args:
      share: of f(z) in the step, in (0, 1]; 1 is `picard`.

    Source: Krasnoselskii (1955); Mann (1953).

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> reflect, start = (
      ...     lambda w, z, x: w - z,
      ...     jnp.zeros(()),
      ... )  # plain steps go 0, 1, 0, 1
      >>> z, info = unroll_jax.equilibrium(
      ...     reflect, 1.0, start, solver=damped(0.5), batch_ndim=0
      ... )
      >>> round(float(z), 3)
      0.5
    """

    def update(point: Point, memory: Any) -> tuple[Array, Any]:
        return (
            point.fz if share == 1.0 else point.z + share * (point.fz - point.z)
        ), memory

    return Solver(init=lambda z: (), update=update)


class _Basis(NamedTuple):
    """Orthonormal differences of residuals Q, the differences of images U that go
    with them, and the point before."""

    Q: Float[Array, "b w m"]
    U: Float[Array, "b w m"]
    live: Bool[Array, "b w"]
    residual: Float[Array, "b m"]
    image: Float[Array, "b m"]
    size: Int[Array, ""]  # vectors so far


@checked(window=at_least(1))
@shared
def anderson(window: int = 5) -> Solver:
    r"""Plain steps while they are quick, then Anderson acceleration by a truncated
    Gram-Schmidt basis.

    With d = f(z) - z, orthonormal differences Q of the last residuals and the matching
    differences U of images f(z),

    .. math:: z' = f(z) - U Q^T d .

    On a linear map it is GMRES truncated to the window, with little loss if the
    Jacobian is symmetric. Plain steps come first, while each makes every residual 1.25
    times smaller, and return for good if ten accelerated steps do no better than plain
    ones. An example whose residual rises to twice its least restarts at its best state.

    Args:
      window: differences kept, at least 1.

    Source: Anderson (1965); Tang, Xu, Saad (2024), truncated Gram-Schmidt; safeguards
    of Fu, Zhang, Boyd (2020), A2DR.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> step, start = lambda w, z, x: w * z + 1.0, jnp.zeros(())
      >>> solvers = anderson(), accelerated_gradient(), picard()
      >>> ends = [
      ...     unroll_jax.equilibrium(step, 0.9, start, solver=solver, batch_ndim=0)
      ...     for solver in solvers
      ... ]
      >>> (
      ...     [round(float(z), 1) for z, _ in ends],
      ...     int(ends[0][1].steps) < 20 < 60 < int(ends[2][1].steps),
      ... )
      ([10.0, 10.0, 10.0], True)
    """

    def init(z: Array) -> _Basis:
        zeros = filled(z, 0.0)[:, None] + jnp.zeros_like(z)
        history = zeros[:, None] + jnp.zeros((window, 1), z.dtype)
        return _Basis(
            history,
            history,
            jnp.any(history > 0.0, axis=-1),
            zeros,
            zeros,
            jnp.zeros((), jnp.int32),
        )

    def update(point: Point, basis: _Basis) -> tuple[Array, _Basis]:
        against, combined = (
            functools.partial(jnp.einsum, "bwm,bm->bw"),
            functools.partial(jnp.einsum, "bw,bwm->bm"),
        )
        d, unit = point.fz - point.z, point.unit[:, None]
        change, image_change = (
            over(d - basis.residual, unit),
            over(point.fz - basis.image, unit),
        )
        live = basis.live & ~point.restart[:, None]
        shares = against(basis.Q, change) * live
        q, u = (
            change - combined(shares, basis.Q),
            image_change - combined(shares, basis.U),
        )
        left, epsilon = dot(q, q), float(jnp.finfo(q.dtype).eps)
        usable = (
            point.active
            & (left > NEW_DIRECTION * epsilon * dot(shares, shares))
            & (left > 0.0)
            & (basis.size > 0)
        )
        inverse = jax.lax.rsqrt(jnp.where(usable, left, 1.0))[:, None]
        place = basis.size % window
        Q = _put(basis.Q, jnp.where(usable[:, None], q * inverse, 0.0), place)
        U = _put(basis.U, jnp.where(usable[:, None], u * inverse, 0.0), place)
        live = live | (jnp.arange(window) == place)
        after = point.fz - combined(against(Q, d) * live, U)
        return after, _Basis(Q, U, live, d, point.fz, basis.size + 1)

    return Solver(init=init, update=update, extrapolates=True)


@checked(smoothness=POSITIVE, eta=in_interval("(0, 1]"))
@shared
def averaged(
    regulariser: Callable[[Float[Array, "..."]], Float[Array, ""]] | None = None,
    *,
    smoothness: float = 1.0,
    eta: float = 1.0,
    p: float = 0.5,
    c: float = 0.2,
    couples_examples: bool = False,
) -> Solver:
    r"""Modified SAM: averages the map with shrinking steps on a regulariser R.

    .. math:: z^k = \beta_k S_{\lambda_k}(z^{k-1}) + (1 - \beta_k) T(z^{k-1}) , \quad
              S_\lambda(z) = (1 - \gamma \lambda) z - \gamma \nabla R(z) , \quad
              \beta_k = \eta / k^p , \; \lambda_k = \eta / k^c , \; \gamma = 1 / (2 L_R) .

    For T nonexpansive and R convex with L_R-Lipschitz gradient it converges to the
    fixed point of least R. It converges slowly (the weights fall as powers of k): its
    use is a T with many fixed points. It takes all of ``max_steps`` from any start: a
    fixed point need not be the one of least R.

    Args:
      regulariser: R of one state as a vector; None is |z|^2 / 2.
      smoothness: L_R > 0, Lipschitz constant of R's gradient.
      eta: scale of both schedules, in (0, 1].
      p, c: exponents of beta and lambda, positive, with p + 2 c < 1.
      couples_examples: whether R is of all states at once, a matrix (b, m) with
        examples as rows.

    Source: Xie et al. (2021), eq. 10 and Theorem 4.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> keep_sum = lambda w, z, x: (
      ...     z + w * (2.0 - z.sum())
      ... )  # every z with z_1 + z_2 = 2 is a fixed point
      >>> options = {
      ...     "solver": averaged(),
      ...     "max_steps": 500,
      ...     "on_failure": "accept",
      ...     "batch_ndim": 0,
      ... }
      >>> z, _ = unroll_jax.equilibrium(
      ...     keep_sum, 0.5, jnp.array([3.0, -1.0]), **options
      ... )
      >>> bool(abs(z[0] - z[1]) < 0.1)  # near (1, 1), the one of least norm
      True
    """
    require(
        p > 0.0 and c > 0.0 and (p + 2.0 * c < 1.0),
        "p and c",
        "be positive with p + 2 c < 1",
        f"p={p}, c={c}",
    )
    gamma = 0.5 / smoothness

    def slope(z: Float[Array, "b m"]) -> Float[Array, "b m"]:
        if regulariser is None:
            return z
        return (
            jax.grad(regulariser)(z)
            if couples_examples
            else jax.vmap(jax.grad(regulariser))(z)
        )

    def average(z: Array, fz: Array, number: Int[Array, ""]) -> Array:
        k = (number + 1).astype(z.dtype)
        beta, weight = eta / k**p, eta / k**c
        return (
            beta * ((1.0 - gamma * weight) * z - gamma * slope(z)) + (1.0 - beta) * fz
        )

    def update(point: Point, memory: Any) -> tuple[Array, Any]:
        return average(point.z, point.fz, point.number), memory

    def whole(
        apply: Map, z: Array, tol: float, max_steps: int
    ) -> tuple[Array, Int[Array, " b"]]:
        end = jax.lax.fori_loop(
            0, max_steps, lambda k, z: average(z, apply(z), jnp.asarray(k)), z
        )
        return end, filled(z, max_steps)

    return Solver(init=lambda z: (), update=update, whole=whole)


class _Momentum(NamedTuple):
    previous: Float[Array, "b m"]
    weight: Float[Array, " b"]


@shared
def accelerated_gradient(*, proximal: bool = False) -> Solver:
    r"""Nesterov's accelerated gradient on the convex h with grad h(z) = z - f(z), with
    restarts.

    Needs J symmetric with spectrum in [0, 1] (every OptEq layer): h is then convex and
    1-smooth. With spectral radius c it needs about sqrt(1 / (1 - c)) steps a digit
    where Picard needs 1 / (1 - c), and no c is asked for.

    Args:
      proximal: whether f is a proximal gradient step, as of `prox_gradient`: FISTA with
        restarts, without a probe of J.

    Source: Beck and Teboulle (2009), FISTA; Nesterov (1983); O'Donoghue and Candes
    (2015), gradient restart.

    Example: see `anderson`.
    """

    def update(point: Point, memory: _Momentum) -> tuple[Array, _Momentum]:
        moved = point.fz - memory.previous
        uphill = dot(point.z - point.fz, moved) > 0.0
        weight = jnp.where(uphill, 1.0, memory.weight)
        following = 0.5 * (1.0 + jnp.sqrt(1.0 + 4.0 * weight**2))
        share = jnp.where(uphill, 0.0, (weight - 1.0) / following)
        return point.fz + share[:, None] * moved, _Momentum(point.fz, following)

    return Solver(
        init=lambda z: _Momentum(z, filled(z, 1.0)),
        update=update,
        symmetric=not proximal,
    )


def jaxopt_solver(iteration: Callable[..., Any], **options: Any) -> Solver:
    """An iterative solver of jaxopt, on the whole batch as one problem.

    Args:
      iteration: such as `jaxopt.AndersonAcceleration`; one of a root, such as
        `jaxopt.Broyden`, is given z - f(z).
      **options: of its constructor, but for the tolerance and the number of steps.

    Source: Blondel et al. (2022), "Efficient and modular implicit differentiation": the
    library.

    Example:
      >>> import warnings, jax.numpy as jnp, unroll_jax
      >>> with warnings.catch_warnings(
      ...     action="ignore"
      ... ):  # jaxopt warns that it is not maintained
      ...     import jaxopt
      >>> solver = jaxopt_solver(jaxopt.AndersonAcceleration)
      >>> z, _ = unroll_jax.equilibrium(
      ...     lambda w, z, x: jnp.cos(w * z), 1.0, jnp.zeros(1), solver=solver
      ... )
      >>> round(float(z[0]), 4)
      0.7391
    """
    root = "fixed_point_fun" not in inspect.signature(iteration).parameters

    def whole(
        apply: Map, z: Float[Array, "b m"], tol: float, max_steps: int
    ) -> tuple[Array, Array]:
        kind = jax.typeof(z)
        if kind.manual_axis_type.varying or any(
            axes is not None for axes in kind.sharding.spec
        ):
            raise ValueError(
                f"jaxopt's solvers take no sharded states, got {kind}; choose another"
                " solver"
            )
        least = jnp.min(jnp.linalg.norm(apply(z), axis=-1))
        # An absolute tolerance is a constant of its loop: the map is scaled instead, to
        # give the least row size 1.
        scale = jnp.where(least > 0.0, least, 1.0)
        scaled = lambda z: apply(z * scale) / scale
        function = (lambda z: z - scaled(z)) if root else scaled
        z, state = iteration(
            function, maxiter=max_steps, tol=tol, implicit_diff=False, **options
        ).run(z / scale)
        return jax.lax.stop_gradient(z * scale), filled(z, 0) + state.iter_num

    return Solver(init=lambda z: (), update=None, whole=whole)


#: Solvers of `equilibrium` by name; each entry is a factory whose options have defaults.
SOLVERS: dict[str, Callable[..., Solver]] = {
    "picard": picard,
    "damped": damped,
    "anderson": anderson,
    "averaged": averaged,
    "accelerated_gradient": accelerated_gradient,
}


def resolve_solver(solver: str | Solver) -> Solver:
    """The `Solver` of a name of `SOLVERS`, or the `Solver` given; a ValueError or
    TypeError if it is neither."""
    entry = look_up("solver", solver, SOLVERS, Solver)
    return entry if isinstance(entry, Solver) else entry()


def _put(
    history: Float[Array, "b w m"], row: Float[Array, "b m"], place: Array | int
) -> Float[Array, "b w m"]:
    """The history with ``row`` at ``place``; unlike indexed updates it keeps
    shardings that are part of the type."""
    return jax.lax.dynamic_update_index_in_dim(history, row[:, None], place, axis=1)
