"""DUST as a Flax module, against its equations in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import unroll_jax as uj
from tests.energies.dust_reference import coding_step, mixing_step
from tests.marks import in_float64, nightly
from tests.models.drawing import drawn, float64, normal
from tests.reference import compiled
from unroll_jax.energies import cosine_dictionary
from unroll_jax.models import DUST, dictionary_bases
from unroll_jax.perturbations import lost_layer

DIM, ATOMS, TOKENS, LAYERS = 4, 7, 5, 3


def make(**options):
    return DUST(DIM, ATOMS, LAYERS, sparsity=0.05, unroll=1, **options)


def layers_of(params, scale):
    D, V = float64(params["params"]["layers"]) if isinstance(params, dict) else params
    D = np.broadcast_to(D, (LAYERS, ATOMS, DIM))
    return D, np.broadcast_to(
        scale * np.eye(ATOMS) if V is None else V, (LAYERS, ATOMS, ATOMS)
    )


def reference_outputs(params, x, *, scale=0.25, lost=None, **mixing):
    (dictionaries, weights), x = layers_of(params, scale), np.asarray(x, np.float64)
    codes = x @ dictionaries[0].T / np.linalg.norm(dictionaries[0], 2) ** 2
    outputs = [codes @ dictionaries[0]]
    for number, (D, V) in enumerate(zip(dictionaries, weights, strict=True), start=1):
        if number != lost:
            codes = coding_step(
                mixing_step(codes, V, **{"form": "plain"} | mixing), D, x, 0.05
            )
        outputs.append(codes @ D)
    return np.stack(outputs)


CASES = {
    "plain": ({}, {}),
    "tied": ({"tied": True, "attention_scale": 0.5}, {"scale": 0.5}),
    "softmax, V trained": (
        {"form": "softmax", "train_attention": True},
        {"form": "softmax"},
    ),
    "without self-loops": ({"self_loops": False}, {"self_loops": False}),
}
OTHERS = [case for case in CASES if case != "plain"]


@in_float64
@pytest.mark.parametrize(
    "case",
    ["plain", *(pytest.param(case, marks=nightly) for case in OTHERS)],
)
def test_all_outputs_equal_the_reference_also_without_a_layer(
    case,
):
    options, of_reference = CASES[case]
    model = make(param_dtype=jnp.float64, **options)
    x = normal(TOKENS, DIM)
    params = drawn(model, x)

    @compiled
    def run(lost):
        return model.apply(params, x, perturb=lost_layer(lost))

    for lost in (0, 1, LAYERS):
        expected = reference_outputs(params, x, lost=lost, **of_reference)
        assert_allclose(run(lost), expected, rtol=1e-9, atol=1e-11)


@nightly
def test_layers_start_with_cosines_and_scaled_identities():
    model = make(train_attention=True, attention_scale=0.5)
    x = jnp.zeros((TOKENS, DIM))
    D, V = model.init(jax.random.key(0), x)["params"]["layers"]
    assert_allclose(
        D, np.tile(cosine_dictionary(ATOMS, DIM), (LAYERS, 1, 1)), rtol=1e-6
    )
    assert_array_equal(V, np.tile(0.5 * np.eye(ATOMS), (LAYERS, 1, 1)))


@in_float64
def test_layer_0_is_the_input_for_tight_frames():
    x = normal(TOKENS, DIM)
    for atoms in (4, 16):  # orthonormal, and four times overcomplete
        model = DUST(DIM, atoms, 1, param_dtype=jnp.float64)
        outputs = compiled(lambda key, model=model: model.apply(model.init(key, x), x))(
            jax.random.key(0)
        )
        # The bound of |D|_2^2 is above it by most here, where all singular values are
        # alike.
        assert_allclose(outputs[0], x, rtol=0.01)
        assert np.all(np.abs(outputs[0]) <= np.abs(x))


@in_float64
def test_its_bases_turn_atoms_and_leave_attention():
    model = make(param_dtype=jnp.float64, train_attention=True)
    params, gradient = (drawn(model, normal(TOKENS, DIM), seed=seed) for seed in (0, 1))
    rule = uj.in_coordinates(optax.sign_sgd(1.0), dictionary_bases(DIM))

    @compiled
    def update(gradient, params):
        return rule.update(gradient, rule.init(params), params)[0]

    moved = update(gradient, params)["params"]["layers"]
    given = gradient["params"]["layers"]
    cosine = cosine_dictionary(DIM, DIM)
    assert_allclose(
        moved.D, -np.sign(given.D @ cosine.T) @ cosine, rtol=1e-10, atol=1e-12
    )
    assert_array_equal(moved.V, -np.sign(given.V))
