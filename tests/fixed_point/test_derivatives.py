"""Forward mode, and derivatives of derivatives: right where asked for, an error where not, never a wrong number."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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

A, X = (lambda: skew_weights(dim=5, norm=0.6)), (lambda: inputs(2, 5))


def implicit(A, x, **options):
    y, _ = uj.equilibrium(tanh_step, A, np.zeros(x.shape), x, batch_ndim=1, tol=1e-12, **options)
    return jnp.sum(y**3)


def plain(A, x):
    return jnp.sum(unrolled(tanh_step, A, np.zeros(x.shape), x, steps=120) ** 3)


@pytest.mark.slow
def test_jvp_equals_forward_mode_through_an_unroll():
    adjoints = ("gmres", fixed_point.gmres(20))
    functions = [functools.partial(implicit, solver="picard", adjoint=a, forward_mode=True) for a in adjoints]

    @jax.jit
    def run(A, x, tangents):
        return [jax.jvp(f, (A, x), tangents) for f in (plain, *functions)]

    expected, *results = run(A(), X(), (inputs(5, 5, seed=3), inputs(2, 5, seed=4)))
    for adjoint, tangent in zip(adjoints, results, strict=True):
        assert relative_error(tangent, expected) < 1e-8, adjoint


def test_jvp_with_conjugate_gradients_on_a_symmetric_layer():
    params, zeros = symmetric_weights(), np.zeros((4, 8))
    options = {"batch_ndim": 1, "tol": 1e-12, "solver": "picard", "adjoint": "conjugate_gradient", "forward_mode": True}
    implicit = lambda x: uj.equilibrium(symmetric_step, params, zeros, x, **options)[0]  # noqa: E731
    plain = lambda x: unrolled(symmetric_step, params, zeros, x, steps=300)  # noqa: E731
    both = jax.jit(lambda x: [jax.jvp(find, (x,), (jnp.cos(x),)) for find in (implicit, plain)])
    assert relative_error(*both(inputs(4, 3))) < 1e-8


@pytest.mark.slow
def test_gradients_and_hessian_vector_products_of_the_forward_mode_equal_those_of_an_unroll():
    """Reverse, forward over reverse, and reverse over reverse, in one program."""

    def derivatives(f, A, x, direction):
        gradient = jax.grad(f)
        return {
            "reverse": gradient(A, x),
            "forward over reverse": jax.jvp(lambda A: gradient(A, x), (A,), (direction,))[1],
            "reverse over reverse": jax.grad(lambda A: jnp.sum(gradient(A, x) * direction))(A),
        }

    options = {"forward_mode": True, "solver": "picard", "adjoint": "gmres"}
    functions = functools.partial(implicit, **options), plain
    actual, expected = jax.jit(lambda *given: [derivatives(f, *given) for f in functions])(
        A(), X(), inputs(5, 5, seed=3)
    )
    for mode in expected:
        assert relative_error(actual[mode], expected[mode]) < 1e-8, mode


def test_second_derivatives_through_the_unrolled_adjoint_equal_autodiff():
    product = lambda f, x: jax.jvp(jax.grad(lambda x: f(A(), x)), (x,), (jnp.cos(x),))[1]  # noqa: E731
    functions = functools.partial(implicit, adjoint=fixed_point.unrolled(120)), plain
    assert relative_error(*jax.jit(lambda x: [product(f, x) for f in functions])(X())) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("transform", ["forward over reverse", "reverse over reverse", "hessian"])
@pytest.mark.parametrize("jit", [False, True])
def test_a_second_derivative_of_the_reverse_mode_is_an_error_not_a_number(transform, jit):
    find = functools.partial(implicit, solver="picard", adjoint="gmres")
    gradient = jax.grad(find)
    second = {
        "forward over reverse": lambda A, x: jax.jvp(lambda A: gradient(A, x), (A,), (A,)),
        "reverse over reverse": lambda A, x: jax.grad(lambda A: jnp.sum(gradient(A, x) ** 2))(A),
        "hessian": lambda A, x: jax.hessian(lambda x: find(A, x))(x),
    }[transform]
    with pytest.raises(TypeError, match="forward_mode=True"):
        (jax.jit(second) if jit else second)(A(), X())


@pytest.mark.slow
@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: jax.jvp(f, (x,), (x,)),
        lambda f, x: jax.jit(lambda x: jax.jvp(f, (x,), (x,)))(x),
        lambda f, x: jax.jvp(jax.jit(f), (x,), (x,)),
        lambda f, x: jax.jacfwd(f)(x),
        lambda f, x: jax.linearize(f, x)[1](x),
    ],
    ids=["jvp", "jit of jvp", "jvp of jit", "jacfwd", "linearize"],
)
def test_forward_mode_that_was_not_asked_for_is_an_error_that_names_the_way_out(transform):
    with pytest.raises(TypeError, match="equilibrium supports reverse mode only; pass forward_mode=True"):
        transform(lambda x: implicit(A(), x, solver="picard"), X())


@pytest.mark.slow
def test_a_custom_vjp_kernel_inside_the_step_works():
    @jax.custom_vjp
    def kernel(u):
        return jnp.tanh(u)

    kernel.defvjp(lambda u: (jnp.tanh(u), u), lambda u, ct: (ct * (1.0 - jnp.tanh(u) ** 2),))
    step = lambda A, z, x: kernel(z @ A + x)  # noqa: E731

    def by_solver(A, x):
        return jnp.sum(uj.equilibrium(step, A, np.zeros((2, 5)), x, batch_ndim=1, tol=1e-12)[0] ** 3)

    assert relative_error(*jax.jit(lambda *given: [jax.grad(f)(*given) for f in (by_solver, plain)])(A(), X())) < 1e-8
