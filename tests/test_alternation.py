"""Alternating steps against NumPy, written from Algorithms 1 and 2."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import unroll_jax as uj
from tests.marks import in_float64
from tests.reference import compiled, gaussian, jax_array
from unroll_jax.descent import Anchor
from unroll_jax.energies import Proximal, TransformerParams, box, transformer_parts

# arrays are float64 unless a test makes them float32
pytestmark = in_float64
A1, A2, DIM = 0.07, 0.1, 3
PARTS = transformer_parts(DIM, step_size=A2)


def quadratic(name):
    def energy(params, y, x=None):
        A, b = params[name]
        distance = y - b
        return 0.5 * jnp.sum((distance @ A) * distance, axis=(-2, -1))

    return energy


def draw_params(seed, dtype="float64"):
    rng = np.random.default_rng(seed)
    squares = [rng.normal(size=(DIM, DIM)) for _ in range(2)]
    return {
        name: ((root @ root.T).astype(dtype), rng.normal(size=DIM).astype(dtype))
        for name, root in zip("fg", squares, strict=True)
    }


# The prox and the penalty of each entry. That of tanh depends on the step: z = tanh(z +
# a2 phi'(z)).
PROXES = {
    None: (lambda v: v, np.zeros_like),
    "relu": (lambda v: np.maximum(v, 0.0), np.zeros_like),
    "soft_threshold": (lambda v: np.sign(v) * np.maximum(np.abs(v) - A2, 0.0), np.abs),
    "tanh": (
        np.tanh,
        lambda y: (y * np.arctanh(y) + 0.5 * np.log1p(-(y**2)) - 0.5 * y**2) / A2,
    ),
}


def test_a_step_descends_f_then_g_then_prox():
    params = draw_params(0)
    y = gaussian(2, 3, 4, DIM, seed=1)

    @compiled
    def measure(params, y):
        results = {}
        for phi in PROXES:
            system = uj.alternating(
                quadratic("f"), quadratic("g"), f_step_size=A1, g_step_size=A2, phi=phi
            )
            stepped = system.step(params, y, None)
            results[phi or "none"] = stepped, system.energy(params, stepped, None)
        return results

    results = measure(params, y)
    (A, a), (B, b) = params["f"], params["g"]
    for phi, (prox, penalty) in PROXES.items():
        stepped, energy = results[phi or "none"]
        u = y - A1 * (y - a) @ A
        expected = prox(u - A2 * (u - b) @ B)
        assert_allclose(stepped, expected, rtol=1e-7, atol=1e-12, err_msg=str(phi))
        halves = [((stepped - m) @ M) * (stepped - m) for M, m in ((A, a), (B, b))]
        expected = np.sum(0.5 * sum(halves) + penalty(stepped), axis=(-2, -1))
        assert_allclose(energy, expected, rtol=1e-12, err_msg=str(phi))


@pytest.mark.standard_promotion("the energies mix bfloat16 and float32 themselves")
def test_a_step_keeps_the_dtype_of_the_state():
    system = uj.alternating(
        quadratic("f"),
        quadratic("g"),
        f_step_size=np.float64(A1),
        g_step_size=np.float64(A2),
    )
    y = jax.ShapeDtypeStruct((4, DIM), jnp.bfloat16)
    assert (
        jax.eval_shape(system.step, draw_params(2, "float32"), y, None).dtype
        == jnp.bfloat16
    )


@pytest.mark.parametrize(
    ("phi", "first"),
    [(box(0.2, 1.0), {"f_step": PARTS.attention.step}), ("tanh", {"f_step_size": A1})],
    ids=["infinite at 0", "tanh"],
)
def test_absent_tokens_neither_move_nor_count(phi, first):
    rng = np.random.default_rng(3)
    params = TransformerParams(*rng.normal(size=(2, DIM, DIM)))
    system = uj.alternating(
        PARTS.attention.energy,
        PARTS.feedforward.energy,
        g_step_size=A2,
        phi=phi,
        **first,
    )
    y = rng.uniform(0.2, 1.0, size=(2, 4, DIM))
    there = np.arange(6) < 4

    def size(y, params, x):
        stepped = system.step(params, y, x)
        return jnp.sum(stepped[:, :4] ** 2), (stepped, system.energy(params, y, x))

    measure = compiled(jax.grad(size, has_aux=True))

    slope, (expected, energy) = measure(y, params, None)
    assert np.all(np.isfinite(energy))
    for padding in (0.0, -1.0, np.nan):
        padded = np.pad(y, ((0, 0), (0, 2), (0, 0)), constant_values=padding)
        by_padded, (stepped, padded_energy) = measure(
            padded, params, Anchor(None, jax_array(there))
        )
        assert_array_equal(stepped[:, 4:], padded[:, 4:])
        assert_allclose(stepped[:, :4], expected, rtol=1e-12)
        assert_allclose(padded_energy, energy, rtol=1e-12)
        assert_allclose(by_padded[:, :4], slope, rtol=1e-10, atol=1e-12)
        assert_array_equal(by_padded[:, 4:], 0.0)


def test_the_state_may_be_a_pytree_and_phi_its_own():
    def f(params, y, x):
        return 0.5 * (y["a"] ** 2 + jnp.sum((y["b"] - x) ** 2, axis=-1))

    def g(params, y, x):
        return jnp.logaddexp(y["a"], -y["a"]) + jnp.sum(jnp.cosh(y["b"]), axis=-1)

    ball = Proximal(
        penalty=lambda y: jnp.zeros_like(y["a"]),
        prox=lambda v, step_size: {name: jnp.clip(v[name], -1.0, 1.0) for name in v},
    )
    start = lambda key: None
    system = uj.alternating(f, g, f_step_size=A1, g_step_size=A2, phi=ball, init=start)
    assert system.init is start
    y = {
        "a": np.float32([0.3, -2.0]),
        "b": np.float32([[0.5, 2.0, 0.1], [0.0, -0.4, 9.0]]),
    }
    stepped, trace = compiled(lambda y: uj.unroll(system, None, y, 0.25, num_layers=3))(
        y
    )
    chex.assert_trees_all_equal_shapes_and_dtypes(stepped, y)
    assert trace.energy.shape == (4, 2)
    a, b = y.values()
    for _ in range(3):
        a = (1.0 - A1) * a
        b = b - A1 * (b - 0.25)
        a = np.clip(a - A2 * np.tanh(a), -1.0, 1.0)
        b = np.clip(b - A2 * np.sinh(b), -1.0, 1.0)
    # sinh 9 in float32
    chex.assert_trees_all_close(stepped, {"a": a, "b": b}, rtol=1e-4)


def test_minimisers_are_fixed_only_where_f_and_g_agree():
    params = draw_params(4)
    (A, a), (B, b) = params["f"], params["g"]
    system = uj.alternating(
        quadratic("f"), quadratic("g"), f_step_size=A1, g_step_size=A2
    )
    step = compiled(system.step)
    minimiser = np.linalg.solve(A + B, A @ a + B @ b)[None]
    assert np.max(np.abs(step(params, minimiser, None) - minimiser)) > 1e-3
    assert_allclose(step(params | {"g": (B, a)}, a[None], None), a[None], atol=1e-14)
