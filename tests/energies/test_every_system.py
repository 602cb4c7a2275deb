"""Every system of `DESCENTS`, and options that its examples leave out: derivatives, absent tokens, low precision."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from unroll_jax.descent import Anchor
from unroll_jax.energies import tokens

TOKENS, DIM, ATOMS = 5, 4, 6
CHAIN = np.abs(np.subtract.outer(np.arange(TOKENS), np.arange(TOKENS))) <= 2
# Further layers on tokens (5, 4) with an input like them; of "dust" and "lista", on codes (5, 6).
FURTHER = {
    "attention, student": uj.attention(rho="student", form="softmax", ridge=0.7, step_size=0.6, dim=DIM, mask=CHAIN),
    "heads, orthogonal": uj.multihead_attention(DIM, num_heads=2, majoriser="orthogonal", form="softmax"),
    "heads, wide": uj.multihead_attention(DIM, num_heads=3, rank=2, ridge=0.7, form="softmax"),
    "feedforward, spectrum": uj.feedforward(DIM, spectrum=(0.1, 0.6)),
    "transformer, norm": uj.transformer(DIM, phi="softplus", norm_radius=1.5, ridge=0.3, anchor="row", rho="log"),
    "unit layer, conjugate": uj.unit_layer(DIM, activation="tanh", mu=1.5, skip=0.6),
    "crate, published": uj.crate(DIM, num_heads=2, head_dim=2),
    "energy transformer, fixed step": uj.energy_transformer(
        DIM, num_heads=2, head_dim=3, num_memories=5, guaranteed=False
    ),
    "hyper-set, published": uj.hyper_set(DIM, num_heads=2, head_dim=3, width=5),
    "dust, plain": uj.dust(DIM, ATOMS, form="plain", self_loops=False, attention_scale=0.5, attention_step_size=0.7),
}
# Those without tokens that may be absent, or on a graph of their number.
NONE_ABSENT = {"fast_weights", "proximal_fast_weights", "cross_attention", "opteq", "opteq_conv", "deep_opteq"}
NONE_ABSENT |= {"attention, student"}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in FURTHER if name not in NONE_ABSENT]
# Those of the further layers with a derivative that is not autodiff's: of pairs, heads, weights and radii.
DIFFERENTIATED = ("attention, student", "heads, wide", "feedforward, spectrum", "transformer, norm")


@functools.cache
def drawn(name):
    """A layer and NumPy's parameters, state and input of one example, in float64."""
    rng = np.random.default_rng(0)
    if name in uj.DESCENTS:
        layer, y, x = uj.DESCENTS[name].example(jax.random.key(0), ())
    else:
        width = ATOMS if name.startswith(("dust", "lista")) else DIM
        layer, y, x = FURTHER[name], rng.normal(size=(TOKENS, width)), rng.normal(size=(TOKENS, DIM))
        x = None if name.startswith("unit") else x
        positive = name.startswith(("transformer", "crate"))  # where phi is finite
        y = np.tanh(y) if "tanh" in name else np.abs(y) if positive else y
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), (layer.init(jax.random.key(1)), y, x))
    return layer, *wide


def both(layer, *arguments):
    return layer.energy(*arguments), layer.step(*arguments)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", [*uj.DESCENTS, *DIFFERENTIATED])
def test_derivatives_equal_finite_differences(name):
    """Of the energy and a random sum over the step's output, in parameters, state and input along one direction."""
    layer, *point = drawn(name)
    rng = np.random.default_rng(3)
    direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), point)
    weight = rng.normal(size=point[1].shape)

    @jax.jit
    def along(t):
        def value(t):
            energy, stepped = both(layer, *jax.tree.map(lambda leaf, d: leaf + t * d, point, direction))
            return energy + jnp.sum(weight * stepped)

        return jax.value_and_grad(value)(t)

    h = 1e-6
    slope = (along(h)[0] - along(-h)[0]) / (2 * h)
    np.testing.assert_allclose(along(0.0)[1], slope, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", [*(name for name in uj.DESCENTS if name not in NONE_ABSENT), *SLOW])
def test_absent_tokens_neither_count_nor_move(name):
    """Masks of `cross_attention` are of its keys, see test_hopfield.py; for graphs see test_padding.py."""
    layer, params, y, x = drawn(name)
    present = jnp.asarray(np.arange(TOKENS) < 3)
    blank = lambda tokens: None if tokens is None else np.where(np.arange(TOKENS)[:, None] < 3, tokens, np.nan)  # noqa: E731
    first = lambda tokens: None if tokens is None else tokens[:3]  # noqa: E731
    one = jnp.ones((1,), bool)  # broadcasts to the tokens

    @jax.jit
    def run(p, y, x, *alone):
        return (
            both(layer, p, y, Anchor(x, present)),
            both(layer, p, *alone),
            both(layer, p, alone[0], Anchor(alone[1], one)),
        )

    (energy, stepped), expected, broadcast = run(params, blank(y), blank(x), first(y), first(x))
    chex.assert_trees_all_close(broadcast, expected, rtol=1e-12)
    np.testing.assert_allclose(energy, expected[0], rtol=1e-12)
    np.testing.assert_allclose(stepped[:3], expected[1], rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(stepped[3:], blank(y)[3:])


@pytest.mark.slow
@pytest.mark.parametrize("name", uj.DESCENTS)
def test_bfloat16_states_keep_their_dtype_and_are_computed_in_float32(name):
    layer, params, *arrays = drawn(name)
    params = jax.tree.map(np.float32, params)
    y, x = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), arrays)
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (y, x))
    (energy, stepped), (expected, moved) = jax.jit(lambda p: (both(layer, p, y, x), both(layer, p, *wide)))(params)
    assert (energy.dtype, stepped.dtype) == (jnp.float32, jnp.bfloat16)
    np.testing.assert_allclose(energy, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(stepped.astype(np.float32), moved, rtol=2.0**-7, atol=2.0**-7 * np.max(np.abs(moved)))


@pytest.mark.parametrize("name", [name for name in uj.DESCENTS if name != "hyper_set"])  # safeguards ask for energies
def test_a_layer_checks_its_tokens_once_however_many_parts_it_is_made_of(name, monkeypatch):
    layer, *point = drawn(name)
    for function in (layer.energy, layer.step, layer.step_and_energy):
        if function is not None:
            seen = []
            monkeypatch.setattr(tokens, "check_tokens", lambda *_, seen=seen, **__: seen.append(1))
            jax.eval_shape(function, *point)
            assert len(seen) == ("opteq" not in name)


def test_a_part_in_a_wrapper_is_used_as_it_is():
    """`functools.wraps` copies the attributes of a function, as `jax.jit` and `jax.shard_map` do."""
    y = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4)), jnp.float32)

    def replaced(**options):
        layer = uj.attention(**options)
        return layer._replace(step=functools.wraps(layer.step)(lambda params, y, x=None: 0.0 * y))

    layer = uj.transformer(4, attention_factory=replaced)
    np.testing.assert_array_equal(layer.step(layer.init(jax.random.key(0)), y, None), 0.0)
