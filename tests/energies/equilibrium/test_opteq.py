"""OptEq, dense and convolutional, against the paper's equations in NumPy."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.energies import opteq_reference as reference
from tests.energies.comparing import Case, assert_equal
from tests.energies.opteq_layers import IMAGE, H, convolutional, dense
from tests.marks import in_float64, nightly
from tests.reference import compiled, gaussian, jax_array
from unroll_jax.certificates.weights import weight_norm_bound
from unroll_jax.energies.equilibrium.monotone import (
    MONOTONES,
    Monotone,
    antiderivative,
    resolve_monotone,
)
from unroll_jax.energies.equilibrium.opteq import opteq, opteq_conv

# arrays are float64 unless a test makes them float32
pytestmark = in_float64
CASES = [("dense", name, 1.0, (2, 3)) for name in MONOTONES]
CASES += [
    (kind, *case)
    for kind in ("dense", "conv")
    for case in [("relu", 0.3, ()), ("tanh", 0.7, (3,))]
]
CASES += [("conv", "relu", 1.0, (2, 3))]
KINDS = {
    "dense": (dense, reference.dense_matrix),
    "conv": (convolutional, reference.conv_matrix),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def test_step_and_energy_equal_the_papers_equations():
    cases = {}
    for case in CASES:
        kind, activation, skip, batch = case
        make, matrix = KINDS[kind]
        layer, params, z, x = make(batch, activation=activation, skip=skip)
        W, U = (matrix(kernel, IMAGE) for kernel in (params.W, params.U))
        rows, signals = (np.asarray(leaf).reshape(*batch, -1) for leaf in (z, x))
        given = rows, W, U, np.tile(params.b, len(W) // len(params.b)), signals
        energy = reference.energy(*given, activation=activation)
        step = reference.step(*given, activation=activation, skip=skip)
        cases[case] = Case(layer, params, z, x, energy, step.reshape(z.shape))
    assert_equal(cases, atol=1e-12)


def test_the_energy_is_convex_up_to_norm_1():
    layer, params, u, x = dense((500,))
    v = 10.0 * gaussian(*u.shape, seed=5)
    size = np.linalg.norm(params.W, 2)

    @compiled
    def chords(norm, v):
        scaled = params._replace(W=params.W * norm / size)
        first, last, middle = (
            layer.energy(scaled, z, x) for z in (u, v, 0.5 * (u + v))
        )
        return middle - 0.5 * (first + last)

    assert np.all(chords(1.0, v) <= 1e-10)
    assert np.any(chords(1.5, v) > 1e-3)


@nightly
@every_kind
def test_initial_weights_contract(kind):
    init = KINDS[kind][0]()[0].init

    @compiled
    def drawn(key):
        params = init(key)
        return params, weight_norm_bound(params.W, (32, 32))

    params, bound = drawn(jax.random.key(20, impl="rbg"))
    assert 0.5 < np.linalg.norm(KINDS[kind][1](params.W, IMAGE), 2) <= 0.9 + 1e-6
    assert float(bound) == pytest.approx(0.9, abs=1e-6)


@every_kind
def test_one_input_for_all_examples_broadcasts(
    kind,
):
    layer, params, z, x = KINDS[kind][0]((3,), jnp.float32)
    blind = (
        opteq(z.shape[-1], H)
        if kind == "dense"
        else opteq_conv(z.shape[-1], params.W.shape[-1])
    )
    assert jax.eval_shape(blind.init, jax.random.key(0)).U is None

    @compiled
    def steps(z, x):
        weights = params._replace(U=None)
        inputs = (
            layer.step(params, z, x[0]),
            layer.step(params, z, jnp.broadcast_to(x[0], x.shape)),
        )
        return inputs, (blind.step(weights, z, x), blind.step(weights, z))

    for pair in steps(z, x):
        chex.assert_trees_all_close(*pair, rtol=1e-6, atol=1e-6)


def test_activations_are_monotone_1_lipschitz_with_antiderivative_and_conjugate():
    t = np.append(np.linspace(-8.0, 8.0, 4001), 0.0)
    grid = np.linspace(-1.5, 1.5, 41)

    @compiled
    def tables(t, grid):
        curves = {}
        for name, sigma in MONOTONES.items():
            slope = jax.grad(sigma.value)
            integral = antiderivative(sigma)
            ends = sigma.value(jax_array([-jnp.inf, jnp.inf]))
            curves[name] = {
                "values": sigma.value(t), "integrals": sigma.integral(t),
                "first": jax.vmap(jax.grad(integral))(t), "second": jax.vmap(jax.grad(jax.grad(integral)))(t),
                "slopes": jax.vmap(slope)(t), "conjugate": sigma.conjugate(sigma.value(t)),
                "on_grid": sigma.conjugate(grid), "ends": ends, "at_ends": sigma.conjugate(ends),
                "outside": sigma.conjugate(ends + jax_array([-1e-6, 1e-6])),
                "pulls": jax.vmap(jax.grad(sigma.conjugate))(jax_array([0.3, 0.7, 1.5, -1.5])),
            }  # fmt: skip
        return curves

    for name, at in tables(t, grid).items():
        values = at["values"]
        integrals = at["integrals"]
        slopes = np.diff(values[:-1]) / np.diff(t[:-1])
        assert np.all((slopes >= 0.0) & (slopes <= 1.0 + 1e-9)), name
        assert_allclose(values, reference.SIGMA[name](t), atol=1e-14, err_msg=name)
        assert_allclose(
            integrals, reference.ANTIDERIVATIVE[name](t), atol=1e-13, err_msg=name
        )
        assert integrals[-1] == 0.0, name
        assert_array_equal(at["first"], values, err_msg=name)
        assert_array_equal(at["second"], at["slopes"], err_msg=name)
        # Fenchel: s*(sigma(w)) = w sigma(w) - s(w), and s*(t) >= t w - s(w) for any t.
        assert_allclose(
            at["conjugate"], t * values - integrals, atol=1e-9, err_msg=name
        )
        assert np.all(
            at["on_grid"][:, None] >= grid[:, None] * t - integrals - 1e-12
        ), name
        finite = np.isfinite(at["ends"])
        assert np.all(np.isinf(at["outside"][finite])), name
        assert np.all(np.isfinite(at["at_ends"][finite])), name
        assert np.all(np.isfinite(at["pulls"])), name


def test_a_users_own_activation_serves_a_layer():
    # an integral that autodiff must not touch
    softplus = Monotone(jax.nn.softplus, lambda t: jnp.zeros_like(t))
    layer, params, z, x = dense((2,), activation=softplus)
    W, U, b = map(np.asarray, params)
    expected = np.logaddexp(0.0, np.asarray(z) @ W.T + np.asarray(x) @ U.T + b) @ W
    assert_allclose(compiled(layer.step)(params, z, x), expected, rtol=1e-12)
    assert resolve_monotone(softplus) is softplus


@pytest.mark.parametrize("skip", [1.0, 0.3])
def test_the_factored_form_is_the_layer(skip):
    layer, params, z, x = dense((2, 3), activation="tanh", skip=skip)

    def compose(params, z, signal):
        form = layer.factored(params, signal)
        composed = form.activation(z @ form.matrix.T + form.offset) @ form.matrix
        return form.share * composed + (1.0 - form.share) * z, layer.step(
            params, z, signal
        )

    for pair in compiled(lambda *a: (compose(*a), compose(*a[:2], None)))(params, z, x):
        chex.assert_trees_all_close(*pair, rtol=1e-12)
    assert opteq_conv(2, 3).factored is None
