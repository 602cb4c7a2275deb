"""Fixed-point iterations by name.

Plain and damped steps, Anderson's, averages, and accelerated gradients.
"""

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
from unroll_jax.fixed_point.rows import dot, norm, row_constant, squares, zeros
from unroll_jax.fixed_point.solver import Map, Point, Solver
from unroll_jax.numerics import power_inverse

__all__ = [
    "SOLVERS",
    "accelerated_gradient",
    "anderson",
    "averaged",
    "cache_factory",
    "damped",
    "jaxopt_solver",
    "picard",
    "resolve_solver",
]

# A difference extends a basis if more than this share of its square, in units of
# round-off, is orthogonal to the basis.
NEW_DIRECTION = 0.01


def cache_factory(factory: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a factory return the same value for the same options.

    Programs with that value are then compiled once.
    """
    cached = functools.lru_cache(maxsize=256)(factory)

    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        try:
            return cached(*args, **kwargs)
        except TypeError:
            # An option has no hash.
            return factory(*args, **kwargs)

    return make


def picard() -> Solver:
    """z' = f(z): converges at the rate of f's contraction.

    Example: see `anderson`.
    """
    return damped(1.0)


@checked(damping=in_interval("(0, 1]"))
@cache_factory
def damped(damping: float = 0.5) -> Solver:
    """z' = (1 - damping) z + damping f(z), for every nonexpansive f.

    Args:
      damping: weight of f(z), in (0, 1]; 1 is `picard`.

    Source: Krasnoselskii (1955); Mann (1953).

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> reflect, solver = lambda w, z, x: w - z, damped(0.5)
      >>> z, _ = unroll_jax.equilibrium(reflect, 1.0, jnp.zeros(1), solver=solver)
      >>> round(float(z[0]), 3)  # plain steps go 0, 1, 0, 1
      0.5
    """

    def update(point: Point, memory: Any) -> tuple[Array, Any]:
        if damping == 1.0:
            return point.fz, memory
        unit, z, image = _in_units(point)
        return unit * (z + damping * (image - z)), memory

    return Solver(init=lambda z: (), update=update)


class _Basis(NamedTuple):
    """The memory of `anderson`.

    Attributes:
      Q: orthonormal differences of residuals.
      U: the differences of images that go with them.
      state: the last state.
      image: f of it.
    """

    Q: Float[Array, "b w m"]
    U: Float[Array, "b w m"]
    state: Float[Array, "b m"]
    image: Float[Array, "b m"]


@checked(window=at_least(1))
@cache_factory
def anderson(window: int = 5) -> Solver:
    r"""Plain steps while they are quick, then Anderson acceleration.

    The acceleration uses a truncated Gram-Schmidt basis. With d = f(z) - z, orthonormal
    differences Q of the last residuals and the matching differences U of images f(z),

    .. math:: z' = f(z) - U Q^T d .

    On a linear map it is GMRES truncated to the window, with little loss if the
    Jacobian is symmetric. Plain steps come first, while each makes every residual 1.25
    times smaller. They return for good if a trial of accelerated steps gains little. An
    example whose |f(z) - z| rises to twice its least returns to its best state.

    Args:
      window: differences kept, at least 1.

    Source: Anderson (1965); Tang, Xu, Saad (2024), truncated Gram-Schmidt; safeguards
    of Fu, Zhang, Boyd (2020), A2DR.

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax import equilibrium
      >>> step, start = lambda w, z, x: w * z + 1.0, jnp.zeros(1)
      >>> for solver in (anderson(), accelerated_gradient(), picard()):
      ...     z, info = equilibrium(step, 0.9, start, solver=solver)
      ...     print(round(float(z[0]), 1), int(info.steps) < 30)
      10.0 True
      10.0 True
      10.0 False
    """

    def init(z: Array) -> _Basis:
        none = zeros(z)
        history = none[:, None] + jnp.zeros((window, 1), z.dtype)
        return _Basis(history, history, none, none)

    def update(point: Point, basis: _Basis) -> tuple[Array, _Basis]:
        project = functools.partial(jnp.einsum, "bwm,bm->bw")
        combine = functools.partial(jnp.einsum, "bw,bwm->bm")
        unit, z, image, last_z, last_image = _in_units(point, basis.state, basis.image)
        d = image - z
        change = d - (last_image - last_z)
        image_change = image - last_image

        # Updates since each vector was written.
        place = jax.lax.rem(point.number, jnp.full_like(point.number, window))
        lag = place - jnp.arange(window, dtype=jnp.int32)
        since = jnp.where(lag > 0, lag, lag + window)
        live = since <= point.age[:, None]
        coefficients = jnp.where(live, project(basis.Q, change), 0.0)
        q = change - combine(coefficients, basis.Q)
        u = image_change - combine(coefficients, basis.U)

        # What is left of the change may be round-off of what was taken from it.
        left, whole = squares(q, change)
        lost = float(jnp.finfo(q.dtype).eps) * whole
        is_new = (left > NEW_DIRECTION * lost) & (left > 0.0)
        usable = point.active & is_new & (point.number > 0)
        scale = jax.lax.rsqrt(jnp.where(usable, left, 1.0))[:, None]
        Q = _write(basis.Q, place, usable, q * scale)
        U = _write(basis.U, place, usable, u * scale)
        live = live | (lag == 0)
        coefficients = jnp.where(live, unit * project(Q, d), 0.0)
        after = point.fz - combine(coefficients, U)
        return after, _Basis(Q, U, point.z, point.fz)

    return Solver(init=init, update=update, extrapolates=True)


@checked(smoothness=POSITIVE, eta=in_interval("(0, 1]"))
@cache_factory
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
              \beta_k = \eta / k^p , \; \lambda_k = \eta / k^c , \;
              \gamma = 1 / (2 L_R) .

    For T nonexpansive and R convex with L_R-Lipschitz gradient it converges to the
    fixed point of least R. It converges slowly (the weights fall as powers of k): its
    use is a T with many fixed points. It takes all of ``max_steps`` from any start: a
    fixed point need not be the one of least R.

    Args:
      regulariser: R of one state as a vector; None is |z|^2 / 2.
      smoothness: L_R > 0, Lipschitz constant of R's gradient.
      eta: scale of both schedules, in (0, 1].
      p, c: exponents of beta and lambda, positive, with p + 2 c < 1.
      couples_examples: True if R is of all states at once, a matrix (b, m) with
        examples as rows.

    Source: Xie et al. (2021), eq. 10 and Theorem 4.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> keep_sum = lambda w, z, x: z + w * (2.0 - z.sum())  # fixed if z_1 + z_2 = 2
      >>> options = {"max_steps": 500, "on_failure": "accept", "batch_ndim": 0}
      >>> z, _ = unroll_jax.equilibrium(
      ...     keep_sum, 0.5, jnp.array([3.0, -1.0]), solver=averaged(), **options
      ... )
      >>> bool(abs(z[0] - z[1]) < 0.1)  # near (1, 1), the one of least norm
      True
    """
    allowed = p > 0.0 and c > 0.0 and p + 2.0 * c < 1.0
    require(allowed, "p and c", "be positive with p + 2 c < 1", f"p={p}, c={c}")
    gamma = 0.5 / smoothness

    def slope(z: Float[Array, "b m"]) -> Float[Array, "b m"]:
        if regulariser is None:
            return z
        gradient = jax.grad(regulariser)
        return gradient(z) if couples_examples else jax.vmap(gradient)(z)

    def average(z: Array, fz: Array, number: Int[Array, ""]) -> Array:
        k = (number + 1).astype(z.dtype)
        beta = eta / k**p
        weight = eta / k**c
        regularised = (1.0 - gamma * weight) * z - gamma * slope(z)
        return beta * regularised + (1.0 - beta) * fz

    def update(point: Point, memory: Any) -> tuple[Array, Any]:
        return average(point.z, point.fz, point.number), memory

    def run(
        apply: Map, z: Array, tol: float, max_steps: int
    ) -> tuple[Array, Int[Array, " b"]]:
        end = jax.lax.fori_loop(0, max_steps, lambda k, z: average(z, apply(z), k), z)
        return end, row_constant(z, max_steps)

    return Solver(init=lambda z: (), update=update, run=run)


class _Momentum(NamedTuple):
    """The memory of `accelerated_gradient`: the last image, and its weight."""

    previous: Float[Array, "b m"]
    weight: Float[Array, " b"]


@cache_factory
def accelerated_gradient(*, proximal: bool = False) -> Solver:
    r"""Nesterov's accelerated gradient with restarts, for a symmetric Jacobian.

    It minimises the convex h with grad h(z) = z - f(z). J must have its spectrum in
    [0, 1], as of every OptEq layer: h is then convex and 1-smooth. With spectral radius
    c it needs about sqrt(1 / (1 - c)) steps a digit where Picard needs 1 / (1 - c), and
    c need not be known.

    Args:
      proximal: True if f is a proximal gradient step, as of `prox_gradient`. This is
        FISTA with restarts, without a probe of J.

    Source: Beck and Teboulle (2009), FISTA; Nesterov (1983); O'Donoghue and Candes
    (2015), gradient restart.

    Example: see `anderson`.
    """

    def update(point: Point, memory: _Momentum) -> tuple[Array, _Momentum]:
        unit, z, image, previous = _in_units(point, memory.previous)
        change = image - previous
        uphill = dot(z - image, change) > 0.0
        weight = jnp.where(uphill, 1.0, memory.weight)
        following = 0.5 * (1.0 + jnp.sqrt(1.0 + 4.0 * weight**2))
        momentum = jnp.where(uphill, 0.0, (weight - 1.0) / following)
        after = image + momentum[:, None] * change
        return unit * after, _Momentum(point.fz, following)

    return Solver(
        init=lambda z: _Momentum(z, row_constant(z, 1.0)),
        update=update,
        symmetric=not proximal,
    )


def jaxopt_solver(iteration: Callable[..., Any], **options: Any) -> Solver:
    """An iterative solver of jaxopt, on the whole batch as one problem.

    An example that misses ``tol`` counts as failed, at round-off too.

    Args:
      iteration: such as `jaxopt.AndersonAcceleration`; one of a root, such as
        `jaxopt.Broyden`, is given z - f(z).
      **options: of its constructor, but for the tolerance and the number of steps.

    Source: Blondel et al. (2022), "Efficient and modular implicit differentiation": the
    library.

    Example:
      >>> import warnings, jax.numpy as jnp, unroll_jax
      >>> with warnings.catch_warnings(action="ignore"):  # jaxopt is not maintained
      ...     import jaxopt
      >>> step, start = lambda w, z, x: jnp.cos(w * z), jnp.zeros(1)
      >>> solver = jaxopt_solver(jaxopt.AndersonAcceleration)
      >>> z, _ = unroll_jax.equilibrium(step, 1.0, start, solver=solver)
      >>> round(float(z[0]), 4)
      0.7391
    """
    is_root = "fixed_point_fun" not in inspect.signature(iteration).parameters

    def run(
        apply: Map, z: Float[Array, "b m"], tol: float, max_steps: int
    ) -> tuple[Array, Array]:
        kind = jax.typeof(z)
        sharded = any(axes is not None for axes in kind.sharding.spec)
        if sharded or kind.manual_axis_type.varying:
            raise ValueError(
                f"jaxopt's solvers take no sharded states, got {kind}; choose another"
                " solver"
            )
        if z.shape[0] == 0:
            return z, row_constant(z, 0)
        # An absolute tolerance is a constant of jaxopt's loop. The map is scaled
        # instead, to give the least row size 1.
        least = jnp.min(norm(apply(z)))
        scale = jnp.where(least > 0.0, least, 1.0)

        def scaled(z: Array) -> Array:
            return apply(z * scale) / scale

        loop = iteration(
            (lambda z: z - scaled(z)) if is_root else scaled,
            maxiter=max_steps,
            tol=tol,
            implicit_diff=False,
            **options,
        )
        end, state = loop.run(z / scale)
        steps = row_constant(z, 0) + state.iter_num
        return jax.lax.stop_gradient(end * scale), steps

    return Solver(init=lambda z: (), update=None, run=run)


#: Solvers of `equilibrium` by name. Each entry is a factory; its options have defaults.
SOLVERS: dict[str, Callable[..., Solver]] = {
    "picard": picard,
    "damped": damped,
    "anderson": anderson,
    "averaged": averaged,
    "accelerated_gradient": accelerated_gradient,
}


def resolve_solver(solver: str | Solver) -> Solver:
    """The `Solver` of a name of `SOLVERS`, or the `Solver` given.

    Raises:
      ValueError, TypeError: if it is neither.
    """
    entry = look_up("solver", solver, SOLVERS, Solver)
    return entry if isinstance(entry, Solver) else entry()


def _in_units(point: Point, *states: Float[Array, "b m"]) -> tuple[Array, ...]:
    """The unit of each row, and z, f(z) and other states in it.

    The unit is a power of two, so nothing is rounded. Differences of tiny states do not
    underflow then, and products of large ones do not overflow.
    """
    inverse = point.inverse[:, None]
    scaled = [inverse * state for state in (point.z, point.fz, *states)]
    return power_inverse(inverse), *scaled


def _write(
    history: Float[Array, "b w m"],
    place: Array,
    usable: Bool[Array, " b"],
    row: Float[Array, "b m"],
) -> Float[Array, "b w m"]:
    """The history with ``row`` at ``place``, or 0 where it is not usable.

    Unlike indexed updates it keeps shardings that are part of the type.
    """
    row = jnp.where(usable[:, None], row, 0.0)[:, None]
    return jax.lax.dynamic_update_index_in_dim(history, row, place, axis=1)
