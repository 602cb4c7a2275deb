"""Sparse coding of sequences (DUST), and its errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import reference
from tests.energies.dust_reference import ATOMS, DIM, RANK, N, at_once, coding_energy, coding_step, draw, mixing_step
from unroll_jax.descent import Anchor
from unroll_jax.energies import AttentionParams, DustParams, attention, dust

DRAWS = 5_000


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", ["softmax", "jacobi", "plain"])
def test_dust_equals_the_reference(form):
    """Full and damped steps with a V, and a scale in its place together with measurements."""
    H, D, V, x = draw(1)
    Phi, scaled = np.random.default_rng(18).normal(size=(2, DIM)), 0.3 * np.eye(ATOMS)
    graph = None if form == "plain" else reference.random_graph(np.random.default_rng(2), N, 0.7)
    options = {"rank": RANK, "sparsity": 0.2, "curvature": 9.0, "form": form, "mask": graph}
    layers = [dust(DIM, ATOMS, attention_step_size=damping, **options) for damping in (1.0, 0.4)]
    measured = dust(DIM, ATOMS, form=form, sparsity=0.2, attention_scale=0.3, measurement=Phi)
    assert measured.init(jax.random.key(0)).V is None
    cases = [(V, 1.0, graph, x, 9.0, None), (V, 0.4, graph, x, 9.0, None), (scaled, 1.0, None, x @ Phi.T, None, Phi)]
    results = at_once(layers)(DustParams(D, V), H, x) + at_once([measured])(DustParams(D, None), H, x @ Phi.T)
    for (V, damping, graph, x, c, Phi), (energy, stepped) in zip(cases, results, strict=True):
        expected = reference.pair_energy(H, W_a=V.T, graph=graph) + coding_energy(H, D, x, 0.2, Phi)
        np.testing.assert_allclose(energy, expected, rtol=1e-12, err_msg=str(damping))
        mixed = mixing_step(H, V, form, damping=damping, graph=graph)
        expected = coding_step(mixed, D, x, 0.2, c, measurement=Phi)
        np.testing.assert_allclose(stepped, expected, rtol=1e-11, atol=1e-13, err_msg=str(damping))


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


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("form", "share"), [("softmax", 20.0), ("softmax", 2.0), ("jacobi", 0.8), ("jacobi", 2.0)])
def test_the_whole_energy_rises_nowhere_but_where_the_stated_condition_is_broken(form, share):
    """Random layers and codes, whose curvature is a share of L; with a large one many do rise."""
    H, D, V, x = draw(10, (DRAWS,))
    rng = np.random.default_rng(11)
    D, V = (a / np.linalg.norm(a, 2, axis=(1, 2))[:, None, None] for a in (D, V))
    V, x = V * 10.0 ** rng.uniform(-2, 0, size=(DRAWS, 1, 1)), x * 10.0 ** rng.uniform(0, 2, size=(DRAWS, 1, 1))
    smoothness = 1.0 + N * np.linalg.norm(V, 2, axis=(1, 2)).max() ** 2
    curvature, pair = share * smoothness, attention(form=form, dim=ATOMS, rank=RANK)
    layer = dust(DIM, ATOMS, rank=RANK, form=form, sparsity=0.05, curvature=curvature)

    @jax.jit
    @jax.vmap
    def measure(H, D, V, x):
        params, W_a = DustParams(D, V), AttentionParams(V.T)
        mixed, stepped = pair.step(W_a, H), layer.step(params, H, x)
        left = jax.grad(pair.energy, 1)(W_a, H) / curvature + (mixed - H) @ (jnp.eye(ATOMS) - D @ D.T / curvature)
        room = (1.0 - 0.5 * smoothness / curvature) * jnp.linalg.norm(stepped - H)
        return layer.energy(params, H, x), layer.energy(params, stepped, x), jnp.linalg.norm(left) > room

    before, after, broken = map(np.asarray, measure(3.0 * rng.normal(size=(DRAWS, 1, ATOMS)) + H, D, V, x))
    assert np.all((after <= before + 1e-12 * (1.0 + np.abs(before)))[~broken])
    assert share == 20.0 or np.sum(~broken) > DRAWS // 50  # the condition is not empty
    assert share < 20.0 or np.sum((after > before + 1e-3 * (1.0 + np.abs(before))) & broken) > DRAWS // 100


@pytest.mark.usefixtures("x64")
def test_the_published_softmax_raises_the_pair_energy_where_the_exact_one_lowers_it():
    """Codes near zero, and a long one that without beta draws those on its side away from the rest."""
    H = np.array([[4.489], [-0.478], [0.389], [0.178]])
    before = reference.pair_energy(H)
    plain, *exact = (reference.pair_energy(mixing_step(H, np.eye(1), form)) for form in ("plain", "softmax", "jacobi"))
    assert plain > before + 1.0
    assert max(exact) < before


@pytest.mark.usefixtures("x64")
def test_the_published_softmax_is_the_exact_one_among_codes_of_one_length():
    H, D, V, x = draw(12)
    H = H / np.linalg.norm(H @ V.T, axis=1, keepdims=True)
    (_, published), (_, exact) = at_once([dust(DIM, ATOMS, rank=RANK, form=form) for form in ("plain", "softmax")])(
        DustParams(D, V), H, x
    )
    np.testing.assert_allclose(published, exact, rtol=1e-12)
