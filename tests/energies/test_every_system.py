"""Every system of `DESCENTS`, and options that its examples leave out: absent tokens,
low precision, and derivatives of the options."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import unroll_jax as uj
from tests.energies.comparing import assert_derivative, both, shapes_of
from tests.marks import in_float64, nightly
from tests.reference import compiled, gaussian, gaussian_like, jax_array
from unroll_jax.descent import Anchor
from unroll_jax.energies import AttentionParams

TOKENS, DIM, ATOMS = 5, 4, 6
CHAIN = np.abs(np.subtract.outer(np.arange(TOKENS), np.arange(TOKENS))) <= 2
GRAPH = {
    "rho": "student",
    "form": "softmax",
    "ridge": 0.7,
    "step_size": 0.6,
    "dim": DIM,
}
# Further layers on tokens (5, 4) with an input like them; of "dust" and "lista", on
# codes (5, 6).
FURTHER = {
    "attention, student": uj.attention(**GRAPH, mask=CHAIN),
    "heads, wide": uj.multihead_attention(
        DIM, num_heads=3, rank=2, ridge=0.7, form="softmax"
    ),
    "feedforward, spectrum": uj.feedforward(DIM, spectrum=(0.1, 0.6)),
    "transformer, softplus": uj.transformer(
        DIM, phi="softplus", ridge=0.3, anchor="row", rho="log"
    ),
    "crate, published": uj.crate(DIM, num_heads=2, head_dim=2),
    "energy transformer, fixed step": uj.energy_transformer(
        DIM, num_heads=2, head_dim=3, num_memories=5, guaranteed=False
    ),
    "hyper-set, published": uj.hyper_set(DIM, num_heads=2, head_dim=3, width=5),
    "dust, plain": uj.dust(
        DIM,
        ATOMS,
        form="plain",
        self_loops=False,
        attention_scale=0.5,
        attention_step_size=0.7,
    ),
}
# the same of the first three tokens
SHORTER = {"attention, student": uj.attention(**GRAPH, mask=CHAIN[:3, :3])}


@functools.cache
def drawn(name):
    """A layer, and parameters, state and input of the shapes of its example, drawn
    where its energy is finite."""
    if name in FURTHER:
        layer = FURTHER[name]
        y = np.ones((TOKENS, ATOMS if name.startswith("dust") else DIM))
        params = jax.eval_shape(layer.init, jax.random.key(0))
        shapes = params, y, np.ones((TOKENS, DIM))
    else:
        layer, *shapes = shapes_of(name)
    params, y, x = gaussian_like(shapes)
    if "transformer" in name or name.startswith("crate"):
        y = np.abs(np.tanh(y))
    return layer, jax.tree.map(lambda leaf: 0.5 * leaf, params), y, x


@pytest.mark.usefixtures("x64", "unchecked")
@pytest.mark.parametrize(
    "name", ["attention, student", "heads, wide", "feedforward, spectrum"]
)
def test_derivatives_of_pairs_heads_and_weights_equal_finite_differences(name):
    """Derivatives of the energy and a random sum over the step, in parameters, state
    and input along one direction. `DESCENTS` are checked in test_conformance.py."""
    layer, *point = drawn(name)
    weight = gaussian(*point[1].shape, seed=4)

    def value(point):
        energy, stepped = both(layer, *point)
        return energy + jnp.sum(weight * stepped)

    assert_derivative(value, point, rtol=1e-5, atol=1e-6)


@in_float64
@nightly
@pytest.mark.parametrize("name", FURTHER)
def test_absent_tokens_neither_count_nor_move(name):
    """Examples of `DESCENTS` are in test_gradients_conformance.py, masks of keys in
    test_hopfield.py."""
    layer, params, y, x = drawn(name)
    shorter = SHORTER.get(name, layer)
    present = jax_array(np.arange(TOKENS) < 3)

    def blank(tokens):
        return (
            None
            if tokens is None
            else np.where(np.arange(TOKENS)[:, None] < 3, tokens, np.nan)
        )

    first = lambda tokens: None if tokens is None else tokens[:3]

    @compiled
    def run(p, y, x, *alone):
        return both(layer, p, y, Anchor(x, present)), both(shorter, p, *alone)

    (energy, stepped), expected = run(params, blank(y), blank(x), first(y), first(x))
    assert_allclose(energy, expected[0], rtol=1e-12)
    assert_allclose(stepped[:3], expected[1], rtol=1e-10, atol=1e-12)
    assert_array_equal(stepped[3:], blank(y)[3:])


@pytest.mark.usefixtures("x64", "unchecked")
def test_marks_of_tokens_broadcast_and_map():
    y, x = gaussian(2, 3, TOKENS, DIM)
    some = np.arange(TOKENS) < 3
    each = np.tile(some, (3, 1))

    @compiled
    def all_of(y, x, some, each):
        run = functools.partial(both, uj.attention(ridge=0.5), AttentionParams(None))
        marked = lambda y, x, present: run(y, Anchor(x, present))
        partly = marked(y, x, some), marked(y, x, each), jax.vmap(marked)(y, x, each)
        presences = None, each | ~each, some[:1]
        whole = [marked(y, x, presence) for presence in presences]
        return partly, (run(y, x), *whole)

    for expected, *others in all_of(y, x, some, each):
        for other in others:
            chex.assert_trees_all_close(other, expected, rtol=1e-12)


@nightly
@in_float64
@pytest.mark.parametrize(
    "name",
    ["attention", "attention, student", "heads, wide", "hopfield", "cross_attention"],
)
def test_an_input_that_broadcasts_is_one_written_out(name):
    layer, params, *_ = drawn(name)
    is_keys = name == "cross_attention"
    rows = 3 if is_keys else TOKENS
    shapes = [(rows, DIM), (1, rows, DIM)]
    shapes += [] if is_keys else [(DIM,), (2, 1, DIM)]
    rng = np.random.default_rng(0)
    y = jax_array(rng.normal(size=(2, TOKENS, DIM)))
    marks = jnp.arange(rows) < 2

    @compiled
    def run(x):
        some = Anchor(x, jnp.broadcast_to(marks, x.shape[:-1]) if is_keys else marks)
        return both(layer, params, y, x), layer.step(params, y, some)

    for shape in shapes:
        x = rng.normal(size=shape)
        whole = np.broadcast_to(x, (2, rows, DIM))
        chex.assert_trees_all_close(
            run(x), run(whole), rtol=1e-12, atol=1e-12, custom_message=str(shape)
        )
        moved = run(2.0 * whole)[0][1] - run(whole)[0][1]
        assert np.max(np.abs(moved)) > 0.01, "the input does nothing"


def narrow(name):
    """A layer, parameters in float32, and state and input in bfloat16."""
    layer, params, *arrays = drawn(name)
    tokens = jax.tree.map(lambda leaf: jax_array(leaf, jnp.bfloat16), arrays)
    return layer, jax.tree.map(np.float32, params), *tokens


@nightly
@pytest.mark.parametrize("name", uj.DESCENTS)
def test_bfloat16_states_keep_their_dtype_and_are_computed_in_float32(name):
    layer, params, y, x = narrow(name)
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (y, x))
    (energy, stepped), (expected, moved) = compiled(
        lambda p: (both(layer, p, y, x), both(layer, p, *wide))
    )(params)
    assert (energy.dtype, stepped.dtype) == (jnp.float32, jnp.bfloat16)
    assert_allclose(energy, expected, rtol=1e-5, atol=1e-5)
    assert_allclose(
        stepped.astype(np.float32),
        moved,
        rtol=2.0**-7,
        atol=2.0**-7 * np.max(np.abs(moved)),
    )


@pytest.mark.parametrize(
    "name", [name for name, entry in uj.DESCENTS.items() if entry.event_ndim == 2]
)
def test_strict_promotion_of_bfloat16_passes(name):
    """All quick tests of float32 run under it."""
    layer, params, y, x = narrow(name)
    of_keys = name == "cross_attention" or "fast_weights" in name
    rows = x if of_keys else y
    masked = Anchor(x, np.ones(rows.shape[:-1], bool))

    def derivatives(params, y, x):
        of_point = lambda params, y: both(layer, params, y, x)
        values, pull = jax.vjp(of_point, params, y)
        return values, pull(values)

    with jax.numpy_dtype_promotion("strict"):
        for given in (x, masked):
            (energy, stepped), _ = jax.eval_shape(derivatives, params, y, given)
            assert (energy.dtype, stepped.dtype) == (jnp.float32, y.dtype)
