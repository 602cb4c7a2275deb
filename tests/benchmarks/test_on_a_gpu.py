"""Tests that need a GPU: `python -m benchmarks gpu` runs them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import unroll_jax as uj
from benchmarks.gradients.exact import exact, residual
from benchmarks.gradients.problems import dense_cell
from benchmarks.gradients.race import TOL, compiled_gradient, gradient_error
from unroll_jax.descent import Anchor
from unroll_jax.energies import AttentionParams

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def on_a_gpu():
    if jax.default_backend() != "gpu":
        pytest.skip("there is no GPU")


def close(actual, expected, tolerance):
    """Relative in the Euclidean norm."""
    actual, expected = (
        np.asarray(jnp.asarray(value, jnp.float32), np.float64)
        for value in (actual, expected)
    )
    assert np.linalg.norm(actual - expected) <= tolerance * np.linalg.norm(expected)


@pytest.mark.parametrize("padded", [False, True])
def test_fused_attention_and_its_gradient_are_our_own(padded):
    y = jnp.asarray(
        np.random.default_rng(0).normal(size=(2, 128, 62)) / 8.0, jnp.bfloat16
    )
    present = jnp.asarray(np.arange(128) < np.array([[70], [128]])) if padded else None
    weight = 1.0 if present is None else present[..., None]
    programs = []
    for kernel in ("xla", "cudnn"):
        layer = uj.attention(form="softmax", kernel=kernel)
        anchor = None if present is None else Anchor(None, present)

        def step(y, layer=layer, anchor=anchor):
            after = weight * layer.step(AttentionParams(None), y, anchor)
            return jnp.sum(after.astype(jnp.float32) ** 2), after

        programs.append(
            jax.jit(jax.value_and_grad(step, has_aux=True)).lower(y).compile()
        )
    assert "cudnn" in programs[1].as_text()
    (((_, plain), of_plain), ((_, fused), of_fused)) = (
        program(y) for program in programs
    )
    close(fused, plain, 1e-2)  # bfloat16 has three digits
    close(of_fused * weight, of_plain * weight, 3e-2)


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend:DeprecationWarning")
@pytest.mark.parametrize(
    ("rho", "dtype"),
    [
        ("softmax", "float32"),
        ("softmax", "bfloat16"),
        ("log", "float32"),
        ("student", "bfloat16"),
        ("truncated_quadratic", "float32"),
        ("geman_mcclure", "bfloat16"),
    ],
)
def test_the_kernel_of_all_pairs_is_our_own_attention(rho, dtype):
    """Step, energy and gradients, with absent tokens, at sizes that are not
    multiples of a block."""
    y = jnp.asarray(np.random.default_rng(0).normal(size=(2, 200, 48)) / 7.0, dtype)
    anchor, results = (
        Anchor(None, jnp.asarray(np.arange(200) < np.array([[130], [200]]))),
        [],
    )
    for kernel in ("xla", "pallas"):
        layer = uj.attention(rho=rho, form="softmax", kernel=kernel)

        def loss(y, layer=layer):
            after, energy = layer.step_and_energy(AttentionParams(None), y, anchor)
            return jnp.sum(after.astype(jnp.float32) ** 2) + jnp.sum(energy) / 200.0, (
                after,
                energy,
            )

        with jax.default_matmul_precision("highest"):
            results.append(jax.jit(jax.value_and_grad(loss, has_aux=True))(y))
    (((_, plain), of_plain), ((_, ours), of_ours)) = results
    close(ours[0], plain[0], 1e-2 if dtype == "bfloat16" else 1e-5)
    close(ours[1], plain[1], 1e-3 if dtype == "bfloat16" else 1e-5)
    close(of_ours, of_plain, 3e-2 if dtype == "bfloat16" else 1e-4)


def test_equilibria_at_highest_precision_equal_float64():
    with jax.default_matmul_precision("highest"):
        cell = dense_cell(64, 0.99, "spread", batch=8)

        def find(params):
            return uj.equilibrium(cell.layer, params, cell.start, cell.x, tol=TOL)[0]

        run, *_ = compiled_gradient(cell, find)
        state, gradient = jax.device_get(run())
    with jax.default_device(jax.devices("cpu")[0]):
        assert residual(cell, state) <= TOL
        assert gradient_error(exact(cell, state), gradient) < 1e-3


@pytest.mark.parametrize("name", uj.DESCENTS)
def test_steps_and_energies_are_those_of_the_cpu(name, getkey):
    descent, y, x = uj.DESCENTS[name].example(getkey(), (2,))
    params = descent.init(getkey())

    def both(params, y, x):
        return descent.energy(params, y, x), descent.step(params, y, x)

    results = []
    with jax.default_matmul_precision("highest"):
        for device in (jax.devices()[0], jax.devices("cpu")[0]):
            results.append(
                jax.device_get(jax.jit(both)(*jax.device_put((params, y, x), device)))
            )
    for actual, expected in zip(*map(jax.tree.leaves, results), strict=True):
        assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)
