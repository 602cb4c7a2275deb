"""Implicit gradients and their derivatives: against float64 autodiff through an
unroll, and finite differences."""

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
from tests.marks import in_float64, nightly, types_unchecked
from tests.reference import compiled
from unroll_jax import fixed_point

pytestmark = in_float64
# The quickest to compile, for tests of neither solver nor adjoint.
PLAIN = {
    "tol": 1e-11,
    "solver": "picard",
    "adjoint": fixed_point.neumann(100),
    "batch_ndim": 1,
}


def test_neumann_is_the_series_and_one_step_its_first_term():
    A = skew_weights(norm=0.5)
    ways = {terms: fixed_point.neumann(terms) for terms in (1, 5, 40)}
    weights = np.arange(8.0)

    @compiled
    def run(x):
        def loss(x, adjoint):
            options = PLAIN | {"batch_ndim": 0, "on_failure": "error"}
            y, _ = uj.equilibrium(
                tanh_step, A, jnp.zeros(8), x, **options | {"adjoint": adjoint}
            )
            return jnp.sum(jnp.sin(y) * weights)

        gradients = {terms: jax.grad(loss)(x, way) for terms, way in ways.items()}
        exact = unrolled(tanh_step, A, jnp.zeros(8), x, steps=200)
        return exact, jax.grad(loss)(x, "one_step"), gradients

    z, one_step, gradients = run(inputs(8))
    # the derivative of tanh, once more for the gradient with respect to x
    slope = 1.0 - z**2
    transposed = np.asarray(A) * slope
    v = np.cos(z) * weights
    powers = [np.linalg.matrix_power(transposed, k) @ v for k in range(40)]
    for terms, gradient in gradients.items():
        assert relative_error(gradient, sum(powers[:terms]) * slope) < 1e-8, terms
    assert relative_error(one_step, v * slope) < 1e-8
    limit = np.linalg.solve(np.eye(8) - transposed, v) * slope
    assert relative_error(gradients[40], limit) < 1e-5


def test_starts_get_no_gradient_and_change_no_answer():
    A = skew_weights()
    x = inputs(3, 8)

    @compiled
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


def test_states_are_pytrees_and_closures_get_gradients():
    start = {"a": np.zeros((4, 2, 3)), "b": np.zeros((4, 2))}

    def total(A, x, find):
        def step(params, state, none):
            flat = jnp.concatenate([state["a"].reshape(4, 6), state["b"]], -1)
            after = tanh_step(A, flat, x)[:, ::-1]
            return {"a": after[:, :6].reshape(4, 2, 3), "b": after[:, 6:]}

        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(find(step)))

    finds = [
        lambda step: uj.equilibrium(step, (), start, **PLAIN)[0],
        lambda step: unrolled(step, (), start, None, steps=200),
    ]
    gradient = jax.grad(total, (0, 1))
    run = compiled(lambda *given: [gradient(*given, find) for find in finds])
    assert relative_error(*run(skew_weights(), inputs(4, 8))) < 1e-8


SMALL = lambda: (skew_weights(dim=5, norm=0.6), inputs(2, 5))


def implicit(A, x, step=tanh_step, **options):
    y, _ = uj.equilibrium(
        step,
        A,
        np.zeros(x.shape),
        x,
        batch_ndim=1,
        **{"tol": 1e-12, "solver": "picard"} | options,
    )
    return jnp.sum(y**3)


def plain(A, x):
    return jnp.sum(unrolled(tanh_step, A, np.zeros(x.shape), x, steps=120) ** 3)


@nightly
def test_derivatives_in_forward_mode_equal_those_of_an_unroll():
    """Forward, with two adjoints; reverse; forward over reverse; and reverse over
    reverse, in one program."""

    def derivatives(f, A, x, direction, tangent):
        gradient = jax.grad(f)
        return {
            "forward": jax.jvp(f, (A, x), (direction, tangent))[1],
            "reverse": gradient(A, x),
            "forward over reverse": jax.jvp(
                lambda A: gradient(A, x), (A,), (direction,)
            )[1],
            "reverse over reverse": jax.grad(
                lambda A: jnp.sum(gradient(A, x) * direction)
            )(A),
        }

    ours, wide = (
        functools.partial(implicit, forward_mode=True, adjoint=a)
        for a in ("gmres", fixed_point.gmres(20))
    )

    @compiled
    def run(*point):
        A, x, direction, tangent = point
        return (
            derivatives(ours, *point),
            derivatives(plain, *point),
            jax.jvp(wide, (A, x), (direction, tangent))[1],
        )

    actual, expected, of_wide = run(
        *SMALL(), inputs(5, 5, seed=3), inputs(2, 5, seed=4)
    )
    for mode in expected:
        assert relative_error(actual[mode], expected[mode]) < 1e-8, mode
    assert relative_error(of_wide, expected["forward"]) < 1e-8


def test_jvp_with_conjugate_gradients_on_a_symmetric_layer():
    params = symmetric_weights()
    zeros = np.zeros((4, 8))
    options = PLAIN | {"adjoint": "conjugate_gradient", "forward_mode": True}
    ours = lambda x: uj.equilibrium(symmetric_step, params, zeros, x, **options)[0]
    theirs = lambda x: unrolled(symmetric_step, params, zeros, x, steps=300)

    @compiled
    def both(x):
        return [jax.jvp(find, (x,), (jnp.cos(x),)) for find in (ours, theirs)]

    assert relative_error(*both(inputs(4, 3))) < 1e-8


def test_second_derivatives_through_the_unrolled_adjoint_equal_autodiff():
    A, x = SMALL()
    product = lambda f, x: jax.jvp(jax.grad(lambda x: f(A, x)), (x,), (jnp.cos(x),))[1]
    functions = functools.partial(implicit, adjoint=fixed_point.unrolled(120)), plain
    assert (
        relative_error(*compiled(lambda x: [product(f, x) for f in functions])(x))
        < 1e-10
    )


REFUSED = {  # transforms of a function of one array
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,)),
    "forward over reverse": lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (x,)),
    "reverse over reverse": lambda f: jax.grad(lambda x: jnp.sum(jax.grad(f)(x) ** 2)),
}


@nightly
@pytest.mark.parametrize("argument", [0, 1])
@pytest.mark.parametrize("transform", REFUSED)
def test_derivatives_that_need_forward_mode_are_an_error(transform, argument):
    point = SMALL()
    function = REFUSED[transform](
        lambda leaf: implicit(
            *(leaf if i == argument else p for i, p in enumerate(point))
        )
    )
    for run in (function, jax.jit(function)):
        with pytest.raises(
            TypeError, match=r"equilibrium supports .*; pass forward_mode=True"
        ):
            run(point[argument])


# slopes of z' = s z + x that are exact in half precision, up to |w| = 16 |v|
HALF = np.array([0.0, 0.5, -0.75, 0.875, 0.9375])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_gradients_in_half_precision_are_accepted_where_they_are_right(dtype):
    options = {"batch_ndim": 0, "solver": "picard", "on_failure": "error"}

    def loss(x, slope):
        step = lambda slope, z, x: slope * z + x
        return uj.equilibrium(step, slope, jnp.zeros_like(x), x, **options)[0]

    slopes = compiled(jax.vmap(jax.grad(loss), (None, 0)))
    got = np.asarray(slopes(np.ones((), dtype), HALF.astype(dtype)), np.float64)
    epsilon = float(jnp.finfo(dtype).eps)
    assert (np.abs(got * (1.0 - HALF) - 1.0) <= epsilon / (1.0 - HALF)).all()


def test_a_capped_adjoint_in_half_precision_has_failed():
    """Its residual is 8%, and it stopped at the cap."""
    ones = np.ones(8, jnp.bfloat16)
    options = PLAIN | {"batch_ndim": 0, "adjoint": "gmres", "adjoint_max_steps": 4}

    def total(x):
        step = lambda rates, z, x: rates * z + x
        rates = np.linspace(-0.9, 0.9, 8).astype(x.dtype)
        z, _ = uj.equilibrium(step, rates, 0 * x, x, on_failure="error", **options)
        return jnp.sum(z)

    words = r"adjoint .* reached max_steps .* after 4"
    with pytest.raises(jax.errors.JaxRuntimeError, match=words):
        compiled(jax.grad(total))(ones)


@types_unchecked
@pytest.mark.parametrize("adjoint", ["gmres", "conjugate_gradient"])
def test_a_nearly_singular_system_is_called_so_and_not_capped(adjoint):
    """In float32, where less than 1% of v is left in w - J^T w."""
    rates = np.array([0.5, 1.0 - 3e-7], np.float32)
    ones = np.ones(2, np.float32)

    @uj.implicit_root(
        lambda a, z: (1.0 - rates) * z - a, adjoint=adjoint, on_failure="error"
    )
    def solve(a, z0):
        return ones

    slope = compiled(jax.grad(lambda a: jnp.sum(solve(a, ones))))
    words = r"nearly singular for its dtype.*wider dtype"
    with pytest.raises(jax.errors.JaxRuntimeError, match=words):
        slope(1.0 - rates)
