"""Under every transform the value and its gradient equal the plain call's."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import unroll_jax as uj
from tests.fixed_point.problems import (
    inputs,
    relative_error,
    skew_weights,
    tanh_step,
    unrolled,
)
from tests.marks import in_float64
from tests.reference import compiled

pytestmark = in_float64
OPTIONS = {"tol": 1e-11, "solver": "picard", "adjoint": "gmres", "on_failure": "error"}


def solve(A, x, y=0.0):
    return uj.equilibrium(
        tanh_step, A, y + jnp.zeros_like(x), x, batch_ndim=x.ndim - 1, **OPTIONS
    )[0]


def gradient(find, A, x):
    return jax.grad(lambda A, x: jnp.sum(find(A, x) ** 3), (0, 1))(A, x)


TRANSFORMS = {  # of batches of two axes. Under vmap they are of one or none
    "vmap": lambda f: jax.vmap(f, (None, 0)),
    "vmap of vmap": lambda f: jax.vmap(jax.vmap(f, (None, 0)), (None, 0)),
    "vmap of jit": lambda f: jax.vmap(jax.jit(f), (None, 1), 1),
    "map": lambda f: lambda A, x: jax.lax.map(lambda row: f(A, row), x),
    "checkpoint": jax.checkpoint,
    "checkpoint saving": lambda f: jax.checkpoint(
        f, policy=jax.checkpoint_policies.everything_saveable
    ),
}


def recurrent(find):
    """A net whose every step, with remat, is an equilibrium that is warm-started at
    the one before."""

    def ends(A, rows):
        body = jax.checkpoint(lambda y, x: (find(A, x + 0.3 * y, y), None))
        return jax.lax.scan(body, jnp.zeros(rows.shape[1:]), rows)[0]

    return ends


@pytest.mark.slow
def test_gradients_under_a_transform_are_the_same():
    plain = lambda A, x, y=0.0: unrolled(tanh_step, A, y + 0 * x, x, steps=120)
    finds = {name: transform(solve) for name, transform in TRANSFORMS.items()}

    @compiled
    def run(A, x):
        expected = gradient(plain, A, x)
        pairs = {name: (gradient(find, A, x), expected) for name, find in finds.items()}
        return pairs | {
            "scan": tuple(gradient(recurrent(find), A, x) for find in (solve, plain))
        }

    for name, pair in run(skew_weights(), inputs(3, 4, 8)).items():
        assert relative_error(*pair) < 1e-8, name


OPTEQ = uj.energies.opteq(3, 3, 3)
SOLVES = {
    "a step": lambda weight, x: uj.equilibrium(
        tanh_step, weight, 0.0 * x, x, batch_ndim=1
    )[0],
    "a factored layer": lambda W, x: uj.equilibrium(
        OPTEQ, uj.energies.OptEqParams(W, jnp.eye(3), jnp.ones(3)), 0.0 * x, x
    )[0],
    "unrolled steps": lambda weight, x: uj.unroll(
        tanh_step, weight, 0.0 * x, x, num_layers=3, record=None
    )[0],
}


@pytest.mark.parametrize(
    "name",
    [
        "a step",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in SOLVES
            if name != "a step"
        ),
    ],
)
def test_values_and_gradients_are_exported_with_a_symbolic_batch(name):
    (batch,) = jax.export.symbolic_shape("batch")
    weight = np.float32(0.5 * np.eye(3))
    x = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)
    find = SOLVES[name]

    @jax.jit
    def both(*given):
        return (
            find(*given),
            jax.grad(lambda *each: jnp.sum(find(*each) ** 2))(*given),
        )

    exported = jax.export.export(both)(
        weight, jax.ShapeDtypeStruct((batch, 3), x.dtype)
    )
    for got, expected in zip(exported.call(weight, x), both(weight, x), strict=True):
        assert_allclose(got, expected, rtol=1e-5, atol=1e-7)
