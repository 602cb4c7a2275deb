"""DUST as a Flax module, against its equations in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import unroll_jax as uj
from tests import reference
from tests.energies.dust_reference import coding_step, mixing_step
from tests.models.drawing import drawn, float64, normal
from unroll_jax.energies import DustParams, cosine_dictionary
from unroll_jax.models import DUST, dictionary_bases
from unroll_jax.perturbations import lost_layer

DIM, ATOMS, TOKENS, LAYERS, MEASURED = 4, 7, 5, 3, 3
X = jax.ShapeDtypeStruct((TOKENS, DIM), jnp.float32)
PHI = np.random.default_rng(5).normal(size=(MEASURED, DIM))


def make(**options):
    return DUST(DIM, ATOMS, LAYERS, sparsity=0.05, **options)


def layers_of(params, scale):
    """D and V of every layer, in float64."""
    D, V = float64(params["params"]["layers"]) if isinstance(params, dict) else params
    D = np.broadcast_to(D, (LAYERS, ATOMS, DIM))
    return D, np.broadcast_to(scale * np.eye(ATOMS) if V is None else V, (LAYERS, ATOMS, ATOMS))


def reference_outputs(params, x, *, scale=0.25, measurement=None, lost=None, **mixing):
    (dictionaries, weights), x = layers_of(params, scale), np.asarray(x, np.float64)
    A = dictionaries[0] if measurement is None else dictionaries[0] @ measurement.T
    codes = x @ A.T / np.linalg.norm(A, 2) ** 2
    outputs = [codes @ dictionaries[0]]
    for number, (D, V) in enumerate(zip(dictionaries, weights, strict=True), start=1):
        if number != lost:
            mixed = mixing_step(codes, V, **{"form": "plain"} | mixing)
            codes = coding_step(mixed, D, x, 0.05, measurement=measurement)
        outputs.append(codes @ D)
    return np.stack(outputs)


CASES = {
    "plain": ({}, {}),
    "tied": ({"tied": True, "attention_scale": 0.5}, {"scale": 0.5}),
    "softmax, V trained": ({"form": "softmax", "train_attention": True}, {"form": "softmax"}),
    "tied, V trained": ({"tied": True, "train_attention": True}, {}),
    "without self-loops": ({"self_loops": False}, {"self_loops": False}),
    "measured": ({"measurement": PHI}, {"measurement": PHI}),
}


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("case", CASES)
def test_all_outputs_equal_the_reference(case):
    options, of_reference = CASES[case]
    model, x = make(param_dtype=jnp.float64, **options), normal(TOKENS, MEASURED if case == "measured" else DIM)
    params = drawn(model, x)
    outputs = np.asarray(jax.jit(model.apply)(params, x))
    assert outputs.shape == (LAYERS + 1, TOKENS, DIM)
    np.testing.assert_allclose(outputs, reference_outputs(params, x, **of_reference), rtol=1e-9, atol=1e-11)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("tied", [False, True])
def test_gradients_equal_finite_differences_of_the_reference(tied):
    model, x = make(param_dtype=jnp.float64, train_attention=True, tied=tied), normal(TOKENS, DIM)
    params, direction = (drawn(model, x, seed=seed) for seed in (0, 1))
    weight = np.random.default_rng(0).normal(size=(LAYERS + 1, TOKENS, DIM))
    gradient = jax.jit(jax.grad(lambda params: jnp.sum(weight * model.apply(params, x))))(params)
    along = sum(np.vdot(g, d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True))

    def shifted(distance):
        moved = jax.tree.map(lambda leaf, d: np.asarray(leaf) + distance * np.asarray(d), params, direction)
        return np.sum(weight * reference_outputs(moved, x))

    np.testing.assert_allclose(along, reference.directional_derivative(shifted, 0.0, 1.0, width=1e-6), rtol=1e-6)


@pytest.mark.slow
def test_parameters_are_the_dictionaries_alone_unless_attention_is_trained():
    shapes = lambda **options: jax.tree.map(  # noqa: E731
        jnp.shape, jax.eval_shape(make(**options).init, jax.random.key(0), X)["params"]["layers"]
    )
    assert shapes() == DustParams((LAYERS, ATOMS, DIM), None)
    assert shapes(tied=True) == DustParams((ATOMS, DIM), None)
    assert shapes(train_attention=True) == DustParams((LAYERS, ATOMS, DIM), (LAYERS, ATOMS, ATOMS))
    params = make(train_attention=True, attention_scale=0.5).init(jax.random.key(0), normal(TOKENS, DIM, dtype=X.dtype))
    D, V = params["params"]["layers"]
    np.testing.assert_allclose(D, np.tile(cosine_dictionary(ATOMS, DIM), (LAYERS, 1, 1)), rtol=1e-6)
    np.testing.assert_array_equal(V, np.tile(0.5 * np.eye(ATOMS), (LAYERS, 1, 1)))


@pytest.mark.usefixtures("x64")
def test_layer_0_is_the_input_where_the_dictionary_is_a_tight_frame():
    x = normal(TOKENS, DIM)
    for atoms in (4, 16):  # orthonormal, and four times overcomplete
        model = DUST(DIM, atoms, 1, param_dtype=jnp.float64)
        outputs = jax.jit(lambda key, model=model: model.apply(model.init(key, x), x))(jax.random.key(0))
        # The bound of |D|_2^2 is above it by most here, where all singular values are alike.
        np.testing.assert_allclose(outputs[0], x, rtol=0.01)
        assert np.all(np.abs(outputs[0]) <= np.abs(x))


@pytest.mark.usefixtures("x64")
def test_tied_layers_without_attention_descend_the_energy_of_sparse_coding():
    """Of single tokens, which attend to themselves; from fewer measurements than numbers."""
    model, x = make(param_dtype=jnp.float64, tied=True, measurement=PHI), normal(40, 1, MEASURED)
    params = drawn(model, x[0])
    layer = uj.dust(DIM, ATOMS, form="plain", sparsity=0.05, attention_scale=0.25, measurement=PHI)
    start = uj.lista(DIM, ATOMS, sparsity=0.0, measurement=PHI)
    dictionary = params["params"]["layers"].D

    @jax.jit
    def run(params):
        codes = start.step(uj.energies.ListaParams(dictionary), jnp.zeros((40, 1, ATOMS)), x)
        codes, trace = uj.unroll(layer, params["params"]["layers"], codes, x, num_layers=LAYERS)
        return codes @ dictionary, trace.energy, model.apply(params, x)

    last, energies, outputs = map(np.asarray, run(params))
    np.testing.assert_allclose(outputs[-1], last, rtol=1e-12)
    assert np.all(np.diff(energies, axis=0) <= 0.0)


def test_leading_axes_are_batches_and_records_stand_in_the_place_of_outputs():
    model, x = make(), normal(2, 3, TOKENS, DIM, dtype=jnp.float32)
    params = drawn(model, X)
    record = lambda y: {"loss": jnp.mean((y - x) ** 2), "first": y[..., 0]}  # noqa: E731
    outputs, recorded = jax.jit(lambda params: (model.apply(params, x), model.apply(params, x, record=record)))(params)
    for place in np.ndindex(2, 3):
        expected = reference_outputs(params, np.asarray(x)[place])
        np.testing.assert_allclose(outputs[(slice(None), *place)], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(recorded["loss"], np.mean((outputs - x) ** 2, axis=(1, 2, 3, 4)), rtol=1e-5)
    np.testing.assert_allclose(recorded["first"], outputs[..., 0], rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("tied", [False, True])
def test_a_lost_layer_leaves_the_codes_which_its_dictionary_reads(tied):
    model, x = make(param_dtype=jnp.float64, tied=tied), normal(TOKENS, DIM)
    params = drawn(model, x)
    run = jax.jit(lambda lost: model.apply(params, x, perturb=lost_layer(lost)))
    for lost in (0, 1, LAYERS):
        np.testing.assert_allclose(run(lost), reference_outputs(params, x, lost=lost), rtol=1e-9, atol=1e-11)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("self_loops", [True, False])
def test_padding_changes_no_output_of_real_tokens(self_loops):
    model, x = make(param_dtype=jnp.float64, self_loops=self_loops, curvature=5.0), normal(2, TOKENS, DIM)
    params = drawn(model, x)
    padded = jnp.concatenate([jnp.full((2, 2, DIM), jnp.nan), x, jnp.full((2, 1, DIM), 1e3)], axis=1)
    mask = jnp.asarray(np.tile((np.arange(TOKENS + 3) >= 2) & (np.arange(TOKENS + 3) < TOKENS + 2), (2, 1)))

    @jax.jit
    def both(params):
        def loss(params):
            outputs = model.apply(params, padded, mask)[:, :, 2:-1]
            return jnp.sum(jnp.sin(outputs)), outputs

        gradient, outputs = jax.grad(loss, has_aux=True)(params)
        return outputs, gradient, model.apply(params, x)

    outputs, gradient, plain = both(params)
    np.testing.assert_allclose(outputs, plain, rtol=1e-10, atol=1e-12)
    assert all(np.all(np.isfinite(leaf)) and np.any(leaf) for leaf in jax.tree.leaves(gradient))


def test_bfloat16_codes_keep_float32_parameters_and_outputs():
    x, options = normal(2, TOKENS, DIM, dtype=jnp.float32), {"attention_scale": 0.5, "curvature": 5.0}
    narrow, wide, seen = make(dtype=jnp.bfloat16, **options), make(**options), []
    params = jax.jit(narrow.init)(jax.random.key(0), x)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}

    @jax.jit
    def run(params):
        narrow.apply(params, x, record=lambda y: seen.append(y.dtype))
        return narrow.apply(params, x), wide.apply(params, x), wide.apply(params, x.astype(jnp.bfloat16))

    outputs, expected, of_narrow_input = run(params)
    np.testing.assert_allclose(outputs, expected, atol=0.03)
    assert np.any(outputs != expected)
    assert outputs.dtype == of_narrow_input.dtype == jnp.float32
    assert set(seen) == {jnp.dtype("float32")}


@pytest.mark.parametrize("tied", [False, True])
def test_remat_and_a_scan_keep_the_gradients(tied):
    x, gradients = normal(TOKENS, DIM, dtype=jnp.float32), []
    params = drawn(make(tied=tied), X)
    for options in ({}, {"remat": True, "unroll": 1}):
        model = make(tied=tied, curvature=5.0, **options)
        loss = lambda params, model=model: jnp.sum(model.apply(params, x, record=lambda y: jnp.sum(y**2)))  # noqa: E731
        gradients.append(jax.jit(jax.grad(loss))(params)["params"]["layers"].D)
    np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("x64")
def test_its_bases_turn_pixels_of_atoms_into_coefficients_and_leave_attention_as_it_is():
    model = make(param_dtype=jnp.float64, train_attention=True)
    params, gradient = (drawn(model, normal(TOKENS, DIM), seed=seed) for seed in (0, 1))
    rule = uj.in_coordinates(optax.sign_sgd(1.0), dictionary_bases(DIM))
    updates, _ = rule.update(gradient, rule.init(params), params)
    moved, given, cosine = updates["params"]["layers"], gradient["params"]["layers"], cosine_dictionary(DIM, DIM)
    np.testing.assert_allclose(moved.D, -np.sign(given.D @ cosine.T) @ cosine, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(moved.V, -np.sign(given.V))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"num_atoms": 0}, "num_atoms must be at least 1, got 0"),
        ({"sparsity": -1.0}, "sparsity must be finite and at least 0, got -1.0"),
        ({"attention_scale": 0.0}, "attention_scale must be positive and finite, or None, got 0.0"),
        ({"attention_scale": 0.0, "train_attention": True}, "attention_scale must be positive and finite, got 0.0"),
        ({"form": "softmax", "self_loops": False}, "self_loops must be True for form='softmax'"),
        ({"measurement": np.ones((2, 5))}, r"measurement must be \(m, dim=4\) .*, got shape \(2, 5\)"),
        ({"measurement": PHI}, r"x must be \(\*batch, n, m=3\), got shape \(5, 4\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_option_is_named(options, message):
    model = DUST(**{"dim": DIM, "num_atoms": ATOMS, "num_layers": LAYERS} | options)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(model.init, jax.random.key(0), X)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("x", "mask", "error", "message"),
    [
        (np.ones((TOKENS, 3), np.float32), None, ValueError, r"x must be \(\*batch, n, dim=4\), got shape \(5, 3\)"),
        (np.ones(DIM, np.float32), None, ValueError, r"x must be \(\*batch, n, dim=4\), got shape \(4,\)"),
        (np.ones((TOKENS, DIM), np.uint8), None, TypeError, "x must have a floating dtype, got uint8"),
        (X, np.ones(TOKENS, np.int32), TypeError, "mask must be boolean, got int32"),
        (X, np.ones(TOKENS + 1, bool), ValueError, r"mask must have shape \(5,\), as x has, got \(6,\)"),
    ],
    ids=["width", "rank", "dtype", "mask's dtype", "mask's shape"],
)
def test_inputs_that_do_not_fit_are_refused(x, mask, error, message):
    with pytest.raises(error, match=message):
        jax.eval_shape(make().init, jax.random.key(0), x, mask)
