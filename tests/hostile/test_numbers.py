"""Every layer, equilibrium and constraint over dtypes and magnitudes, empty batches,
single tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.reference import compiled
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
    params, x = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), (params, x))
    # distinct tokens: between equal ones only rounding is left
    y = np.random.default_rng(0).normal(size=y.shape)
    limit = float(jnp.finfo(jnp.float16).max)
    scales = np.array(
        [scale for scale in MAGNITUDES if scale * np.abs(y).max() < limit]
    )
    states = (scales.reshape(-1, *[1] * y.ndim) * y).astype(np.float16)
    params, x = jax.tree.map(lambda leaf: leaf.astype(np.float16), (params, x))
    stepped, energy = compiled(
        jax.vmap(lambda y: (descent.step(params, y, x), descent.energy(params, y, x)))
    )(states)
    assert stepped.dtype == states.dtype
    assert not np.isnan(np.asarray(stepped, np.float64)).any(), "the step"
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
    certify = functools.partial(uj.certify, descent, num_layers=2)
    assert compiled(certify)(params, y, x).outcome.shape == (2, 0)

    def total(params, solver):
        z, info = uj.equilibrium(descent, params, y, x, solver=solver)
        return jnp.sum(z), (z, info.converged)

    solved = compiled(jax.value_and_grad(total, has_aux=True), static_argnums=1)
    for solver in ("anderson", None):
        (_, (z, converged)), gradient = solved(params, solver)
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
    with jax.enable_x64(dtype == "float64"):
        limits = jnp.finfo(dtype)
        largest = float(limits.max) / 8
        x = np.array(
            [[s, -s, s] for s in (1e-36, 1e-20, 1e-6, 1e-2, 1.0, 1e3, 1e15, 1e37)]
        )
        x = x[
            (np.abs(x[:, 0]) < largest)
            & (np.abs(x[:, 0]) > 100 * float(limits.tiny) / float(limits.eps))
        ]
        x = x.astype(dtype)
        p, start = np.asarray(-0.5, dtype), np.zeros_like(x)
        expected, tolerance = (
            2.0 / 3.0 * x.astype(np.float64),
            max(2e-5, 8 * float(limits.eps)),
        )
        for solver in ("picard", "damped", "anderson"):
            solve = compiled(
                functools.partial(
                    uj.equilibrium, contraction, batch_ndim=1, solver=solver
                )
            )
            z, info = solve(p, start, x)
            assert np.all(info.converged), solver
            np.testing.assert_allclose(
                np.asarray(z, np.float64), expected, rtol=tolerance, err_msg=solver
            )


LOSSES = np.array([4.0, 2.0, 1.0])


@pytest.mark.parametrize("dtype", [*DTYPES, "int8", "int32", "uint8", "int64"])
def test_constraints_of_every_dtype_are_those_of_float64(dtype):
    @compiled
    def run(losses):
        violations = uj.descent_constraints(0.2)(losses)
        multipliers = np.array([0.5, 2.0], np.float32)
        return violations, uj.lagrangian(losses[-1], violations, multipliers)

    with jax.enable_x64(dtype in ("float64", "int64")):
        violations, value = run(LOSSES.astype(dtype))
    expected = LOSSES[1:] - 0.8 * LOSSES[:-1]
    tolerance = (
        1e-6
        if not jnp.issubdtype(dtype, jnp.floating)
        else 4 * float(jnp.finfo(dtype).eps)
    )
    np.testing.assert_allclose(
        np.asarray(violations, np.float64), expected, rtol=max(tolerance, 1e-6)
    )
    np.testing.assert_allclose(
        float(value),
        1.0 + 0.5 * expected[0] + 2.0 * expected[1],
        rtol=4 * max(tolerance, 1e-6),
    )


def test_constraints_of_every_magnitude_are_those_of_float64():
    violations = compiled(uj.descent_constraints(0.2))
    for scale in (1e-36, 1e-30, 1e-8, 1.0, 1e8, 1e30, 1e37):
        losses = (scale * LOSSES / 4.0).astype(np.float32)
        expected = losses[1:].astype(np.float64) - 0.8 * losses[:-1].astype(np.float64)
        np.testing.assert_allclose(violations(losses), expected, rtol=1e-5)
