"""Sparse coding of sequences (DUST), and what it refuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import reference
from tests.energies.dust_reference import ATOMS, DIM, RANK, N, at_once, coding_energy, coding_step, draw, mixing_step
from unroll_jax.descent import Anchor
from unroll_jax.energies import AttentionParams, DustParams, ListaParams, attention, dust, lista

DRAWS = 5_000


@pytest.mark.usefixtures("x64")
def test_dust_equals_the_reference():
    H, D, V, x = draw(1)
    drawn = reference.random_graph(np.random.default_rng(2), N, 0.7)
    graphs = {"softmax": drawn, "jacobi": drawn, "plain": None}
    cases = [(form, damping) for form in graphs for damping in (1.0, 0.4)]
    options = {"rank": RANK, "sparsity": 0.2, "curvature": 9.0}
    layers = [dust(DIM, ATOMS, form=f, attention_step_size=a, mask=graphs[f], **options) for f, a in cases]
    results = at_once(layers)(DustParams(D, V), H, x)
    for (form, damping), (energy, stepped) in zip(cases, results, strict=True):
        graph, name = graphs[form], f"{form}, damping {damping}"
        expected = reference.pair_energy(H, W_a=V.T, graph=graph) + coding_energy(H, D, x, 0.2)
        np.testing.assert_allclose(energy, expected, rtol=1e-12, err_msg=name)
        mixed = mixing_step(H, V, form, damping=damping, graph=graph)
        np.testing.assert_allclose(stepped, coding_step(mixed, D, x, 0.2, 9.0), rtol=1e-11, atol=1e-13, err_msg=name)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", ["softmax", "jacobi", "plain"])
def test_a_scale_and_measurements_equal_the_reference(form):
    H, D, _, x = draw(17)
    V, Phi = 0.3 * np.eye(ATOMS), np.random.default_rng(18).normal(size=(2, DIM))
    layer, x = dust(DIM, ATOMS, form=form, sparsity=0.2, attention_scale=0.3, measurement=Phi), x @ Phi.T
    ((energy, stepped),) = at_once([layer])(DustParams(D, None), H, x)
    expected = reference.pair_energy(H, W_a=V.T) + coding_energy(H, D, x, 0.2, Phi)
    np.testing.assert_allclose(energy, expected, rtol=1e-12)
    expected = coding_step(mixing_step(H, V, form), D, x, 0.2, measurement=Phi)
    np.testing.assert_allclose(stepped, expected, rtol=1e-11, atol=1e-13)
    assert layer.init(jax.random.key(0)).V is None


@pytest.mark.usefixtures("x64")
def test_without_self_loops_tokens_attend_to_the_others_alone_and_one_alone_stays():
    H, D, V, x = draw(19)
    layer = dust(DIM, ATOMS, rank=RANK, form="plain", self_loops=False, sparsity=0.2, curvature=9.0)

    @jax.jit
    def steps(params, H, x):
        present = [np.arange(N) < count for count in (N, 3, 1)]
        return [layer.step(params, H, Anchor(x, jnp.asarray(there))) for there in present]

    for count, stepped in zip((N, 3, 1), steps(DustParams(D, V), H, x), strict=True):
        mixed = mixing_step(H[:count], V, "plain", self_loops=False) if count > 1 else H[:1]
        expected = coding_step(mixed, D, x[:count], 0.2, 9.0)
        np.testing.assert_allclose(stepped[:count], expected, rtol=1e-11, atol=1e-13)
        np.testing.assert_array_equal(stepped[count:], H[count:])


@functools.cache
def random_layers(form):
    """DRAWS random layers of three curvatures, what the docstring's condition says of each and what E did.

    By the curvature's share of L and by the spread of the codes.
    """
    C, D, V, x = draw(10, (DRAWS,))
    rng = np.random.default_rng(11)
    consensus = 3.0 * rng.normal(size=(DRAWS, 1, ATOMS))
    D, V = (a / np.linalg.norm(a, 2, axis=(1, 2))[:, None, None] for a in (D, V))
    V, x = V * 10.0 ** rng.uniform(-2, 0, size=(DRAWS, 1, 1)), x * 10.0 ** rng.uniform(0, 2, size=(DRAWS, 1, 1))
    smoothness = 1.0 + N * np.linalg.norm(V, 2, axis=(1, 2)).max() ** 2
    pair = attention(form=form, dim=ATOMS, rank=RANK)

    def of_share(share, H, D, V, x):
        curvature = share * smoothness
        layer = dust(DIM, ATOMS, rank=RANK, form=form, sparsity=0.05, curvature=curvature)
        coding = lista(DIM, ATOMS, sparsity=0.05, curvature=curvature)
        params, W_a = DustParams(D, V), AttentionParams(V.T)
        mixed, stepped = pair.step(W_a, H), layer.step(params, H, x)
        left = jax.grad(pair.energy, 1)(W_a, H) / curvature + (mixed - H) @ (jnp.eye(ATOMS) - D @ D.T / curvature)
        room = (1.0 - 0.5 * smoothness / curvature) * jnp.linalg.norm(stepped - H)
        halves = (
            pair.energy(W_a, H) - pair.energy(W_a, mixed),
            (coding.energy(ListaParams(D), mixed, x) - coding.energy(ListaParams(D), stepped, x)),
        )
        return layer.energy(params, H, x), layer.energy(params, stepped, x), room - jnp.linalg.norm(left), halves

    every = jax.jit(jax.vmap(lambda *a: {share: of_share(share, *a) for share in (0.8, 2.0, 20.0)}))
    results = {spread: jax.tree.map(np.asarray, every(consensus + spread * C, D, V, x)) for spread in (1e-2, 1.0)}
    return {(share, spread): results[spread][share] for spread in results for share in results[spread]}


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", ["softmax", "jacobi"])
def test_under_the_stated_condition_no_step_raises_the_whole_energy(form):
    for share, spread in [(0.8, 1e-2), (0.8, 1.0), (2.0, 1e-2), (2.0, 1.0)]:
        before, after, slack, halves = random_layers(form)[share, spread]
        held = slack >= 0.0
        assert np.sum(held) > DRAWS // 50, (share, spread)  # the condition is not empty
        assert np.all(after[held] <= (before + 1e-12 * (1.0 + np.abs(before)))[held]), (share, spread)
        for fell in halves:  # each half lowers its part, condition or not
            assert np.all(fell >= -1e-11), (share, spread)


@pytest.mark.usefixtures("x64")
def test_where_the_condition_is_broken_the_whole_energy_does_rise():
    before, after, slack, _ = random_layers("softmax")[20.0, 1.0]
    rose = after > before + 1e-3 * (1.0 + np.abs(before))
    assert np.sum(rose & (slack < 0.0)) > DRAWS // 100


@pytest.mark.usefixtures("x64")
def test_the_published_softmax_raises_the_pair_energy_where_the_exact_one_lowers_it():
    """Codes near zero, and a long one that without beta draws those on its side away from the rest."""
    H = np.array([[4.489], [-0.478], [0.389], [0.178]])
    rises = {
        form: reference.pair_energy(mixing_step(H, np.eye(1), form)) - reference.pair_energy(H)
        for form in ("plain", "softmax", "jacobi")
    }
    assert rises["plain"] > 1.0
    assert rises["softmax"] < 0.0
    assert rises["jacobi"] < 0.0


@pytest.mark.usefixtures("x64")
def test_the_published_softmax_is_the_exact_one_among_codes_of_one_length():
    H, D, V, x = draw(12)
    H = H / np.linalg.norm(H @ V.T, axis=1, keepdims=True)
    (_, published), (_, exact) = at_once([dust(DIM, ATOMS, rank=RANK, form=form) for form in ("plain", "softmax")])(
        DustParams(D, V), H, x
    )
    np.testing.assert_allclose(published, exact, rtol=1e-12)
