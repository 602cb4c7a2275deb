"""Alternating steps against loops written from Algorithms 1 and 2."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.errors import assert_names
from unroll_jax.descent import Anchor
from unroll_jax.energies import Proximal, TransformerParams, box, transformer_parts

pytestmark = pytest.mark.usefixtures("x64")  # arrays are float64 unless a test makes them float32
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


PROXES = {
    None: lambda v: v,
    "identity": lambda v: v,
    "relu": lambda v: np.maximum(v, 0.0),
    "soft_threshold": lambda v: np.sign(v) * np.maximum(np.abs(v) - A2, 0.0),
    "box": lambda v: np.clip(v, 0.0, 1.0),
    "tanh": np.tanh,
}


def penalty(phi, y):
    """For tanh the slope condition is z = tanh(z + a2 phi'(z)), hence phi' = (artanh z - z) / a2."""
    if phi == "tanh":
        y = np.asarray(y, float)
        return np.sum(y * np.arctanh(y) + 0.5 * np.log1p(-(y**2)) - 0.5 * y**2, axis=(-2, -1)) / A2
    return np.sum(np.abs(y), axis=(-2, -1)) if phi == "soft_threshold" else 0.0


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
@pytest.mark.parametrize("batch", [(), (2, 3)], ids=["rank0", "rank2"])
def test_a_step_is_a_gradient_step_on_f_then_on_g_then_a_prox(batch, dtype):
    params = draw_params(0, dtype)
    y = np.random.default_rng(1).normal(size=(*batch, 4, DIM)).astype(dtype)

    @jax.jit
    def measure(params, y):
        results = {}
        for phi in PROXES:
            system = uj.alternating(quadratic("f"), quadratic("g"), f_step_size=A1, g_step_size=A2, phi=phi)
            stepped = system.step(params, y, None)
            results[phi or "none"] = stepped, system.energy(params, stepped, None)
        return results

    with jax.enable_x64(dtype == "float64"):
        results = measure(params, y)
    (A, a), (B, b) = params["f"], params["g"]
    for phi, prox in PROXES.items():
        stepped, energy = results[phi or "none"]
        assert (stepped.shape, stepped.dtype) == (y.shape, y.dtype), phi
        expected = np.empty_like(y)
        for place in np.ndindex(y.shape[:-1]):
            u = y[place] - A1 * A @ (y[place] - a)
            expected[place] = prox(u - A2 * B @ (u - b))
        atol = 1e-12 if dtype == "float64" else 1e-5
        np.testing.assert_allclose(stepped, expected, rtol=1e-7, atol=atol, err_msg=str(phi))
        at = np.asarray(stepped, np.float64)
        halves = [0.5 * np.sum(((at - m) @ M) * (at - m), axis=(-2, -1)) for M, m in ((A, a), (B, b))]
        assert energy.shape == batch, phi
        rtol = 1e-12 if dtype == "float64" else 1e-4
        np.testing.assert_allclose(energy, sum(halves) + penalty(phi, at), rtol=rtol, err_msg=str(phi))


def test_a_step_keeps_the_dtype_of_the_state_whatever_that_of_its_step_size():
    with jax.enable_x64(True):
        system = uj.alternating(quadratic("f"), quadratic("g"), f_step_size=np.float64(A1), g_step_size=np.float64(A2))
        params, y = draw_params(2, "float32"), jax.ShapeDtypeStruct((4, DIM), jnp.bfloat16)
        assert jax.eval_shape(system.step, params, y, None).dtype == jnp.bfloat16


def test_the_transformer_is_an_alternating_system_whose_first_step_is_given():
    parts, layer = transformer_parts(DIM, step_size=0.2), uj.transformer(DIM, step_size=0.2)
    system = uj.alternating(
        parts.attention.energy,
        parts.feedforward.energy,
        f_step=parts.attention.step,
        g_step_size=parts.step_size,
        phi=parts.phi,
        init=layer.init,
    )

    @jax.jit
    def both(y, x):
        params = jax.tree.map(lambda leaf: leaf.astype(float), system.init(jax.random.key(0)))
        return [(one.step(params, y, x), one.energy(params, y, x)) for one in (system, layer)]

    chex.assert_trees_all_close(*both(*np.random.default_rng(2).uniform(size=(2, 2, 5, DIM))), rtol=1e-12)


@pytest.mark.parametrize(
    ("phi", "first"),
    [(box(0.2, 1.0), {"f_step": PARTS.attention.step}), ("tanh", {"f_step_size": A1})],
    ids=["infinite at 0", "tanh"],
)
def test_absent_tokens_neither_move_nor_count(phi, first):
    rng = np.random.default_rng(3)
    params = TransformerParams(*rng.normal(size=(2, DIM, DIM)))
    system = uj.alternating(PARTS.attention.energy, PARTS.feedforward.energy, g_step_size=A2, phi=phi, **first)
    y, there = rng.uniform(0.2, 1.0, size=(2, 4, DIM)), np.arange(6) < 4

    @jax.jit
    def measure(params, y, x):
        def size(y):
            stepped = system.step(params, y, x)
            return jnp.sum(stepped[:, :4] ** 2), (stepped, system.energy(params, y, x))

        return jax.grad(size, has_aux=True)(y)

    slope, (expected, energy) = jax.tree.map(np.asarray, measure(params, y, None))
    assert np.all(np.isfinite(energy))
    for padding in (0.0, -1.0, np.nan):
        padded = np.full((2, 6, DIM), padding)
        padded[:, :4] = y
        by_padded, (stepped, padded_energy) = jax.tree.map(
            np.asarray, measure(params, padded, Anchor(None, jnp.asarray(there)))
        )
        np.testing.assert_array_equal(stepped[:, 4:], padded[:, 4:])
        np.testing.assert_allclose(stepped[:, :4], expected, rtol=1e-12)
        np.testing.assert_allclose(padded_energy, energy, rtol=1e-12)
        np.testing.assert_allclose(by_padded[:, :4], slope, rtol=1e-10, atol=1e-12)
        np.testing.assert_array_equal(by_padded[:, 4:], 0.0)


def test_the_state_may_be_a_pytree_and_phi_its_own():
    def f(params, y, x):
        return 0.5 * (y["a"] ** 2 + jnp.sum((y["b"] - x) ** 2, axis=-1))

    def g(params, y, x):
        return jnp.logaddexp(y["a"], -y["a"]) + jnp.sum(jnp.cosh(y["b"]), axis=-1)

    ball = Proximal(
        penalty=lambda y: jnp.zeros_like(y["a"]),
        prox=lambda v, step_size: jax.tree.map(lambda leaf: jnp.clip(leaf, -1.0, 1.0), v),
    )
    system = uj.alternating(f, g, f_step_size=A1, g_step_size=A2, phi=ball)
    y = {"a": np.array([0.3, -2.0], np.float32), "b": np.array([[0.5, 2.0, 0.1], [0.0, -0.4, 9.0]], np.float32)}
    stepped, trace = jax.jit(lambda y: uj.unroll(system, None, y, 0.25, num_layers=3))(y)
    chex.assert_trees_all_equal_shapes_and_dtypes(stepped, y)
    assert trace.energy.shape == (4, 2)
    for _ in range(3):
        u = {"a": y["a"] - A1 * y["a"], "b": y["b"] - A1 * (y["b"] - 0.25)}
        y = {"a": u["a"] - A2 * np.tanh(u["a"]), "b": u["b"] - A2 * np.sinh(u["b"])}
        y = {name: np.clip(leaf, -1.0, 1.0) for name, leaf in y.items()}
    chex.assert_trees_all_close(stepped, y, rtol=1e-4)  # sinh 9 in float32


def test_only_where_f_and_g_agree_is_the_minimiser_a_fixed_point():
    params = draw_params(4)
    system = uj.alternating(quadratic("f"), quadratic("g"), f_step_size=A1, g_step_size=A2)
    (A, a), (B, b) = params["f"], params["g"]
    minimiser = np.linalg.solve(A + B, A @ a + B @ b)[None]
    both = jax.jit(lambda params, y: (jax.grad(system.energy, 1)(params, y, None), system.step(params, y, None)))
    slope, stepped = both(params, minimiser)
    np.testing.assert_allclose(slope, 0.0, atol=1e-12)
    assert np.max(np.abs(stepped - minimiser)) > 1e-3
    np.testing.assert_allclose(both(params | {"g": (B, a)}, a[None])[1], a[None], atol=1e-14)


def test_the_energy_of_the_paper_s_example_falls_and_then_levels_off_above_its_minimum():
    """Figs. 2 and 3 at a tenth of their size: steps stop descending near the minimiser, in a region of small radius."""
    rng = np.random.default_rng(6)
    S, W = 0.3 * rng.normal(size=(50, 50)), 0.3 * rng.normal(size=(12, 12))
    B1, B2 = rng.uniform(size=(2, 50, 12))
    f = lambda params, y, x: jnp.sum((S @ y) ** 2, (-2, -1)) + jnp.sum((y - B1) ** 2, (-2, -1))  # noqa: E731
    g = lambda params, y, x: jnp.sum((y @ W) ** 2, (-2, -1)) + jnp.sum((y - B2) ** 2, (-2, -1))  # noqa: E731
    system = uj.alternating(f, g, f_step_size=0.02, g_step_size=0.02)
    operator = np.kron(S.T @ S, np.eye(12)) + np.kron(np.eye(50), W @ W.T) + 2 * np.eye(600)
    lowest = np.linalg.solve(operator, (B1 + B2).ravel()).reshape(50, 12)

    @jax.jit
    def measure(y, lowest):
        return uj.unroll(system, None, y, num_layers=300)[1].energy, system.energy(None, lowest, None)

    energy, minimum = map(np.asarray, measure(2.0 * rng.uniform(size=(50, 12)), lowest))
    excess = energy - minimum
    assert np.all(np.diff(excess[:20]) < 0.0)
    assert 0.0 < excess[-1] < 0.01 * excess[0]
    assert abs(excess[-1] - excess[-2]) < 1e-6 * excess[-1]


@pytest.mark.usefixtures("unchecked")
def test_bad_arguments_are_named():
    make = lambda g_step_size=0.1, **options: uj.alternating(  # noqa: E731
        quadratic("f"), quadratic("g"), g_step_size=g_step_size, **options
    )
    for options in (
        *({"f_step_size": size} for size in (float("inf"), -1.0)),
        {"f_step_size": 0.1, "g_step_size": 0.0},
        {"f_step": None},
        {"f_step_size": 0.1, "f_step": lambda params, y, x: y},
        {"f_step_size": 0.1, "phi": "rleu"},
    ):
        assert_names(ValueError, make, options)
    step, y = make(f_step_size=A1).step, np.ones((4, DIM), np.int32)
    assert_names(TypeError, lambda y: step(draw_params(0, "float32"), y, None), {"y": y})
