"""Implicit gradients of any solver's result: against closed forms, autodiff of them
and SciPy's results."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from flax import linen
from numpy.testing import assert_allclose
from sklearn.linear_model import Lasso

import unroll_jax as uj
from tests.marks import nightly
from tests.reference import compiled
from unroll_jax import fixed_point as fp
from unroll_jax.energies import soft_threshold

pytestmark = pytest.mark.usefixtures("unchecked", "x64")
DRAW = np.random.default_rng(0)
ONE = np.ones(())
FOUR = np.full((), 4.0)
TENTH = np.full((), 0.1)
ZEROS = np.zeros(5)
X = DRAW.normal(size=(30, 5))
Y = X @ np.array([1.0, -2.0, 0.0, 0.0, 0.5]) + 0.1 * DRAW.normal(size=30)


def ridge_loss(weight, w, X, y):
    return 0.5 * jnp.mean((X @ w - y) ** 2) + 0.5 * weight * jnp.sum(w**2)


ridge_loss_and_slope = compiled(jax.value_and_grad(ridge_loss, 1))


def slopes_of_ridge(weight):
    """Of |w|^2 in the weight and in X, where H w = X^T y / n: -<u, w> and the
    derivative of <u, X^T (y - X w) / n>."""
    H = X.T @ X / len(Y) + weight * np.eye(5)
    w = np.linalg.solve(H, X.T @ Y / len(Y))
    u = 2.0 * np.linalg.solve(H, w)
    return -u @ w, (np.outer(Y - X @ w, u) - np.outer(X @ u, w)) / len(Y)


def by_scipy(weight, w, X, y):
    value_and_slope = lambda w: ridge_loss_and_slope(weight, w, X, y)
    options = {"gtol": 1e-10, "ftol": 1e-15}
    return scipy.optimize.minimize(
        value_and_slope, np.asarray(w), jac=True, method="L-BFGS-B", options=options
    ).x


def by_callback(*args):
    return jax.pure_callback(by_scipy, jax.ShapeDtypeStruct((5,), jnp.float64), *args)


def test_any_solver_gets_the_gradient_of_the_closed_form():
    solve = uj.implicit_argmin(ridge_loss, adjoint_tol=1e-10)(by_callback)

    @compiled
    @functools.partial(jax.grad, argnums=(0, 1))
    def gradient(weight, X):
        return jnp.sum(solve(weight, jnp.zeros(5), X, Y) ** 2)

    expected = slopes_of_ridge(0.1)
    for slope, one in zip(gradient(0.1, X), expected, strict=True):
        assert_allclose(slope, one, rtol=1e-5, atol=1e-7)
    # SciPy itself, outside of jit
    solve = uj.implicit_argmin(ridge_loss, adjoint_tol=1e-10)(by_scipy)
    z, pull = jax.vjp(lambda weight: solve(weight, ZEROS, X, Y), TENTH)
    assert_allclose(pull(2.0 * np.asarray(z))[0], expected[0], rtol=1e-5)


@nightly
def test_forward_mode_gives_tangents_and_second_derivatives():
    def closed(weight, *_):
        return jnp.linalg.solve(
            X.T @ X / len(Y) + weight * jnp.eye(5), X.T @ Y / len(Y)
        )

    solve = uj.implicit_argmin(ridge_loss, forward_mode=True, adjoint_tol=1e-12)(closed)

    def slopes(find, weight):
        total = lambda weight: jnp.sum(find(weight, jnp.zeros(5), X, Y))
        return [way(total)(weight) for way in (jax.jacfwd, jax.grad, jax.hessian)]

    got, expected = compiled(lambda w: (slopes(solve, w), slopes(closed, w)))(0.1)
    assert_allclose(got, expected, rtol=1e-8)


def test_roots_of_batches_keep_their_values_and_get_gradients():
    a = np.linspace(-2.0, 3.0, 24).reshape(2, 3, 4)

    @uj.implicit_root(
        lambda a, z: 1e-6 * (z**3 + z - a), batch_ndim=2, adjoint_tol=1e-10
    )
    def cubic(a, z0):
        newton = lambda _, z: z - (z**3 + z - a) / (3.0 * z**2 + 1.0)
        return jax.lax.fori_loop(0, 30, newton, z0)

    @compiled
    def run(a):
        z, pull = jax.vjp(lambda a: cubic(a, jnp.zeros_like(a)), a)
        return z, pull(jnp.ones_like(a))[0]

    z, slope = run(a)
    assert_allclose(z**3 + z, a, rtol=1e-14, atol=1e-14)
    assert_allclose(slope, 1.0 / (3.0 * z**2 + 1.0), rtol=1e-8)


def test_adjoints_by_name_and_value_and_pytrees():
    matrix = np.array([[1.0, 0.2], [0.2, 0.8]])
    inverse = np.linalg.inv(matrix)
    start = {"u": np.zeros(2), "v": np.zeros(3)}

    def optimality(params, z, x):
        return {"u": matrix @ z["u"] - params, "v": z["v"] - x}

    def gradient(adjoint, p, x):
        decorate = uj.implicit_root(optimality, adjoint=adjoint, adjoint_tol=1e-10)
        solve = decorate(lambda params, z0, x: {"u": inverse @ params, "v": x})
        total = lambda root: jnp.sum(root["u"]) + jnp.sum(root["v"] ** 2)
        return jax.grad(lambda p, x: total(solve(p, start, x)), (0, 1))(p, x)

    @compiled
    def run(*point):
        adjoints = ("gmres", fp.conjugate_gradient())
        return [gradient(adjoint, *point) for adjoint in adjoints]

    for for_p, for_x in run(np.ones(2), np.arange(3.0)):
        assert_allclose(for_p, np.sum(inverse, axis=0), rtol=1e-8)
        assert_allclose(for_x, 2.0 * np.arange(3.0), rtol=1e-8)


def test_closed_over_values_aux_and_the_probe():
    def root(a, probe):
        solve = uj.implicit_root(lambda _, z: z**2 - a, has_aux=True)(
            lambda _, z0: (2.0 * z0, "two")
        )
        z, aux = solve(None, jnp.ones(()), probe=probe)
        assert aux == "two"
        return z

    slope, probe = compiled(jax.grad(root, argnums=(0, 1)))(4.0, fp.zero_probe())
    assert_allclose(slope, 0.25, rtol=1e-6)
    assert float(probe.converged) == 1.0


def test_a_singular_condition_is_reported():
    def gradient(on_failure):
        condition = lambda a, z: a - 1.0 + 0.0 * z
        solve = uj.implicit_root(condition, on_failure=on_failure)(lambda a, z0: z0)
        ones = np.ones(5)
        return jax.vjp(lambda a: solve(a, ones), ones)[1](ones)

    words = "derivative in z may be singular at the solution"
    with pytest.warns(fp.ConvergenceWarning, match=words):
        gradient("warn")
    with pytest.raises(fp.ConvergenceError, match="1 of 1 examples failed"):
        gradient("error")
    gradient("accept")  # warnings are errors here


def squares(params, z, x):
    X, y = x
    return 0.5 * jnp.mean((X @ z - y) ** 2)


def by_data(params, x):
    return len(x[1]) / jnp.linalg.norm(x[0], 2) ** 2


def by_sklearn(weight, z0, x):
    return (
        Lasso(alpha=float(weight), fit_intercept=False, tol=1e-14, max_iter=10_000)
        .fit(*x)
        .coef_
    )


FISTA = fp.accelerated_gradient(proximal=True)


def shrink(weight, z, size):
    return soft_threshold(weight).prox(z, size)


@pytest.mark.parametrize(
    "solver", [pytest.param(None, marks=nightly), FISTA], ids=["default", "fista"]
)
def test_the_lasso_and_its_gradient_are_those_of_scikit_learn(solver):
    penalty = lambda weight, z: weight * jnp.sum(jnp.abs(z))
    layer = uj.prox_gradient(squares, shrink, step_size=by_data, penalty=penalty)

    def size(weight):
        options = {"solver": solver, "tol": 1e-10, "max_steps": 2000}
        z, _ = uj.equilibrium(layer, weight, jnp.zeros(5), (X, Y), **options)
        return jnp.sum(z**2), z

    slope, z = compiled(jax.grad(size, has_aux=True))(0.1)
    assert_allclose(z, by_sklearn(0.1, None, (X, Y)), atol=1e-8)
    above, below = (np.sum(by_sklearn(w, None, (X, Y)) ** 2) for w in (0.1001, 0.0999))
    assert_allclose(slope, (above - below) / 2e-4, rtol=1e-5)
    wrapped = uj.implicit_argmin(squares, prox=shrink, step_size=0.5)(by_sklearn)
    z, pull = jax.vjp(lambda w: wrapped(w, ZEROS, (X, Y)), TENTH)
    assert_allclose(pull(2.0 * np.asarray(z))[0], slope, rtol=1e-5)


def test_pairs_by_name_batches_and_the_energy_of_a_step():
    z0, x = DRAW.normal(size=(2, 2, 3, 4))
    layer = uj.prox_gradient(
        lambda p, z, x: 0.5 * jnp.sum((z - x) ** 2, (-2, -1)),
        "soft_threshold",
        step_size=0.5,
    )

    @compiled
    def run(z0, x):
        z, info = uj.equilibrium(layer, None, z0, x, tol=1e-10)
        after = layer.step(None, z0, x)
        energies = [layer.energy(None, each, x) for each in (after, z0)]
        return z, info.converged, energies

    z, converged, (after, before) = run(z0, x)
    assert converged.shape == (2,)
    assert_allclose(z, np.sign(x) * np.maximum(np.abs(x) - 1.0, 0.0), atol=1e-9)
    assert np.all(after < before)


MATRIX = np.array([[2.0, 0.5], [-0.3, 1.0]], np.float32)
SYMMETRIC = MATRIX @ MATRIX.T
SCALES = np.array([1e-25, 1e-12, 1e-5, 1e-3, 1.0, 1e6, 1e20], np.float32)


# A matrix, and the condition whose solution is z = A^-1 p.
CONDITIONS = {
    "implicit_root": (MATRIX, lambda A, p, z: A @ z - p),
    "implicit_argmin": (SYMMETRIC, lambda A, p, z: 0.5 * z @ A @ z - p @ z),
}


def total(p, name, scale=1.0, **options):
    """The sum of the solution, of a condition that is multiplied by a number."""
    A, condition = CONDITIONS[name]
    A = A.astype(p.dtype)
    wrap = getattr(uj, name)(lambda p, z: scale * condition(A, p, z), **options)
    return jnp.sum(wrap(lambda p, z0: np.linalg.inv(A) @ p)(p, jnp.zeros_like(p)))


def test_gradients_have_every_digit_at_any_scale_of_the_condition():
    """In float32. The warning of a failed linear solve is an error here."""

    def slopes(p, scale):
        options = {"scale": scale, "adjoint_tol": 1e-6}
        return {
            (name, mode): jax.grad(total)(p, name, forward_mode=mode, **options)
            for name in CONDITIONS
            for mode in (False, True)
        }

    ones = np.ones(2, np.float32)
    run = compiled(lambda scales: jax.lax.map(lambda s: slopes(ones, s), scales))
    for (name, mode), rows in run(SCALES).items():
        matrix = CONDITIONS[name][0].T.astype(np.float64)
        for slope in rows:
            expected = np.linalg.solve(matrix, ones)
            assert_allclose(slope, expected, rtol=3e-6, err_msg=f"{name}, {mode}")


def test_an_asymmetric_derivative_is_found_at_any_scale():
    @uj.implicit_root(
        lambda a, z, scale: scale * (MATRIX @ z - a),
        adjoint="conjugate_gradient",
        on_failure="error",
    )
    def solve(a, z0, scale):
        return np.linalg.inv(MATRIX) @ a

    a = np.ones(2, np.float32)
    slope = compiled(jax.grad(lambda a, scale: jnp.sum(solve(a, a, scale))))
    for scale in np.float32([1.0, 1e-6]):
        with pytest.raises(jax.errors.JaxRuntimeError, match="not symmetric"):
            slope(a, scale)
    with pytest.raises(fp.ConvergenceError, match="not symmetric"):
        jax.vjp(lambda a: solve(a, a, scale), a)[1](a)


square = lambda a, z: z**2 - a
FAR = {  # a condition, a wrapped solver that fails, and its arguments
    "its start": (
        functools.partial(uj.implicit_root, square),
        lambda a, z0: z0,
        (FOUR, ONE),
    ),
    "one prox": (
        functools.partial(
            uj.implicit_argmin,
            lambda p, z: jnp.sum((z - 1.0) ** 2),
            prox=lambda weight, z, size: z / (1.0 + size * weight),
            step_size=0.1,
        ),
        lambda p, z0: z0 + 0.1,
        (ONE, np.zeros(3)),
    ),
    "one of two examples": (
        functools.partial(uj.implicit_root, square, batch_ndim=1),
        lambda a, z0: jnp.sqrt(a) + np.array([0.0, 0.1]),
        (4.0 + np.zeros(2), 1.0),
    ),
}


@pytest.mark.parametrize("case", FAR)
def test_results_that_are_no_solutions_are_reported_as_asked(case):
    wrap, solver, (first, *others) = FAR[case]

    def gradient(first, on_failure):
        solve = wrap(on_failure=on_failure)(solver)
        return jax.grad(lambda first: jnp.sum(solve(first, *others)))(first)

    both = compiled(lambda first: [gradient(first, do) for do in ("warn", "accept")])
    name = f"^{wrap.func.__name__}: 1 of . results of the solver"
    with pytest.warns(fp.ConvergenceWarning, match=name) as warnings:
        both(first)
    assert len(warnings) == 1
    with pytest.raises(jax.errors.JaxRuntimeError, match="derivatives are wrong"):
        compiled(functools.partial(gradient, on_failure="error"))(first)


def test_a_result_that_is_no_solution_is_an_error_outside_of_jit():
    solve = uj.implicit_argmin(ridge_loss, adjoint_tol=1e-10, on_failure="error")(
        lambda weight, z0, X, y: z0
    )
    with pytest.raises(fp.ConvergenceError, match="and their derivatives are wrong"):
        jax.vjp(lambda weight: solve(weight, ZEROS, X, Y), TENTH)


def test_solutions_pass_from_any_start_and_of_any_size():
    """Solutions at 0, but for round-off, and starts at the solution or far from it."""

    @uj.implicit_root(lambda a, z: z - a, on_failure="error")
    def nearly(a, z0):
        return a + 1e-12 * z0

    scales = 1e-25, 1.0, 1e25
    for scale, value, start in itertools.product(scales, (0.0, 1e-9, 1.0), (1.0, 2.0)):
        a = np.array(scale * value)
        assert_allclose(nearly(a, scale * start), a, atol=1e-9 * scale)


@pytest.mark.parametrize("name", CONDITIONS)
def test_errors_of_derivatives_name_the_function_called(name):
    f = functools.partial(total, name=name)
    p = np.ones(2, np.float32)
    tangent = lambda p: jax.jvp(f, (p,), (p,))
    # eager, and compiled
    for call in (tangent, compiled(tangent), compiled(jax.hessian(f))):
        with pytest.raises(TypeError, match=f"^{name} supports .*forward_mode") as info:
            call(p)
        assert "unrolled" not in str(info.value)


def test_names_in_the_order_of_jaxopt_are_an_error():
    swapped = lambda z, params: z - params
    calls = {
        "optimality": lambda: uj.implicit_root(swapped),
        "objective": lambda: uj.implicit_argmin(swapped),
        "the solver": lambda: uj.implicit_root(lambda p, z: z - p)(swapped),
    }
    for place, call in calls.items():
        words = rf"^{place} must take \(params, z, ...\), got \(z, params\)"
        with pytest.raises(TypeError, match=words):
            call()


# Solvers of conditions in jaxopt's order, with other names. Of scalars either order fits,
# of arrays one.
OF_JAXOPT = {
    "a root of scalars": uj.implicit_root(lambda x, a: x**3 - a)(
        lambda a, z0: jnp.cbrt(a)
    ),
    "a root of arrays": uj.implicit_root(lambda x, a: x - jnp.sum(a))(
        lambda a, z0: a * np.ones(5)
    ),
    "a minimiser of scalars": uj.implicit_argmin(lambda x, w: (1.0 + w) * x**2 - x)(
        lambda w, z0: 0.5 / (1.0 + w)
    ),
    "a minimiser of arrays": uj.implicit_argmin(
        lambda x, w: jnp.sum((x - 2.0) ** 2) + w * x @ x
    )(lambda w, z0: 2.0 / (1.0 + w) * np.ones(5)),
}


@pytest.mark.parametrize("case", OF_JAXOPT)
def test_values_in_the_order_of_jaxopt_are_an_error(case):
    solve = OF_JAXOPT[case]
    what = "optimality" if "root" in case else "objective"
    slope = jax.grad(lambda params: jnp.sum(solve(params, ONE)))
    for call in (lambda: solve(FOUR, ONE), lambda: slope(FOUR)):
        with pytest.raises(
            TypeError, match=rf"^{what} must take \(params, z, ...\), but"
        ):
            call()


def test_a_mistake_in_either_order_is_raised_as_it_is():
    wrong = uj.implicit_root(lambda a, z: z @ jnp.ones((3, 7)))(lambda a, z0: z0)
    with pytest.raises(TypeError, match="dot_general"):
        wrong(FOUR, np.ones(5))


def test_a_module_is_a_constant_of_the_solver_and_no_state():
    module = linen.Dense(1)  # a leaf without arrays, which has a dtype
    solve = uj.implicit_argmin(lambda p, z, x: (z - p) ** 2)(lambda p, z0, x: z0)
    assert float(jax.grad(solve)(FOUR, FOUR, module)) == 1.0
    with pytest.raises(TypeError, match=r"solution must be .*module"):
        solve(FOUR, module, FOUR)
