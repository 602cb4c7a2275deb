"""OptEq, dense and convolutional, against loops written from the paper's equations."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.energies import opteq_reference as reference
from tests.energies.opteq_layers import IMAGE, H, M, convolutional, dense
from unroll_jax.certificates.contraction import weight_norm_bound
from unroll_jax.energies.deep_opteq import deep_opteq, multi_block
from unroll_jax.energies.monotone import MONOTONES, Monotone, antiderivative, resolve_monotone
from unroll_jax.energies.opteq import opteq, opteq_conv
from unroll_jax.energies.opteq_params import OptEqParams, opteq_linear

CASES = [("dense", name, 1.0, (2, 3)) for name in MONOTONES]
CASES += [(kind, *case) for kind in ("dense", "conv") for case in [("relu", 0.3, ()), ("tanh", 0.7, (3,))]]
CASES += [("conv", "relu", 1.0, (2, 3))]
every_activation = pytest.mark.parametrize("activation", MONOTONES)


KINDS = {"dense": (dense, reference.dense_matrix), "conv": (convolutional, reference.conv_matrix)}
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("kind", "activation", "skip", "batch"), CASES)
def test_step_and_energy_equal_loops(kind, activation, skip, batch):
    make, matrix = KINDS[kind]
    layer, params, z, x = make(batch, activation=activation, skip=skip)
    W, U = matrix(params.W, IMAGE), matrix(params.U, IMAGE)
    b = np.tile(params.b, W.shape[0] // len(params.b))
    stepped, energy = jax.jit(lambda *a: (layer.step(*a), layer.energy(*a)))(params, z, x)
    assert stepped.shape == z.shape
    assert energy.shape == batch
    for place in itertools.product(*map(range, batch)):
        vector, signal = np.ravel(z[place]), np.ravel(x[place])
        expected = reference.step(vector, W, U, b, signal, activation=activation, skip=skip)
        np.testing.assert_allclose(np.ravel(stepped[place]), expected, rtol=1e-12, atol=1e-12)
        expected = reference.energy(vector, W, U, b, signal, activation=activation)
        np.testing.assert_allclose(energy[place], expected, rtol=1e-12)


@pytest.mark.usefixtures("x64")
@every_kind
@pytest.mark.parametrize("skip", [1.0, 0.4])
def test_the_step_is_a_gradient_step_and_never_raises_the_energy_whatever_the_norm(kind, skip):
    layer, params, z, x = KINDS[kind][0]((200,), skip=skip)

    @jax.jit
    def measure(params, z, x):
        gradient = jax.grad(lambda z: jnp.sum(layer.energy(params, z, x)))(z)
        stepped = layer.step(params, z, x)
        return gradient, stepped, layer.energy(params, z, x), layer.energy(params, stepped, x)

    for norm in (0.9, 1.0, 3.0):
        gradient, stepped, before, after = measure(params._replace(W=params.W * (norm / 0.9)), 3.0 * z, x)
        np.testing.assert_allclose(stepped, 3.0 * z - skip * gradient, atol=1e-12)
        fall = skip * (1.0 - skip / 2.0) * jnp.sum(gradient.reshape(200, -1) ** 2, axis=1)
        assert jnp.all(after <= before - fall + 1e-12 * (1.0 + jnp.abs(before)))


@pytest.mark.usefixtures("x64")
def test_the_energy_is_convex_where_the_norm_is_at_most_1_and_not_above(getkey):
    def chords(norm):
        layer, params, u, x = dense((500,))
        params = params._replace(W=params.W * norm / jnp.linalg.norm(params.W, 2))
        v = 10.0 * jax.random.normal(getkey(), u.shape)
        ends, middle = [layer.energy(params, z, x) for z in (u, v)], layer.energy(params, 0.5 * (u + v), x)
        return middle - 0.5 * (ends[0] + ends[1])

    assert jnp.all(chords(1.0) <= 1e-10)
    assert jnp.any(chords(1.5) > 1e-3)


@pytest.mark.usefixtures("x64")
@every_kind
def test_initial_weights_contract(getkey, kind):
    params = KINDS[kind][0]()[0].init(getkey())
    norm = np.linalg.norm(KINDS[kind][1](params.W, IMAGE), 2)
    assert 0.5 < norm <= 0.9 + 1e-6
    assert weight_norm_bound(params.W, (32, 32)) == pytest.approx(0.9, abs=1e-6)


@every_kind
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_states_keep_their_dtype_and_energies_are_float32(kind, dtype):
    layer, params, z, x = KINDS[kind][0]((2,), dtype)
    assert layer.step(params, z, x).dtype == dtype
    assert layer.energy(params, z, x).dtype == jnp.float32


@every_kind
def test_an_input_left_out_is_zero_and_one_for_all_examples_broadcasts(getkey, kind):
    layer, params, z, x = KINDS[kind][0]((3,), jnp.float32)
    chex.assert_trees_all_close(layer.step(params, z), layer.step(params, z, jnp.zeros_like(x)))
    shared = jnp.broadcast_to(x[0], x.shape)
    chex.assert_trees_all_close(layer.step(params, z, x[0]), layer.step(params, z, shared), rtol=1e-6, atol=1e-6)
    blind = opteq(M, H)
    own = blind.init(getkey())
    assert own.U is None
    state = jnp.ones((3, M))
    chex.assert_trees_all_close(blind.step(own, state, jnp.ones(7)), blind.step(own, state))


@pytest.mark.usefixtures("x64")
@every_activation
def test_activations_are_monotone_1_lipschitz_and_have_their_antiderivative_and_conjugate(activation):
    sigma = MONOTONES[activation]
    t = jnp.concatenate([jnp.linspace(-8.0, 8.0, 4001), jnp.zeros(1)])
    values = sigma.value(t)
    slopes = jnp.diff(values[:-1]) / jnp.diff(t[:-1])
    assert jnp.all((slopes >= 0.0) & (slopes <= 1.0 + 1e-9))
    np.testing.assert_allclose(values, reference.SIGMA[activation](np.asarray(t)), atol=1e-14)
    np.testing.assert_allclose(sigma.integral(t), reference.ANTIDERIVATIVE[activation](np.asarray(t)), atol=1e-13)
    assert sigma.integral(jnp.zeros(())) == 0.0
    chex.assert_trees_all_equal(jax.vmap(jax.grad(antiderivative(sigma)))(t), values)
    second = jax.vmap(jax.grad(jax.grad(antiderivative(sigma))))(t)
    chex.assert_trees_all_equal(second, jax.vmap(jax.grad(sigma.value))(t))
    # Fenchel: s*(sigma(w)) = w sigma(w) - s(w), and s*(t) >= t w - s(w) for any t.
    conjugate = sigma.conjugate(values)
    np.testing.assert_allclose(conjugate, t * values - sigma.integral(t), atol=1e-9)
    grid = jnp.linspace(-1.5, 1.5, 41)
    assert jnp.all(sigma.conjugate(grid)[:, None] >= grid[:, None] * t - sigma.integral(t) - 1e-12)
    lowest, highest = (float(sigma.value(jnp.asarray(end))) for end in (-jnp.inf, jnp.inf))
    for end, outside in ((lowest, lowest - 1e-6), (highest, highest + 1e-6)):
        if np.isfinite(end):
            assert jnp.isinf(sigma.conjugate(jnp.asarray(outside)))
            assert jnp.isfinite(sigma.conjugate(jnp.asarray(end)))
    assert jnp.all(jnp.isfinite(jax.vmap(jax.grad(sigma.conjugate))(jnp.array([0.3, 0.7, 1.5, -1.5]))))


@pytest.mark.usefixtures("x64")
def test_a_users_own_activation_serves_a_layer():
    softplus = Monotone(jax.nn.softplus, lambda t: jnp.zeros_like(t))  # an integral that autodiff must not touch
    layer, params, z, x = dense((2,), activation=softplus)
    expected = jax.nn.softplus(z @ params.W.T + x @ params.U.T + params.b) @ params.W
    chex.assert_trees_all_close(layer.step(params, z, x), expected, rtol=1e-12)
    assert resolve_monotone(softplus) is softplus


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("skip", [1.0, 0.3])
def test_the_factored_form_is_the_layer(skip):
    layer, params, z, x = dense((2, 3), activation="tanh", skip=skip)
    for signal in (x, None):
        form = layer.factored(params, signal)
        composed = form.activation(z @ form.matrix.T + form.offset) @ form.matrix
        composed = form.share * composed + (1.0 - form.share) * z
        chex.assert_trees_all_close(composed, layer.step(params, z, signal), rtol=1e-12)
    assert opteq_conv(2, 3).factored is None


@pytest.mark.usefixtures("x64")
@every_kind
def test_jit_grad_vmap_and_scan_work(kind):
    layer, params, z, x = KINDS[kind][0]((3,), activation="tanh", skip=0.5)

    def loss(params, z, x):
        last, energies = jax.lax.scan(lambda z, _: (layer.step(params, z, x), layer.energy(params, z, x)), z, length=3)
        return jnp.sum(last**2) + jnp.sum(energies)

    loss = jax.jit(loss)
    gradients = jax.jit(jax.grad(loss, (0, 1, 2)))(params, z, x)
    assert all(jnp.any(leaf != 0.0) and jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(gradients))
    mapped = jax.vmap(layer.step, (None, 0, 0))(params, z, x)
    chex.assert_trees_all_close(mapped, layer.step(params, z, x), rtol=1e-12)
    direction = jax.tree.map(jnp.ones_like, params)
    slope = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(gradients[0]))
    measured = reference.directional(lambda t: loss(jax.tree.map(lambda p, d: p + t * d, params, direction), z, x))
    assert float(slope) == pytest.approx(measured, rel=1e-6)


BAD_OPTIONS = [
    (lambda: opteq(0, 2), ValueError, "dim must be at least 1, got 0"),
    (lambda: opteq(2, 0), ValueError, "width must be at least 1, got 0"),
    (lambda: opteq(2, 2, 0), ValueError, "input_dim must be at least 1, got 0"),
    (lambda: opteq_conv(2, 2, 0), ValueError, "input_channels must be at least 1, got 0"),
    (lambda: opteq_conv(2, 2, kernel_size=2), ValueError, "kernel_size must be odd and positive, got 2"),
    (lambda: opteq(2, 2, skip=0.0), ValueError, r"skip must be in \(0, 1\], got 0.0"),
    (lambda: opteq(2, 2, skip=float("nan")), ValueError, "skip must be .* got nan"),
    (lambda: opteq(2, 2, activation="gelu"), ValueError, "activation must be one of .*'relu'.* got 'gelu'"),
    (lambda: opteq(2, 2, activation=3), TypeError, "activation must be one of .* got int"),
    (lambda: deep_opteq([]), ValueError, "layers must hold at least one layer"),
    (lambda: multi_block([]), ValueError, "layers must hold at least one layer"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("call", "error", "message"), BAD_OPTIONS, ids=[row[2] for row in BAD_OPTIONS])
def test_a_bad_option_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


BAD_ARRAYS = [
    (lambda z, x: (z[..., :2], x), ValueError, r"z must be \(\*batch, 4\), got shape \(3, 2\)"),
    (lambda z, x: (z, x[..., :2]), ValueError, r"x must be \(\*batch, 3\), got shape \(3, 2\)"),
    (lambda z, x: (z, x[:2]), ValueError, r"x must have the batch axes \(3,\) of z .* got \(2,\)"),
    (lambda z, x: (z[0], x), ValueError, r"x must have the batch axes \(\) of z .* got \(3,\)"),
    (lambda z, x: (z.astype(int), x), TypeError, "z must be a floating array, got int32"),
    (lambda z, x: (None, x), TypeError, "z must be a floating array, got None"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("part", ["step", "energy"])
@pytest.mark.parametrize(("change", "error", "message"), BAD_ARRAYS, ids=[row[2] for row in BAD_ARRAYS])
def test_a_bad_state_or_input_is_named(part, change, error, message):
    layer, params, z, x = dense((3,), jnp.float32)
    with pytest.raises(error, match=message):
        getattr(layer, part)(params, *change(z, x))


@pytest.mark.usefixtures("unchecked")
def test_an_image_of_the_wrong_rank_is_named():
    layer, params, z, x = convolutional((), jnp.float32)
    with pytest.raises(ValueError, match=r"z must be \(\*batch, height, width, 2\), got shape \(4, 2\)"):
        layer.step(params, z[0], x)


def test_params_of_both_kinds_are_one_type(getkey):
    assert isinstance(opteq(2, 3, 4).init(getkey()), OptEqParams)
    assert opteq_conv(2, 3, 4).init(getkey()).W.shape == (3, 3, 2, 3)
    assert opteq_linear(jnp.ones((3, 2)), jnp.ones((5, 2))).shape == (5, 3)
    assert isinstance(opteq(2, 3), uj.Descent)
