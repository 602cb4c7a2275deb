"""Gradients of every system of `DESCENTS`, in parameters, state and input, wherever its tokens are and are not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from unroll_jax.descent import Anchor
from unroll_jax.energies import (
    MONOTONES,
    PROXIMALS,
    RHOS,
    AttentionParams,
    UnrolledLayerParams,
    delta_rule,
    mesa,
    unrolled_layer,
)

pytestmark = pytest.mark.usefixtures("unchecked")  # NumPy arrays of any dtype, as users pass them
PRESENT = np.array([[True, False, True, True, False], [False] * 5])  # two examples: three tokens of five, and none
WITHOUT_PRESENCE = {"fast_weights", "proximal_fast_weights", "opteq", "opteq_conv", "deep_opteq"}
NUMBERS = ("ordinary", "a token of zero", "zeros", "two equal tokens", "equal entries", 1e-6, 1e6, 1e10)
ZEROS = ("parameters of zero", "input of zero")
NANS = ("NaN in the state", "NaN in parameters", "NaN in the input")
INPUT_UNUSED = {"softmax_attention"}

every_system = pytest.mark.parametrize("name", uj.DESCENTS)
slow_bfloat16 = pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])


@functools.cache
def drawn(name):
    """A system, and NumPy's parameters, two states, inputs and cotangents of the step."""
    descent, y, x = uj.DESCENTS[name].example(jax.random.key(0), (2,))
    params = jax.jit(descent.init)(jax.random.key(1))
    cotangent = np.random.default_rng(2).normal(size=y.shape)
    return descent, *jax.tree.map(np.asarray, (params, y, x)), cotangent


def case(kind, params, y, x):
    """The arguments with special tokens, all of them present in the first example."""
    y = y.copy()
    if kind in ("a token of zero", "equal entries"):
        y[:, 0] = 0.0 if kind == "a token of zero" else 0.5
    elif kind == "zeros":
        y[:] = 0.0
    elif kind == "two equal tokens":
        y[:, 2] = y[:, 0]
    elif kind == "NaN in the state":
        y[:, 2] = np.nan
    elif str(kind).endswith(("parameters", "parameters of zero")):
        params = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan if kind in NANS else 0.0), params)
    elif str(kind).endswith(("input", "input of zero")):
        x = None if x is None else np.full_like(x, np.nan if kind in NANS else 0.0)
    elif kind != "ordinary":
        y *= kind
    return params, y, x


def values_and_gradients(descent, params, y, x, present, cotangent):
    """(energies, step), and gradients of the sum of energies and of the step's product with the cotangent, stacked."""

    def both(params, y, x):
        anchor = x if present is None else Anchor(x, present)
        return descent.energy(params, y, anchor), descent.step(params, y, anchor)

    values, pull = jax.vjp(both, params, y, x)
    seeds = jnp.ones_like(values[0]), cotangent.astype(values[1].dtype)
    return values, jax.vmap(pull)(tuple(jnp.stack([seed, seed]).at[1 - i].set(0.0) for i, seed in enumerate(seeds)))


@functools.cache
def results(name, dtype):
    """Of every case: of the two examples, padding being NaN, and of the first one's present tokens by themselves."""
    descent, params, y, x, cotangent = drawn(name)
    keys = name == "cross_attention"  # whose masks are of the input
    present = None if name in WITHOUT_PRESENCE else PRESENT[:, : x.shape[-2]] if keys else PRESENT
    with jax.enable_x64(dtype == "float64"):
        cases = [case(kind, params, y, x) for kind in (*NUMBERS, *ZEROS, *NANS)]
        params, y, x = jax.tree.map(lambda *leaves: np.stack(leaves), *cases)
        params = jax.tree.map(lambda leaf: leaf.astype("float64" if dtype == "float64" else "float32"), params)
        y, x, cotangent = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), (y, x, cotangent))

        def run(params, y, x):
            if present is None:
                return values_and_gradients(descent, params, y, x, None, cotangent), None
            blank = lambda a: None if a is None else jnp.where(present[..., None], a, jnp.nan)  # noqa: E731
            there = lambda a: None if a is None else a[0][present[0]]  # noqa: E731
            padded = y if keys else blank(y), blank(x)
            alone = (y[0] if keys else there(y)), there(x), None, cotangent[0] if keys else there(cotangent)
            together = values_and_gradients(descent, params, *padded, jnp.asarray(present), cotangent)
            return together, values_and_gradients(descent, params, *alone)

        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), jax.jit(jax.vmap(run))(params, y, x))


def of_each_case(name, dtype, kinds):
    for place, kind in enumerate((*NUMBERS, *ZEROS, *NANS)):
        if kind in kinds:
            yield kind, jax.tree.map(lambda leaf, place=place: leaf[place], results(name, dtype))


@every_system
@slow_bfloat16
def test_gradients_are_finite_and_those_of_the_present_tokens_by_themselves(name, dtype):
    tolerance, cotangent = (5e-4 if dtype == "float32" else 2.0**-6), drawn(name)[4]
    cotangent = np.asarray(jnp.asarray(cotangent, dtype), np.float64)
    for kind, (((energy, _), gradients), alone) in of_each_case(name, dtype, (*NUMBERS, *ZEROS)):
        message = f"{name}, {kind}"
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients)), message
        assert not np.isnan(energy).any(), message
        if alone is None or (name, kind) == ("hyper_set", 1e-6):  # whose step's length is decided by round-off
            continue
        ((energy_alone, _), expected), size = alone, 1.0 if isinstance(kind, str) else max(kind, 1.0)
        np.testing.assert_allclose(energy[0], energy_alone, rtol=tolerance, err_msg=message)
        in_params, *in_tokens = gradients
        for ours, theirs in zip(jax.tree.leaves(in_params), jax.tree.leaves(expected[0]), strict=True):
            assert_near(ours[0], theirs[0], tolerance, np.max(np.abs(theirs[0])), message)
            assert_near(ours[1], theirs[1], tolerance, max(np.max(np.abs(theirs[1])), size), message)
        for part, ours, theirs in zip("yx", in_tokens, expected[1:], strict=True):
            if ours is None or (name == "cross_attention" and part == "y"):
                continue
            there = PRESENT[:, : ours.shape[-2]]
            for output, floor in enumerate((0.0, 1.0)):
                size = max(np.max(np.abs(theirs[output])), floor)
                assert_near(ours[output][there], theirs[output], tolerance, size, f"{message}, {part}")
            np.testing.assert_array_equal(ours[0][~there], 0.0, err_msg=message)
            unmoved = cotangent[~there] if part == "y" else 0.0
            np.testing.assert_array_equal(ours[1][~there], unmoved, err_msg=message)


def assert_near(ours, theirs, tolerance, size, message):
    np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=tolerance * size, err_msg=message)


@every_system
def test_nan_in_is_nan_out(name):
    params, _, x = drawn(name)[1:4]
    for kind, (((energy, stepped), _), _) in of_each_case(name, "float32", NANS):
        of_params, of_input = kind == "NaN in parameters", kind == "NaN in the input"
        if (of_params and not jax.tree.leaves(params)) or (of_input and (x is None or name in INPUT_UNUSED)):
            continue
        kept = np.ones(stepped[0].shape, bool) if stepped.ndim != 3 or name in WITHOUT_PRESENCE else None
        kept = PRESENT[0] if kept is None and name != "cross_attention" else ...
        assert np.isnan(energy[0]), f"{name}, {kind}"
        assert np.isnan(stepped[0][kept]).any(), f"{name}, {kind}"


@pytest.mark.slow
@every_system
def test_float32_overflows_to_infinity_or_is_right(name):
    """Energies and their gradients in the state; a step is as near as round-off of the largest token."""
    exact = dict(of_each_case(name, "float64", NUMBERS))
    for kind, (((energy, stepped), gradients), _) in of_each_case(name, "float32", NUMBERS):
        ((energy_64, stepped_64), gradients_64), _ = exact[kind]
        finite = np.isfinite(energy)
        assert np.all(energy[~finite] == np.inf), f"{name}, {kind}"
        np.testing.assert_allclose(energy[finite], energy_64[finite], rtol=1e-4, atol=1e-4, err_msg=f"{name}, {kind}")
        size = np.max(np.abs(gradients_64[1][0]))
        assert_near(gradients[1][0], gradients_64[1][0], 2e-3, size, f"{name}, {kind}")
        there = ~np.isnan(stepped_64)
        size = max(np.max(np.abs(stepped_64[there]), initial=1.0), 1.0 if isinstance(kind, str) else 8.0 * kind)
        if (name, kind) != ("hyper_set", 1e-6):
            assert_near(stepped[there], stepped_64[there], 1e-4, size, f"{name}, {kind}")


@pytest.mark.parametrize("name", [name for name, entry in uj.DESCENTS.items() if entry.event_ndim == 2])
def test_an_empty_sequence_is_one_clear_error(name):
    descent, params, y, x, _ = drawn(name)
    for function in (descent.energy, descent.step):
        with pytest.raises(
            ValueError, match=r"y must hold at least one token of at least one number, got shape \(2, 0"
        ):
            jax.eval_shape(function, params, y[:, :0], x)


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 5)])
@pytest.mark.parametrize("read", [delta_rule, mesa])
def test_an_empty_sequence_is_read_to_empty_outputs_and_the_state_it_started_from(read, shape):
    queries, values, rates = jnp.ones((*shape, 4)), jnp.ones((*shape, 3)), jnp.ones(shape)
    outputs, state, *residuals = read(queries, queries, values, rates)
    assert outputs.shape == values.shape
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(state))
    assert [residual.shape for residual in residuals] == [shape] * (read is mesa)
    assert jax.grad(lambda values: jnp.sum(read(queries, queries, values, rates)[0]))(values).shape == values.shape


def test_a_query_of_zero_has_a_finite_gradient_and_one_of_nan_no_number_as_output():
    ones = jnp.ones((5, 4))

    def total(queries):
        outputs, _, residuals = mesa(queries, ones, ones, jnp.ones(5), chunk_size=2)
        return jnp.sum(outputs) + jnp.sum(residuals), outputs

    (_, outputs), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(ones.at[1].set(0.0).at[3].set(jnp.nan))
    np.testing.assert_array_equal(np.isnan(outputs).all(axis=-1), np.arange(5) == 3)
    assert np.isfinite(gradient[:2]).all()


@pytest.mark.parametrize("size", [1e-10, 1e10])
def test_mesa_of_any_size_is_that_of_float64(size):
    queries, keys, values, towards = np.random.default_rng(0).normal(size=(4, 9, 4)) * [
        [[size]],
        [[size]],
        [[1]],
        [[1]],
    ]

    def run(dtype):
        arguments = [jnp.asarray(leaf, dtype) for leaf in (queries, keys, values)]
        read = lambda *leaves: mesa(*leaves, jnp.ones(9, dtype), ridge=size**2, tol=1e-7)[0]  # noqa: E731
        outputs, pull = jax.vjp(read, *arguments)
        return outputs, *(
            size**power * leaf for power, leaf in zip((1, 1, 0), pull(jnp.asarray(towards, dtype)), strict=True)
        )

    with jax.enable_x64(True):
        expected, ours = (jax.jit(run, static_argnums=0)(dtype) for dtype in ("float64", "float32"))
    for theirs, leaf in zip(expected, ours, strict=True):
        np.testing.assert_allclose(leaf, theirs, rtol=1e-4, atol=1e-4)


def test_pairs_whose_distance_overflows_have_no_nan():
    """The quadratic's energy is infinite, and so are its gradients."""
    layers = [uj.attention(rho=name, form="softmax") for name in ("softmax", "geman_mcclure", "power")]
    quadratic = uj.attention(rho=RHOS["power"](exponent=1.0), form="softmax")

    @jax.jit
    def run(y):
        of_each = [values_and_gradients(layer, AttentionParams(None), y, None, None, y) for layer in layers]
        return of_each, quadratic.energy(AttentionParams(None), y), quadratic.step(AttentionParams(None), y)

    finite_or_not = run(jnp.array([[1e30, 0.0], [-1e30, 1.0], [1.0, 2.0]]))
    assert not any(np.isnan(leaf).any() for leaf in jax.tree.leaves(finite_or_not))
    assert finite_or_not[1] == np.inf


@pytest.mark.parametrize(("name", "ends"), [("tanh", (-1.0, 1.0)), ("sigmoid", (0.0, 1.0)), ("softplus", (0.0, 200.0))])
def test_saturated_activations_have_penalties_of_finite_slope_outwards(name, ends):
    phi = PROXIMALS[name]()
    y = jnp.asarray(ends)[:, None, None]  # what the activation of numbers far out is rounded to
    values, slopes = jax.vmap(jax.value_and_grad(phi.penalty))(y)
    assert np.isfinite(values).all()
    assert np.isfinite(slopes).all()
    assert slopes[0, 0, 0] < -7.0
    assert slopes[1, 0, 0] > 7.0 or name == "softplus"


def test_penalties_and_conjugates_of_nan_are_nan():
    bad = jnp.full((2, 3), jnp.nan)
    for name, make in PROXIMALS.items():
        assert np.isnan(make().penalty(bad)) or name == "identity", name
    assert all(np.isnan(sigma.conjugate(bad)).all() for sigma in MONOTONES.values() if sigma.conjugate)


def test_padding_of_nan_reaches_no_token_of_an_unrolled_layer():
    rng = np.random.default_rng(0)
    params = UnrolledLayerParams(*rng.normal(size=(3, 4, 4)).astype("float32"))
    y, mask = rng.normal(size=(5, 4)).astype("float32"), jnp.asarray(PRESENT[0])
    total = lambda params, y: jnp.sum(unrolled_layer(params, y, mask)[PRESENT[0]])  # noqa: E731
    value, gradient = jax.value_and_grad(total)(params, np.where(PRESENT[0][:, None], y, np.nan))
    expected = jnp.sum(unrolled_layer(params, y[PRESENT[0]]))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert all(np.isfinite(leaf).all() for leaf in gradient)
