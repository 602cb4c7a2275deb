"""Gradients of every system of `DESCENTS`, in parameters, state and input, at
special and at absent tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import unroll_jax as uj
from tests.energies.comparing import shapes_of
from tests.marks import nightly, types_unchecked
from tests.reference import compiled, gaussian, jax_array
from unroll_jax.descent import Anchor

# NumPy arrays of any dtype, as users pass them
pytestmark = types_unchecked
# two examples: three tokens of five, and none
PRESENT = np.array([[True, False, True, True, False], [False] * 5])
WITHOUT_PRESENCE = {
    "opteq",
    "opteq_conv",
    "deep_opteq",
    "convex_potential",
    "convex_potential_conv",
    "convex_equilibrium",
}
# whose anchors mark keys or pairs, and no tokens
OF_KEYS = {"cross_attention", "fast_weights", "proximal_fast_weights"}
NUMBERS = (
    "ordinary",
    "a token of zero",
    "zeros",
    "two equal tokens",
    "equal entries",
    1e-6,
    1e6,
    1e10,
)
ZEROS = ("parameters of zero", "input of zero")
NANS = ("NaN in the state", "NaN in parameters", "NaN in the input")
# of values. Gradients are not tested there
EXTREMES = (1e-40, 1e-30, 1e-15, 1e15, 1e30)
INPUT_UNUSED = {"softmax_attention"}
every_system = pytest.mark.parametrize("name", uj.DESCENTS)
# and for ordinary tokens
NEAR = {
    "float32": (5e-4, 1e-5),
    "bfloat16": (2.0**-6, 2.0**-6),
    "float64": (5e-4, 1e-10),
}
every_dtype = pytest.mark.parametrize(
    "dtype",
    [
        dtype if dtype == "float32" else pytest.param(dtype, marks=nightly)
        for dtype in NEAR
    ],
)


@functools.cache
def drawn(name):
    descent, *shapes = shapes_of(name, (2,))
    rng = np.random.default_rng(0)
    params, y, x = jax.tree.map(
        lambda leaf: np.float32(0.5 * rng.normal(size=leaf.shape)), shapes
    )
    if "transformer" in name or name.startswith("crate"):
        y = np.abs(np.tanh(y))  # where the energy is finite
    return descent, params, y, x, gaussian(*y.shape, seed=2)


def case(kind, params, y, x):
    y = y.copy()
    new = np.nan if kind in NANS else 0.0
    filled = functools.partial(jax.tree.map, lambda leaf: np.full_like(leaf, new))
    if not isinstance(kind, str):
        y *= kind
    elif "parameters" in kind:
        params = filled(params)
    elif "input" in kind:
        x = filled(x)
    elif kind == "NaN in the state":
        y[:, 2] = np.nan
    elif kind == "two equal tokens":
        y[:, 2] = y[:, 0]
    elif kind == "equal entries":
        y[:, 0] = 0.5
    elif kind == "a token of zero":
        y[:, 0] = 0.0
    elif kind == "zeros":
        y[:] = 0.0
    return params, y, x


def values_and_gradients(descent, params, weights, y, x, present, cotangent):
    def both(params, y, x):
        anchor = x if present is None else Anchor(x, present)
        return descent.energy(params, y, anchor), descent.step(params, y, anchor)

    values, pull = jax.vjp(both, params, y, x)
    of_energy = weights[0] * jnp.ones_like(values[0])
    return values, pull((of_energy, weights[1] * cotangent.astype(values[1].dtype)))


@functools.cache
def results(name, dtype):
    descent, params, y, x, cotangent = drawn(name)
    of_keys = name in OF_KEYS
    present = PRESENT[:, : x.shape[-2]] if of_keys else PRESENT
    wide = "float64" if dtype == "float64" else "float32"

    # the program of one case and one output: many at once take much longer to compile
    @compiled
    def run(params, y, x, cotangent, weights):
        results_of = functools.partial(values_and_gradients, descent, params, weights)
        if name in WITHOUT_PRESENCE:
            return results_of(y, x, None, cotangent), None

        def blank(a):
            return None if a is None else jnp.where(present[..., None], a, jnp.nan)

        there = lambda a: None if a is None else a[0][present[0]]
        first = (lambda a: a[0]) if of_keys else there
        padded = y if of_keys else blank(y), blank(x), jax_array(present), cotangent
        alone = first(y), there(x), None, first(cotangent)
        return results_of(*padded), results_of(*alone)

    def of_case(kind):
        changed, *tokens = case(kind, params, y, x)
        changed = jax.tree.map(lambda leaf: leaf.astype(wide), changed)
        tokens = jax.tree.map(lambda leaf: jax_array(leaf, dtype), (*tokens, cotangent))
        # of the energy and of the step
        outputs = [run(changed, *tokens, one) for one in ((1.0, 0.0), (0.0, 1.0))]
        of_energy, of_step = jax.tree.map(np.float64, outputs)
        stack = lambda *each: np.stack(each)
        return [
            one and (one[0], jax.tree.map(stack, one[1], other[1]))
            for one, other in zip(of_energy, of_step, strict=True)
        ]

    with jax.enable_x64(dtype == "float64"):
        return {kind: of_case(kind) for kind in (*NUMBERS, *ZEROS, *NANS, *EXTREMES)}


def of_each_case(name, dtype, kinds):
    return [(kind, results(name, dtype)[kind]) for kind in kinds]


# Where round-off decides: the length of a step, and weights of tokens that bfloat16
# rounds to the same place.
ROUNDED = {("hyper_set", 1e-6, dtype) for dtype in NEAR}
ROUNDED |= {("transformer", size, "bfloat16") for size in (1e6, 1e10)}


@every_system
@every_dtype
def test_steps_and_gradients_are_those_of_present_tokens(name, dtype):
    cotangent = drawn(name)[4].astype(jnp.dtype(dtype)).astype(np.float64)
    tolerance, near = NEAR[dtype]
    for kind, (((energy, stepped), gradients), alone) in of_each_case(
        name, dtype, (*NUMBERS, *ZEROS)
    ):
        message = f"{name}, {kind}"
        leaves = jax.tree.leaves(gradients)
        assert all(np.isfinite(leaf).all() for leaf in leaves), message
        assert not np.isnan(energy).any(), message
        assert kind != "ordinary" or np.isfinite(energy).all(), message
        if alone is None or (name, kind, dtype) in ROUNDED:
            continue
        (energy_alone, step_alone), expected = alone
        kept = kept_of(name, stepped)
        close = tolerance
        if kind == "ordinary":
            close = near if dtype == "float64" else tolerance
            assert_allclose(energy[0], energy_alone, rtol=near, err_msg=message)
            size = np.max(np.abs(step_alone))
            assert_near(stepped[0][kept], step_alone, near, size, message)
        assert_allclose(energy[0], energy_alone, rtol=close, err_msg=message)
        assert np.isnan(stepped[0][~kept]).all(), message  # the padding, as it was
        size = 1.0 if isinstance(kind, str) else max(kind, 1.0)
        for pair in zip(
            *map(jax.tree.leaves, (gradients[0], expected[0])), strict=True
        ):
            assert_both_near(*pair, close, size, message)
        for part, ours, theirs in zip("yx", gradients[1:], expected[1:], strict=True):
            if ours is None or (name in OF_KEYS and part == "y"):
                continue
            there = PRESENT[:, : ours.shape[-2]]
            assert_both_near(ours[:, there], theirs, close, 1.0, f"{message}, {part}")
            assert_array_equal(ours[0][~there], 0.0, err_msg=message)
            absent = cotangent[~there] if part == "y" else 0.0
            assert_array_equal(ours[1][~there], absent, err_msg=message)


def assert_near(ours, theirs, tolerance, size, message):
    assert_allclose(ours, theirs, rtol=0.0, atol=tolerance * size, err_msg=message)


def assert_both_near(ours, theirs, tolerance, floor, message):
    """Gradients of the energy and of the step, which has at least a size."""
    for output, least in enumerate((0.0, floor)):
        size = max(np.max(np.abs(theirs[output])), least)
        assert_near(ours[output], theirs[output], tolerance, size, message)


def kept_of(name, stepped):
    every = np.ones(stepped.shape[1], bool)
    return every if name in WITHOUT_PRESENCE | OF_KEYS else PRESENT[0]


@every_system
def test_no_finite_state_of_any_magnitude_becomes_a_nan(name):
    for kind, (((energy, stepped), _), _) in of_each_case(name, "float32", EXTREMES):
        assert not np.isnan(energy).any(), f"{name}, {kind}"
        assert not np.isnan(stepped[0][kept_of(name, stepped)]).any(), f"{name}, {kind}"


@every_system
def test_nan_in_is_nan_out(name):
    params, _, x = drawn(name)[1:4]
    unused = {
        "NaN in parameters": not jax.tree.leaves(params),
        "NaN in the input": x is None or name in INPUT_UNUSED,
    }
    for kind, (((energy, stepped), _), _) in of_each_case(name, "float32", NANS):
        if not unused.get(kind):
            assert np.isnan(energy[0]), f"{name}, {kind}"
            assert np.isnan(stepped[0][kept_of(name, stepped)]).any(), f"{name}, {kind}"


@nightly
@every_system
def test_float32_overflows_to_infinity_or_is_right(name):
    """Energies and their gradients in the state. A step is as near as round-off of
    the largest token."""
    exact = dict(of_each_case(name, "float64", NUMBERS))
    for kind, (((energy, stepped), gradients), _) in of_each_case(
        name, "float32", NUMBERS
    ):
        ((energy_64, stepped_64), gradients_64), _ = exact[kind]
        message = f"{name}, {kind}"
        finite = np.isfinite(energy)
        assert np.all(energy[~finite] == np.inf), message
        near = {"rtol": 1e-4, "atol": 1e-4, "err_msg": message}
        assert_allclose(energy[finite], energy_64[finite], **near)
        size = np.max(np.abs(gradients_64[1][0]))
        assert_near(gradients[1][0], gradients_64[1][0], 2e-3, size, message)
        if (name, kind, "float32") not in ROUNDED:
            there = ~np.isnan(stepped_64)
            least = 1.0 if isinstance(kind, str) else max(1.0, 8.0 * kind)
            size = np.max(np.abs(stepped_64[there]), initial=least)
            assert_near(stepped[there], stepped_64[there], 1e-4, size, message)


@pytest.mark.parametrize(
    "name", [name for name, entry in uj.DESCENTS.items() if entry.event_ndim == 2]
)
def test_an_empty_sequence_is_one_clear_error(name):
    descent, params, y, x, _ = drawn(name)
    for function in (descent.energy, descent.step):
        with pytest.raises(
            ValueError,
            match=(
                r"y must hold at least one token of at least one number, got shape"
                r" \(2, 0"
            ),
        ):
            jax.eval_shape(function, params, y[:, :0], x)
