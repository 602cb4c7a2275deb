"""Implicit gradients and their derivatives: against float64 autodiff through an unroll, and finite differences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import unroll_jax as uj
from tests.fixed_point.problems import (
    inputs,
    relative_error,
    skew_weights,
    symmetric_step,
    symmetric_weights,
    tanh_step,
    unrolled,
)
from unroll_jax import fixed_point

pytestmark = pytest.mark.usefixtures("x64")

# What compiles quickest, where the solver and the adjoint are not under test.
PLAIN = {"tol": 1e-11, "solver": "picard", "adjoint": "gmres", "batch_ndim": 1}


def loss_of(step, batch_ndim=1, **options):
    def loss(params, x):
        zeros = np.zeros((*x.shape[:-1], 8))
        options.setdefault("tol", 1e-10)
        y, _ = uj.equilibrium(
            step, params, zeros, x, batch_ndim=batch_ndim, max_steps=2000, on_failure="error", **options
        )
        return jnp.sum(jnp.sin(y) * jnp.arange(8.0))

    return loss


def test_plain_unrolling_is_autodiff_through_the_steps():
    x, ones = inputs(4, 3), np.ones((4, 8))
    options = {"adjoint": fixed_point.unrolled(3), "on_failure": "accept", "batch_ndim": 1}
    ours = lambda params: uj.equilibrium(symmetric_step, params, ones, x, **options)[0]  # noqa: E731
    looped = lambda params: unrolled(symmetric_step, params, ones, x, steps=3)  # noqa: E731
    both = jax.jit(lambda params: [jax.grad(lambda p, f=f: jnp.sum(f(p) ** 2))(params) for f in (ours, looped)])
    assert relative_error(*both(symmetric_weights())) < 1e-14


@pytest.mark.parametrize("adjoint", ["gmres", "conjugate_gradient"])
def test_gradients_equal_finite_differences(adjoint):
    step = lambda params, z, x: jnp.tanh(z @ params[0].T + x @ params[1].T) @ params[0]  # noqa: E731
    loss = jax.jit(loss_of(step, adjoint=adjoint, solver="picard"))
    check_grads(loss, (symmetric_weights(), inputs(2, 3)), order=1, modes=["rev"])


def test_neumann_terms_equal_the_series_and_one_step_is_its_first():
    A, x = skew_weights(norm=0.5), inputs(8)
    ways = [("one_step", 1), *((fixed_point.neumann(terms), terms) for terms in (1, 5, 40))]

    @jax.jit
    def run(A, x):
        losses = [loss_of(tanh_step, batch_ndim=0, adjoint=adjoint, solver="picard") for adjoint, _ in ways]
        return unrolled(tanh_step, A, jnp.zeros(8), x, steps=200), [jax.grad(loss, 1)(A, x) for loss in losses]

    z, gradients = jax.tree.map(np.asarray, run(A, x))
    slope = 1.0 - z**2  # the derivative of tanh; once more for the gradient with respect to x
    transposed, v = np.asarray(A) * slope, np.cos(z) * np.arange(8.0)
    for (_, terms), gradient in zip(ways, gradients, strict=True):
        expected = sum(np.linalg.matrix_power(transposed, k) @ v for k in range(terms)) * slope
        assert relative_error(gradient, expected) < 1e-8, terms
    assert relative_error(gradients[-1], np.linalg.solve(np.eye(8) - transposed, v) * slope) < 1e-5


@pytest.mark.slow
def test_batch_ranks_give_the_same_as_one_example_at_a_time():
    A, x = skew_weights(), inputs(2, 3, 8)

    def gradient(A, x):
        def loss(A, x):
            y, info = uj.equilibrium(tanh_step, A, jnp.zeros_like(x), x, **PLAIN | {"batch_ndim": x.ndim - 1})
            return jnp.sum(y**3), info

        return jax.grad(loss, (0, 1), has_aux=True)(A, x)

    @jax.jit
    def run(A, x):
        singles = jax.lax.map(lambda row: gradient(A, row), x.reshape(6, 8))
        return {rank: gradient(A, rows) for rank, rows in ((2, x), (1, x[0]))}, singles

    of_ranks, (singles, info) = run(A, x)
    weights, rows = (np.asarray(leaf) for leaf in singles)
    assert {leaf.shape for leaf in info} == {(6,)}  # of rank 0, stacked
    for rank, count, shape in ((2, 6, (2, 3)), (1, 3, (3,))):
        actual, info = of_ranks[rank]
        assert {leaf.shape for leaf in info} == {shape}
        expected = weights[:count].sum(0), rows[:count].reshape(*shape, 8)
        assert relative_error(actual, expected) < 1e-9, rank


def test_the_initial_state_and_a_warm_start_get_no_gradient_and_do_not_change_the_answer():
    A, x = skew_weights(), inputs(3, 8)

    @jax.jit
    def run(y0, x):
        def solve(y0, **options):
            y, info = uj.equilibrium(tanh_step, A, y0, x, **PLAIN | options)
            return jnp.sum(y), (y, info)

        few = {"adjoint": fixed_point.unrolled(3), "on_failure": "accept"}
        gradient, solution = jax.grad(solve, has_aux=True)(y0)
        return (gradient, jax.grad(lambda y0: solve(y0, **few)[0])(y0)), solution

    _, (cold, info) = run(np.zeros((3, 8)), x)
    gradients, (warm, info_warm) = run(cold, x)
    assert relative_error(warm, cold) < 1e-10
    assert int(np.max(info_warm.steps)) == 1 < int(np.min(info.steps))
    assert not np.any(gradients)


def test_what_the_step_closes_over_gets_its_gradient_and_integers_may_be_closed_over():
    A, x = skew_weights(), inputs(3, 8)

    @jax.jit
    def both(A, x, order):
        def loss(A, x, find):
            step = lambda params, z, _: jnp.tanh((z @ A + x)[:, order])  # noqa: E731
            return jnp.sum(find(step) ** 2)

        find = lambda step: uj.equilibrium(step, (), jnp.zeros((3, 8)), **PLAIN)[0]  # noqa: E731
        plain = lambda step: unrolled(step, (), jnp.zeros((3, 8)), None, steps=200)  # noqa: E731
        return [jax.grad(jax.jit(loss, static_argnums=2), (0, 1))(A, x, how) for how in (find, plain)]

    assert relative_error(*both(A, x, jnp.arange(8)[::-1])) < 1e-8


def test_a_state_may_be_a_pytree():
    A, x = skew_weights(), inputs(4, 8)

    def step(A, state, x):
        joined = jnp.tanh(jnp.concatenate([state["a"].reshape(4, 6), state["b"]], -1) @ A + x)
        return {"a": joined[:, :6].reshape(4, 2, 3), "b": joined[:, 6:]}

    def loss(A):
        y, _ = uj.equilibrium(step, A, {"a": jnp.zeros((4, 2, 3)), "b": jnp.zeros((4, 2))}, x, **PLAIN)
        return jnp.sum(y["a"] ** 2) + jnp.sum(y["b"] ** 2)

    plain = lambda A: jnp.sum(unrolled(tanh_step, A, jnp.zeros((4, 8)), x, steps=200) ** 2)  # noqa: E731
    assert relative_error(*jax.jit(lambda A: (jax.grad(loss)(A), jax.grad(plain)(A)))(A)) < 1e-8


# ------------------------------------------------------------------- forward mode, and derivatives of derivatives


SMALL = lambda: (skew_weights(dim=5, norm=0.6), inputs(2, 5))  # noqa: E731


def implicit(A, x, step=tanh_step, **options):
    y, _ = uj.equilibrium(step, A, np.zeros(x.shape), x, batch_ndim=1, **{"tol": 1e-12, "solver": "picard"} | options)
    return jnp.sum(y**3)


def plain(A, x):
    return jnp.sum(unrolled(tanh_step, A, np.zeros(x.shape), x, steps=120) ** 3)


@pytest.mark.slow
def test_tangents_gradients_and_hessian_vector_products_of_the_forward_mode_equal_those_of_an_unroll():
    """Forward, with two adjoints; reverse; forward over reverse; and reverse over reverse, in one program."""

    def derivatives(f, A, x, direction, tangent):
        gradient = jax.grad(f)
        return {
            "forward": jax.jvp(f, (A, x), (direction, tangent))[1],
            "reverse": gradient(A, x),
            "forward over reverse": jax.jvp(lambda A: gradient(A, x), (A,), (direction,))[1],
            "reverse over reverse": jax.grad(lambda A: jnp.sum(gradient(A, x) * direction))(A),
        }

    ours, wide = (functools.partial(implicit, forward_mode=True, adjoint=a) for a in ("gmres", fixed_point.gmres(20)))

    @jax.jit
    def run(*point):
        A, x, direction, tangent = point
        return derivatives(ours, *point), derivatives(plain, *point), jax.jvp(wide, (A, x), (direction, tangent))[1]

    actual, expected, of_wide = run(*SMALL(), inputs(5, 5, seed=3), inputs(2, 5, seed=4))
    for mode in expected:
        assert relative_error(actual[mode], expected[mode]) < 1e-8, mode
    assert relative_error(of_wide, expected["forward"]) < 1e-8


def test_jvp_with_conjugate_gradients_on_a_symmetric_layer():
    params, zeros = symmetric_weights(), np.zeros((4, 8))
    options = PLAIN | {"adjoint": "conjugate_gradient", "forward_mode": True}
    ours = lambda x: uj.equilibrium(symmetric_step, params, zeros, x, **options)[0]  # noqa: E731
    theirs = lambda x: unrolled(symmetric_step, params, zeros, x, steps=300)  # noqa: E731
    both = jax.jit(lambda x: [jax.jvp(find, (x,), (jnp.cos(x),)) for find in (ours, theirs)])
    assert relative_error(*both(inputs(4, 3))) < 1e-8


def test_second_derivatives_through_the_unrolled_adjoint_equal_autodiff():
    A, x = SMALL()
    product = lambda f, x: jax.jvp(jax.grad(lambda x: f(A, x)), (x,), (jnp.cos(x),))[1]  # noqa: E731
    functions = functools.partial(implicit, adjoint=fixed_point.unrolled(120)), plain
    assert relative_error(*jax.jit(lambda x: [product(f, x) for f in functions])(x)) < 1e-10


SECOND = {
    "forward over reverse": lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (x,)),
    "reverse over reverse": lambda f: jax.grad(lambda x: jnp.sum(jax.grad(f)(x) ** 2)),
    "hessian": jax.hessian,
}
FIRST = {
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,)),
    "jit of jvp": lambda f: jax.jit(lambda x: jax.jvp(f, (x,), (x,))),
    "jvp of jit": lambda f: lambda x: jax.jvp(jax.jit(f), (x,), (x,)),
    "jacfwd": jax.jacfwd,
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](x),
}


@pytest.mark.slow
@pytest.mark.parametrize("argument", [0, 1])
@pytest.mark.parametrize("transform", SECOND)
def test_a_second_derivative_of_the_reverse_mode_is_an_error_not_a_number(transform, argument):
    point = SMALL()
    second = SECOND[transform](lambda leaf: implicit(*(leaf if i == argument else p for i, p in enumerate(point))))
    for function in (second, jax.jit(second)):
        with pytest.raises(TypeError, match="forward_mode=True"):
            function(point[argument])


@pytest.mark.slow
@pytest.mark.parametrize("transform", FIRST)
def test_forward_mode_that_was_not_asked_for_is_an_error_that_names_the_way_out(transform):
    A, x = SMALL()
    with pytest.raises(TypeError, match="equilibrium supports reverse mode only; pass forward_mode=True"):
        FIRST[transform](lambda x: implicit(A, x))(x)


@pytest.mark.slow
def test_a_custom_vjp_kernel_inside_the_step_works():
    kernel = jax.custom_vjp(jnp.tanh)
    kernel.defvjp(lambda u: (jnp.tanh(u), u), lambda u, ct: (ct * (1.0 - jnp.tanh(u) ** 2),))
    ours = functools.partial(implicit, step=lambda A, z, x: kernel(z @ A + x), solver=None)
    assert relative_error(*jax.jit(lambda *point: [jax.grad(f)(*point) for f in (ours, plain)])(*SMALL())) < 1e-8
