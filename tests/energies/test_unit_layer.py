"""The unit layer and the two energies it lowers."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import unroll_jax as uj
from tests import reference
from unroll_jax.descent import Anchor
from unroll_jax.energies.unit_layer import UnitLayerParams, unit_layer

N, DIM, WIDTH, INPUT = 5, 3, 6, 2
# sigma, its antiderivative s, and the conjugate s*, written from their definitions.
SIGMA = {
    "relu": lambda t: np.maximum(t, 0.0),
    "tanh": np.tanh,
    "soft_threshold": lambda t: np.sign(t) * np.maximum(np.abs(t) - 1.0, 0.0),
}
ANTIDERIVATIVE = {
    "relu": lambda t: 0.5 * np.maximum(t, 0.0) ** 2,
    "tanh": lambda t: np.log(np.cosh(t)),
    "soft_threshold": lambda t: 0.5 * np.maximum(np.abs(t) - 1.0, 0.0) ** 2,
}
CONJUGATE = {
    "relu": lambda t: np.where(t >= -1e-9, 0.5 * t**2, np.inf),
    "tanh": lambda t: t * np.arctanh(t) + 0.5 * np.log1p(-(t**2)),
    "soft_threshold": lambda t: 0.5 * t**2 + np.abs(t),
}


def reference_energy(y, W, U, b, x, *, mu, activation):
    """|z|^2 / 2 - 1^T s(W z + U x + b) / mu, token by token."""
    hidden = [W @ z + U @ e + b for z, e in zip(y, x, strict=True)]
    return 0.5 * np.sum(y**2) - sum(np.sum(ANTIDERIVATIVE[activation](t)) for t in hidden) / mu


def reference_conjugate(y, W, U, b, x, *, activation):
    """Eq. 3: 1^T s*(W^-T z) - <f(x), W^-T z> - |z|^2 / 2, token by token."""
    total = 0.0
    for z, e in zip(y, x, strict=True):
        preimage = np.linalg.inv(W).T @ z
        total += np.sum(CONJUGATE[activation](preimage)) - (U @ e + b) @ preimage - 0.5 * z @ z
    return total


def reference_step(y, W, U, b, x, *, mu, activation, skip=1.0):
    layer = [W.T @ SIGMA[activation](W @ z + U @ e + b) / mu for z, e in zip(y, x, strict=True)]
    return (1.0 - skip) * y + skip * np.array(layer)


def compiled(*args, **options):
    """The factory's layer, compiled: quicker here than one operation at a time."""
    layer = unit_layer(*args, **options)
    return layer._replace(energy=jax.jit(layer.energy), step=jax.jit(layer.step))


def draw(seed, width=WIDTH):
    """Tokens, parameters and input."""
    rng = np.random.default_rng(seed)
    shapes = (N, DIM), (width, DIM), (width, INPUT), (width,), (N, INPUT)
    return tuple(rng.normal(size=shape) for shape in shapes)


def as_arrays(y, W, U, b, x):
    return UnitLayerParams(*map(jnp.asarray, (W, U, b))), jnp.asarray(y), jnp.asarray(x)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("width", [2, WIDTH])
@pytest.mark.parametrize("activation", ANTIDERIVATIVE)
def test_energy_and_step_equal_the_reference(activation, width):
    point = draw(0, width)
    layer = compiled(DIM, width, INPUT, activation=activation, mu=2.5, skip=0.4)
    expected = reference_energy(*point, mu=2.5, activation=activation)
    np.testing.assert_allclose(layer.energy(*as_arrays(*point)), expected, rtol=1e-12)
    expected = reference_step(*point, mu=2.5, activation=activation, skip=0.4)
    np.testing.assert_allclose(layer.step(*as_arrays(*point)), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("activation", CONJUGATE)
def test_the_conjugate_energy_is_equation_3(activation):
    """On the range of the layer, where it is finite."""
    y, W, U, b, x = draw(1, DIM)
    y = reference_step(y, W, U, b, x, mu=1.0, activation=activation)
    layer = compiled(DIM, None, INPUT, activation=activation, energy="conjugate")
    expected = reference_conjugate(y, W, U, b, x, activation=activation)
    np.testing.assert_allclose(layer.energy(*as_arrays(y, W, U, b, x)), expected, rtol=1e-11)


@pytest.mark.usefixtures("x64")
def test_the_conjugate_energy_is_infinite_off_the_range_of_the_layer():
    params, _, x = as_arrays(*draw(1, DIM))
    energy = unit_layer(DIM, None, INPUT, energy="conjugate").energy
    for coefficients, finite in (([1.0, 0.0, 2.0], True), ([1.0, -1e-3, 2.0], False)):
        assert jnp.isfinite(energy(params, jnp.tile(jnp.array(coefficients), (N, 1)) @ params.W, x)) == finite


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("activation", ["relu", "tanh", "softplus"])
@pytest.mark.parametrize("mu", [0.7, 4.0])
def test_the_layer_is_the_proximal_operator_of_the_conjugate_energy(activation, mu):
    """The least of phi(u) + |u - z|^2 / 2 over u = W^T t / mu, found by a method that knows phi alone."""
    (y, W, *_), (params, _, x) = draw(2, DIM), as_arrays(*draw(2, DIM))
    layer = compiled(DIM, None, INPUT, activation=activation, mu=mu, energy="conjugate")
    envelope = unit_layer(DIM, None, INPUT, activation=activation, mu=mu).energy

    @jax.jit
    @jax.value_and_grad
    def objective(t):
        u = t.reshape(N, DIM) @ params.W / mu
        return layer.energy(params, u, x) + 0.5 * jnp.sum((u - y) ** 2)

    bounds = [(-1.0 + 1e-9, 1.0 - 1e-9) if activation == "tanh" else (1e-9, None)] * (N * DIM)
    options = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 5000}
    found = minimize(objective, np.full(N * DIM, 0.5), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    stepped = layer.step(params, jnp.asarray(y), x)
    np.testing.assert_allclose(stepped, found.x.reshape(N, DIM) @ W / mu, atol=1e-5)
    np.testing.assert_allclose(envelope(params, jnp.asarray(y), x), found.fun, rtol=1e-8)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("activation", uj.PROXIMALS)
def test_the_step_is_a_gradient_step_on_the_envelope(activation):
    layer = compiled(DIM, WIDTH, INPUT, activation=activation, mu=1.3, skip=0.6)
    params, y, x = as_arrays(*draw(3))
    gradient = jax.jit(jax.grad(layer.energy, 1))(params, y, x)
    chex.assert_trees_all_close(layer.step(params, y, x), y - 0.6 * gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_gradients_equal_finite_differences_of_the_reference(activation):
    point, weight = draw(4), np.random.default_rng(5).normal(size=(N, DIM))
    layer = unit_layer(DIM, WIDTH, INPUT, activation=activation, mu=1.3, skip=0.6)

    def on_arrays(function):
        return lambda y, W, U, b, x: function(UnitLayerParams(W, U, b), y, x)

    arrays = tuple(map(jnp.asarray, point))
    of_energy = jax.jit(jax.grad(on_arrays(layer.energy), range(5)))(*arrays)
    of_step = jax.jit(jax.grad(on_arrays(lambda *a: jnp.sum(weight * layer.step(*a))), range(5)))(*arrays)
    energy = lambda *a: reference_energy(*a, mu=1.3, activation=activation)  # noqa: E731
    step = lambda *a: np.sum(weight * reference_step(*a, mu=1.3, activation=activation, skip=0.6))  # noqa: E731
    for function, gradients in ((energy, of_energy), (step, of_step)):
        for place, gradient in enumerate(gradients):
            direction = np.random.default_rng(6).normal(size=gradient.shape)

            def along(value, function=function, place=place):
                return function(*point[:place], value, *point[place + 1 :])

            expected = reference.directional_derivative(along, point[place], direction, width=1e-4)
            np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=1e-8)


def random_layers(rng, count, width):
    """Tokens, parameters and inputs, each with a scale of its own over six orders of magnitude."""
    shapes = (N, DIM), (width, DIM), (width, INPUT), (1, width), (N, INPUT)
    y, W, U, b, x = (
        10.0 ** rng.uniform(-3, 3, size=(count, 1, 1)) * rng.normal(size=(count, *shape)) for shape in shapes
    )
    return y, W, U, b[:, 0], x


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("skip", [1.0, 0.3])
@pytest.mark.parametrize("activation", ["relu", "tanh", "leaky_relu", "box", "group_shrinkage"])
def test_no_step_raises_the_envelope_whatever_the_weights(activation, skip, dtype):
    with jax.enable_x64(dtype == "float64"):
        y, W, U, b, x = random_layers(np.random.default_rng(7), 1000, WIDTH)
        layer = unit_layer(DIM, WIDTH, INPUT, activation=activation, skip=skip)

        @jax.jit
        @jax.vmap
        def fall(y, W, U, b, x):
            params = UnitLayerParams(W, U, b)
            stepped = layer.step(params, y, x)
            proven = skip * (1.0 - skip / 2.0) * jnp.sum((stepped - y) ** 2) / skip**2
            size = sum(jnp.sum(z**2) + jnp.sum((z @ W.T + x @ U.T + b) ** 2) for z in (y, stepped))
            return layer.energy(params, y, x) - layer.energy(params, stepped, x), proven, size

        fell, proven, size = fall(*(jnp.asarray(a, dtype) for a in (y, W, U, b, x)))
        assert jnp.all(fell >= proven - 40.0 * jnp.finfo(dtype).eps * size)
        assert jnp.mean(fell > 0.0) > 0.6


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("activation", ["relu", "tanh", "soft_threshold"])
@pytest.mark.parametrize(("norm", "skip"), [(0.95, 1.0), (0.95, 0.3), (3.0, 1.0), (3.0, 0.3)])
def test_no_step_raises_the_conjugate_energy_whatever_the_weights(norm, skip, activation):
    """From points on the range of the layer, so that it starts finite; it falls as much as is proven."""
    rng, count = np.random.default_rng(8), 2000
    W = np.linalg.qr(rng.normal(size=(count, DIM, DIM)))[0] * rng.uniform(0.3, 1.0, size=(count, 1, DIM)) * norm
    shapes = (N, DIM), (DIM, INPUT), (DIM,), (N, INPUT)
    y, U, b, x = (rng.normal(size=(count, *shape)) for shape in shapes)
    layer = unit_layer(DIM, None, INPUT, activation=activation, skip=skip, energy="conjugate")
    full = unit_layer(DIM, None, INPUT, activation=activation)

    @jax.jit
    @jax.vmap
    def fall(y, W, U, b, x):
        params = UnitLayerParams(W, U, b)
        start = full.step(params, y, x)
        before, after = layer.energy(params, start, x), layer.energy(params, layer.step(params, start, x), x)
        return before - after, 0.5 * skip**2 * jnp.sum((full.step(params, start, x) - start) ** 2)

    fell, proven = fall(*map(jnp.asarray, (y, W, U, b, x)))
    assert jnp.all(jnp.isfinite(fell))
    assert jnp.all(fell >= proven - 1e-9 * (1.0 + proven))
    assert jnp.mean(fell > 1e-3) > 0.5


@pytest.mark.usefixtures("x64")
def test_a_layer_whose_second_matrix_is_not_the_transpose_raises_the_energy():
    rng, rose = np.random.default_rng(9), 0
    for _ in range(100):
        y, (W, other), x = rng.normal(size=(1, DIM)), rng.normal(size=(2, DIM, DIM)) / 2.0, np.zeros((1, INPUT))
        rest = np.zeros((DIM, INPUT)), np.zeros(DIM), x
        untied = np.maximum(y @ W.T, 0.0) @ other
        before, after = (reference_energy(z, W, *rest, mu=1.0, activation="relu") for z in (y, untied))
        rose += after > before + 1e-6
    assert rose > 2


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("activation", ["relu", "tanh", "softplus"])
def test_the_fixed_point_minimises_both_energies(activation, getkey):
    options = {"width": None, "input_dim": INPUT, "activation": activation}
    envelope, conjugate = compiled(DIM, **options), compiled(DIM, **options, energy="conjugate")
    params, y, x = as_arrays(*draw(10, DIM))
    params = params._replace(W=params.W * (0.9 / jnp.linalg.norm(params.W, 2)))
    fixed = jax.jit(lambda y: jax.lax.fori_loop(0, 400, lambda _, y: envelope.step(params, y, x), y))(y)
    chex.assert_trees_all_close(envelope.step(params, fixed, x), fixed, atol=1e-12)
    for scale in (1e-3, 0.1, 10.0):
        other = fixed + scale * jax.random.normal(getkey(), fixed.shape, fixed.dtype)
        assert envelope.energy(params, other, x) > envelope.energy(params, fixed, x)
        inside = envelope.step(params, other, x)  # of the range
        assert conjugate.energy(params, inside, x) > conjugate.energy(params, fixed, x)
    chex.assert_trees_all_close(envelope.energy(params, fixed, x), conjugate.energy(params, fixed, x), rtol=1e-9)


def test_at_initialisation_the_layer_contracts(getkey):
    params = jax.jit(unit_layer(4, 9, INPUT).init)(getkey())
    np.testing.assert_allclose(np.linalg.norm(params.W, 2), 0.95, rtol=1e-5)
    assert unit_layer(4).init(getkey()).U is None


@pytest.mark.parametrize("energy", ["envelope", "conjugate"])
def test_absent_tokens_neither_count_nor_move(getkey, energy):
    layer = unit_layer(DIM, None, INPUT, energy=energy, activation="leaky_relu")
    y = jax.random.normal(getkey(), (2, N, DIM)).at[:, 3:].set(jnp.nan)
    x = jax.random.normal(getkey(), (2, N, INPUT)).at[:, 3:].set(jnp.inf)
    params, padded = layer.init(getkey()), Anchor(x, jnp.arange(N) < 3)
    evaluate = jax.jit(lambda *a: (layer.energy(*a), layer.step(*a)))
    found, short = evaluate(params, y, padded), evaluate(params, y[:, :3], x[:, :3])
    chex.assert_trees_all_close((found[0], found[1][:, :3]), short, rtol=1e-5)
    assert jnp.all(jnp.isnan(found[1][:, 3:]))


def test_bfloat16_is_computed_in_float32(getkey):
    layer, y = compiled(DIM, WIDTH), jax.random.normal(getkey(), (N, DIM), jnp.bfloat16)
    params = layer.init(getkey())
    chex.assert_trees_all_equal(layer.step(params, y), layer.step(params, y.astype(jnp.float32)).astype(jnp.bfloat16))


BAD_OPTIONS = [
    ({"dim": 0}, "dim must be at least 1, got 0"),
    ({"input_dim": 0}, "input_dim must be at least 1, got 0"),
    ({"mu": 0.0}, "mu must be positive and finite, got 0.0"),
    ({"skip": 1.1}, r"skip must be in \(0, 1\], got 1.1"),
    ({"energy": "moreau"}, "energy must be one of .*, got 'moreau'"),
    ({"energy": "conjugate", "width": 4}, "'conjugate' only for width = dim = 3, got 'conjugate'"),
    ({"activation": "gelu"}, "one of .* got 'gelu'"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS, ids=str)
def test_a_bad_option_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        unit_layer(**{"dim": DIM, **options})


@pytest.mark.usefixtures("unchecked")
def test_a_bad_input_is_named(getkey):
    layer, plain = unit_layer(DIM, WIDTH, INPUT), unit_layer(DIM, WIDTH)
    params, y = layer.init(getkey()), jnp.ones((N, DIM))
    with pytest.raises(ValueError, match="x must be None without input_dim"):
        plain.step(plain.init(getkey()), y, jnp.ones((5, 2)))
    for function in (layer.energy, layer.step):
        with pytest.raises(ValueError, match=r"width dim=3, got shape \(5, 4\)"):
            function(params, jnp.ones((5, 4)))
        with pytest.raises(ValueError, match=r"x must hold features of shape \(5, 2\).*got shape \(5, 3\)"):
            function(params, y, jnp.ones((5, 3)))
        with pytest.raises(TypeError, match="x must have a floating dtype, got int32"):
            function(params, y, jnp.ones((5, 2), jnp.int32))
