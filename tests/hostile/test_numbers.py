"""Every layer, equilibrium and constraint over dtypes and magnitudes, empty batches,
single tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import unroll_jax as uj
from tests.reference import compiled, gaussian
from tests.test_gradients_conformance import drawn

# NumPy arrays of any dtype, as users pass them
pytestmark = pytest.mark.usefixtures("unchecked")
DTYPES = ("float16", "bfloat16", "float32", "float64")
SLOW = [
    pytest.param(dtype, marks=pytest.mark.nightly)
    for dtype in DTYPES
    if dtype != "float32"
]
MAGNITUDES = (1e-40, 1e-30, 1e-15, 1e-5, 1.0, 1e3, 1e15, 1e30)


@pytest.mark.nightly
@pytest.mark.parametrize("name", uj.DESCENTS)
def test_no_finite_state_of_float16_becomes_a_nan(name):
    """In test_gradients_conformance.py of float32; bfloat16 has its range, float64 a
    wider one."""
    descent, params, y, x = drawn(name)[:4]
    # distinct tokens: between equal ones only rounding is left
    y = gaussian(*y.shape)
    largest = float(jnp.finfo(np.float16).max) / np.abs(y).max()
    sizes = [size for size in MAGNITUDES if size < largest]
    states = np.multiply.outer(sizes, y).astype(np.float16)
    params, x = jax.tree.map(lambda leaf: np.asarray(leaf, np.float16), (params, x))
    both = lambda y: (descent.step(params, y, x), descent.energy(params, y, x))
    stepped, energy = compiled(jax.vmap(both))(states)
    assert stepped.dtype == states.dtype
    assert not np.isnan(stepped).any(), "the step"
    assert not np.isnan(energy).any(), "the energy"


@pytest.mark.nightly
@pytest.mark.parametrize("name", uj.DESCENTS)
def test_an_empty_batch_stays_empty_in_value_and_gradient(name):
    descent, params, y, x = drawn(name)[:4]
    y, x = jax.tree.map(lambda leaf: np.asarray(leaf)[:0], (y, x))

    def value(params):
        stepped, trace = uj.unroll(descent, params, y, x, num_layers=2)
        return jnp.sum(trace.energy), (stepped, trace)

    (_, (stepped, trace)), gradient = compiled(jax.value_and_grad(value, has_aux=True))(
        params
    )
    assert (stepped.shape, trace.energy.shape) == (y.shape, (3, 0))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient))


def test_an_empty_batch_has_an_empty_certificate_and_equilibrium():
    descent, params, y, x = drawn("opteq")[:4]
    y, x = y[:0], x[:0]

    def total(params, solver):
        z, info = uj.equilibrium(descent, params, y, x, solver=solver)
        return jnp.sum(z), (z, info.converged)

    @compiled
    def run(params):
        solve = jax.value_and_grad(total, has_aux=True)
        certificate = uj.certify(descent, params, y, x, num_layers=2)
        return certificate.outcome, [solve(params, name) for name in ("anderson", None)]

    outcome, solved = run(params)
    assert outcome.shape == (2, 0)
    for (_, (z, converged)), gradient in solved:
        assert (z.shape, converged.shape) == (y.shape, (0,))
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    [
        name
        for name, entry in uj.DESCENTS.items()
        if entry.event_ndim == 2 and "fast_weights" not in name
    ],
)
def test_a_single_token_is_no_special_case(name):
    descent, params, y, x = drawn(name)[:4]
    one = lambda leaf: leaf if leaf.shape[-2] != y.shape[-2] else leaf[..., :1, :]
    x = None if x is None else one(x)
    _, trace = compiled(
        lambda params, y: uj.unroll(descent, params, y, x, num_layers=3)
    )(params, y[..., :1, :])
    assert np.isfinite(trace.energy[1:]).all()


def contraction(p, z, x):
    return p * z + x


@pytest.mark.parametrize("dtype", ["float32", *SLOW])
def test_equilibria_of_every_magnitude_are_found_or_refused(dtype):
    """z = -z / 2 + x has z = 2 x / 3; rows of all magnitudes at once, each judged
    separately."""
    sizes = np.array([1e-36, 1e-20, 1e-6, 1e-2, 1.0, 1e3, 1e15, 1e37])
    with jax.enable_x64(dtype == "float64"):
        limits = jnp.finfo(dtype)
        eps = float(limits.eps)
        sizes = sizes[sizes > 100 * float(limits.tiny) / eps]
        sizes = sizes[sizes < float(limits.max) / 8]
        x = np.outer(sizes, [1.0, -1.0, 1.0]).astype(dtype)
        near = {"rtol": max(2e-5, 8 * eps), "atol": 0.0}
        for solver in ("picard", "damped", "anderson"):
            solve = compiled(
                functools.partial(
                    uj.equilibrium, contraction, batch_ndim=1, solver=solver
                )
            )
            z, info = solve(np.asarray(-0.5, dtype), np.zeros_like(x), x)
            assert np.all(info.converged), solver
            expected = 2.0 / 3.0 * x.astype(np.float64)
            assert_allclose(z.astype(np.float64), expected, **near, err_msg=solver)


LOSSES = np.array([4.0, 2.0, 1.0])
NARROW = ("float16", "bfloat16", "float32", "int8", "int32", "uint8")


@pytest.mark.parametrize("dtypes", [NARROW, ("float64", "int64")], ids=str)
def test_constraints_of_every_dtype_are_those_of_float64(dtypes):
    def both(losses):
        violations = uj.descent_constraints(0.2)(losses)
        multipliers = np.array([0.5, 2.0], np.float32)
        return violations, uj.lagrangian(losses[-1], violations, multipliers)

    run = compiled(lambda every: jax.tree.map(both, every))
    with jax.enable_x64("float64" in dtypes):
        results = run({name: LOSSES.astype(jnp.dtype(name)) for name in dtypes})
    expected = LOSSES[1:] - 0.8 * LOSSES[:-1]
    lagrangian = 1.0 + 0.5 * expected[0] + 2.0 * expected[1]
    for name, (violations, value) in results.items():
        is_float = jnp.issubdtype(name, jnp.floating)
        near = max(4 * float(jnp.finfo(name).eps), 1e-6) if is_float else 1e-6
        assert_allclose(violations.astype(float), expected, rtol=near, err_msg=name)
        assert_allclose(value, lagrangian, rtol=4 * near, err_msg=name)


def test_constraints_of_every_magnitude_are_those_of_float64():
    sizes = np.array([1e-36, 1e-30, 1e-8, 1.0, 1e8, 1e30, 1e37])
    losses = np.outer(sizes, LOSSES / 4.0).astype(np.float32)
    violations = compiled(uj.descent_constraints(0.2))(losses)
    wide = losses.astype(np.float64)
    assert_allclose(violations, wide[:, 1:] - 0.8 * wide[:, :-1], rtol=1e-5)
