"""Attention to predecessors: the energies that it lowers and may raise, and the
sweep that lowers the whole."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import unroll_jax as uj
from tests import reference
from tests.energies.attention.examples import NO_WEIGHT, of_every_rho, tokens
from tests.energies.comparing import both
from tests.marks import in_float64, nightly
from tests.reference import compiled, jax_array
from unroll_jax.descent import Anchor
from unroll_jax.energies import AttentionParams
from unroll_jax.energies.attention.causal import causal_attention

# arrays are float64 unless a test makes them float32
pytestmark = in_float64
every_form = pytest.mark.parametrize("form", ["jacobi", "softmax"])


@pytest.mark.slow
@every_form
def test_energy_and_step_equal_the_reference(form):
    y = tokens(0, (6, 3))
    c = tokens(1, (6, 3))
    W_a = tokens(2, (3, 2))

    def of_rho(rho, W_a, y, c):
        learned = causal_attention(rho=rho, form=form, step_size=0.3, dim=3, rank=2)
        return both(learned, AttentionParams(W_a), y, c), both(
            causal_attention(rho=rho, form=form), NO_WEIGHT, y
        )

    results = of_every_rho(of_rho)(W_a, y, c)
    for (weight, step_size, context), (energies, steps) in zip(
        ((W_a, 0.3, c), (None, 1.0, y)), results, strict=True
    ):
        for rho, energy, stepped in zip(uj.RHOS, energies, steps, strict=True):
            system = {"rho": rho, "W_a": weight}
            expected = np.sum(reference.causal_energy(y, context, **system))
            assert_allclose(energy, expected, rtol=1e-12, atol=1e-12, err_msg=rho)
            expected = reference.causal_step(
                y, context, form=form, step_size=step_size, **system
            )
            assert_allclose(stepped, expected, rtol=1e-12, atol=1e-12, err_msg=rho)


def test_a_causal_layer_may_raise_the_pair_energy():
    """One token leaves a crowd for the first token: its successors, who came to it,
    are left behind."""
    y = np.array([[0.0], *[[1.0]] * 8])
    # sqrt(z + 1)
    undirected = uj.attention(rho="power")
    causal = causal_attention(rho="power")

    @compiled
    def pair_energies(y):
        states = y, undirected.step(NO_WEIGHT, y), causal.step(NO_WEIGHT, y)
        return [undirected.energy(NO_WEIGHT, state) for state in states]

    before, lowered, raised = map(float, pair_energies(y))
    # The same by hand: token 1 goes to 0, token k >= 2 to the mean of 0 and k - 1 ones,
    # weighted by their slopes.
    expected = reference.pair_energy(
        reference.causal_step(y, y, rho="power"), rho="power"
    )
    assert raised == pytest.approx(expected, rel=1e-12)
    assert raised > before + 0.4
    assert lowered < before - 0.5


@every_form
def test_fixed_points_are_tokens_like_the_first(form):
    y = tokens(0, (5, 2))
    layer = causal_attention(form=form, rho="cauchy")
    consensus = np.broadcast_to(y[:1], y.shape)

    @compiled
    def all_of(y, consensus):
        last, _ = uj.unroll(layer, NO_WEIGHT, y, num_layers=2000)
        # To a context that is held the fixed points are the stationary ones instead.
        held, trace = uj.unroll(layer, NO_WEIGHT, y, y, num_layers=2000)
        return (
            layer.step(NO_WEIGHT, consensus),
            last,
            trace.energy,
            jax.grad(layer.energy, 1)(NO_WEIGHT, held, y),
        )

    stepped, last, energies, gradient = all_of(y, consensus)
    assert_allclose(stepped, consensus, rtol=1e-14)
    assert_allclose(last, consensus, atol=1e-6)
    assert np.all(np.diff(energies) <= 1e-12)
    assert_allclose(gradient, 0.0, atol=1e-8)


@nightly
@every_form
def test_tokens_in_blocks_are_the_same_as_all_at_once(form):
    """Blocks of four do not divide six tokens, and some of those are absent."""
    there = jax_array(np.arange(6) != np.array([[2], [5]]))
    arguments = (
        AttentionParams(tokens(2, (3, 2))),
        tokens(0, (2, 6, 3)),
        tokens(1, (6, 3)),
    )

    def in_blocks(block, *args):
        layer = causal_attention(form=form, rho="log", dim=3, rank=2, block=block)

        def value(W_a, y, x):
            energy, stepped = both(layer, W_a, y, Anchor(x, there))
            return jnp.sum(energy) + jnp.sum(stepped**3), (energy, stepped)

        return jax.value_and_grad(value, (0, 1, 2), has_aux=True)(*args)

    expected, *others = compiled(
        lambda *args: [in_blocks(block, *args) for block in (None, 4, 1)]
    )(*arguments)
    for block, other in zip((4, 1), others, strict=True):
        chex.assert_trees_all_close(
            other, expected, rtol=1e-12, atol=1e-12, custom_message=f"block={block}"
        )


@nightly
def test_no_constant_is_of_all_pairs():
    """Memory is measured in test_pairs.py."""
    y = jax.ShapeDtypeStruct((2048, 4), jnp.float32)
    step = causal_attention().step
    constants = jax.make_jaxpr(lambda y: step(NO_WEIGHT, y))(y).consts
    assert sum(map(np.size, constants)) < 10 * len(y)


@every_form
def test_no_future_token_reaches_a_past_output_or_its_gradient(form):
    """Values are the same bits without the future, of any size, or of NaN."""
    y = tokens(0, (6, 3)).astype(np.float32)
    weight = tokens(1, (3, 3)).astype(np.float32)
    present = np.array([False, True, True, True, True, True])
    layers = [causal_attention(form=form, block=block) for block in (None, 2)]

    @compiled
    def past(y):
        def steps(y):
            x = Anchor(None, present[: len(y)])
            stepped = [
                *(layer.step(NO_WEIGHT, y) for layer in layers),
                *(layer.step(NO_WEIGHT, y, x) for layer in layers),
            ]
            return sum(jnp.sum(weight * one[:3]) for one in stepped), stepped

        return jax.grad(steps, has_aux=True)(y)

    _, alone = past(y[:3])
    for size in (1.0, 1e3, 1e4, 1e6, np.nan, np.inf):
        future = np.where(np.arange(6)[:, None] < 3, y, np.float32(size) * y)
        gradient, stepped = past(future)
        if np.isfinite(size):
            assert_array_equal(gradient[3:], 0.0, err_msg=str(size))
        for one, expected in zip(stepped, alone, strict=True):
            assert_array_equal(one[:3], expected, err_msg=str(size))
            if not np.isfinite(size):
                assert np.isnan(one[4:]).all()
