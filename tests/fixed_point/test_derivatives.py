"""Forward mode, and derivatives of derivatives: right where asked for, an error where not, never a wrong number."""

import jax
import jax.numpy as jnp
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
    y, _ = uj.equilibrium(tanh_step, A, jnp.zeros(x.shape), x, batch_ndim=1, tol=1e-12, **options)
    return jnp.sum(y**3)


def plain(A, x):
    return jnp.sum(unrolled(tanh_step, A, jnp.zeros(x.shape), x, steps=120) ** 3)


@pytest.mark.parametrize("adjoint", ["gmres", "bicgstab", "anderson"])
def test_jvp_equals_forward_mode_through_an_unroll(adjoint):
    tangents = inputs(5, 5, seed=3), inputs(2, 5, seed=4)
    f = lambda A, x: implicit(A, x, adjoint=adjoint, forward_mode=True)  # noqa: E731
    found, expected = (jax.jit(lambda A, x, g=g: jax.jvp(g, (A, x), tangents))(A(), X()) for g in (f, plain))
    assert relative_error(found, expected) < 1e-8


def test_jvp_with_conjugate_gradients_on_a_symmetric_layer():
    params, x = symmetric_weights(), inputs(4, 3)

    def outputs(find):
        return jax.jit(lambda x: jax.jvp(find, (x,), (jnp.cos(x),)))(x)

    zeros = jnp.zeros((4, 8))
    options = {"batch_ndim": 1, "tol": 1e-12, "adjoint": "conjugate_gradient", "forward_mode": True}
    found = outputs(lambda x: uj.equilibrium(symmetric_step, params, zeros, x, **options)[0])
    assert relative_error(found, outputs(lambda x: unrolled(symmetric_step, params, zeros, x, steps=300))) < 1e-8


def test_gradients_and_hessian_vector_products_of_the_forward_mode_equal_those_of_an_unroll():
    """Reverse, forward over reverse, and reverse over reverse, in one program."""
    direction = inputs(5, 5, seed=3)

    def derivatives(f):
        gradient = jax.grad(f)
        return lambda A, x: (
            gradient(A, x),
            jax.jvp(lambda A: gradient(A, x), (A,), (direction,))[1],
            jax.grad(lambda A: jnp.sum(gradient(A, x) * direction))(A),
        )

    found = jax.jit(derivatives(lambda A, x: implicit(A, x, forward_mode=True)))(A(), X())
    expected = jax.jit(derivatives(plain))(A(), X())
    for ours, theirs in zip(found, expected, strict=True):
        assert relative_error(ours, theirs) < 1e-8


def test_second_derivatives_through_the_unrolled_adjoint_equal_autodiff():
    options = {"adjoint": fixed_point.unrolled(120)}
    product = lambda f: jax.jvp(jax.grad(lambda x: f(A(), x)), (X(),), (jnp.cos(X()),))[1]  # noqa: E731
    assert relative_error(product(lambda A, x: implicit(A, x, **options)), product(plain)) < 1e-10


@pytest.mark.parametrize("transform", ["forward over reverse", "reverse over reverse", "hessian"])
@pytest.mark.parametrize("jit", [False, True])
def test_a_second_derivative_of_the_reverse_mode_is_an_error_not_a_number(transform, jit):
    gradient = jax.grad(implicit)
    second = {
        "forward over reverse": lambda A, x: jax.jvp(lambda A: gradient(A, x), (A,), (A,)),
        "reverse over reverse": lambda A, x: jax.grad(lambda A: jnp.sum(gradient(A, x) ** 2))(A),
        "hessian": lambda A, x: jax.hessian(lambda x: implicit(A, x))(x),
    }[transform]
    with pytest.raises(TypeError, match="forward_mode=True"):
        (jax.jit(second) if jit else second)(A(), X())


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
    with pytest.raises(TypeError, match="in forward mode, which it does where it is asked to; pass forward_mode=True"):
        transform(lambda x: implicit(A(), x), X())


def test_a_custom_vjp_kernel_inside_the_step_works():
    @jax.custom_vjp
    def kernel(u):
        return jnp.tanh(u)

    kernel.defvjp(lambda u: (jnp.tanh(u), u), lambda u, ct: (ct * (1.0 - jnp.tanh(u) ** 2),))
    f = lambda A: uj.equilibrium(  # noqa: E731
        lambda A, z, x: kernel(z @ A + x), A, jnp.zeros((2, 5)), X(), batch_ndim=1, tol=1e-12
    )[0]
    assert relative_error(jax.grad(lambda A: jnp.sum(f(A) ** 3))(A()), jax.grad(plain)(A(), X())) < 1e-8
