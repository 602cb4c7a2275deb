"""Sparse coding of tokens (LISTA), and its dictionary."""

import cvxpy
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.energies.dust_reference import ATOMS, DIM, N, at_once, coding_energy, coding_step, draw
from unroll_jax.energies.lista import ListaParams, lista


@pytest.mark.usefixtures("x64")
def test_lista_equals_the_reference():
    H, D, _, x = draw(0)
    cases = [(sparsity, curvature) for sparsity in (0.0, 0.3) for curvature in (None, 7.0)]
    found = at_once([lista(DIM, ATOMS, sparsity=sparsity, curvature=curvature) for sparsity, curvature in cases])
    for (sparsity, curvature), (energy, stepped) in zip(cases, found(ListaParams(D), H, x), strict=True):
        name = f"sparsity {sparsity}, curvature {curvature}"
        np.testing.assert_allclose(energy, coding_energy(H, D, x, sparsity), rtol=1e-12, err_msg=name)
        expected = coding_step(H, D, x, sparsity, curvature)
        np.testing.assert_allclose(stepped, expected, rtol=1e-12, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_lista_step_raises_its_energy_and_it_falls_as_much_as_proven(dtype):
    """For curvatures down to half of |D|_2^2; scales over six orders of magnitude."""
    rng, shares = np.random.default_rng(6), (0.5, 1.0, 3.0)
    H, D, _, x = (10.0 ** rng.uniform(-3, 3, size=(2000, 1, 1)) * a for a in draw(7, (2000,)))
    D /= np.linalg.norm(D, 2, axis=(1, 2))[:, None, None]

    @jax.jit
    @jax.vmap
    def falls(H, D, x):
        params, size, found = ListaParams(D), jnp.sum(H**2) + jnp.sum(x**2) + 0.1 * jnp.sum(jnp.abs(H)), {}
        for share in shares:
            layer = lista(DIM, ATOMS, sparsity=0.1, curvature=share)
            stepped = layer.step(params, H, x)
            proven = (share - 0.5) * jnp.sum((stepped - H) ** 2)
            found[share] = layer.energy(params, H, x) - layer.energy(params, stepped, x), proven, size
        return found

    with jax.enable_x64(dtype == "float64"):
        found = jax.tree.map(np.asarray, falls(*(a.astype(dtype) for a in (H, D, x))))
    for share, (fell, proven, size) in found.items():
        assert np.all(fell >= proven - 60.0 * np.finfo(dtype).eps * (1.0 + size)), share
        assert np.mean(fell > 0.0) > 0.9, share


@pytest.mark.usefixtures("x64")
def test_curvature_one_is_too_little_for_an_overcomplete_dictionary():
    """|D|_2^2 of four times as many unit atoms as dimensions is about 4, and half of that more than 1."""
    D, x = cosine_dictionary(64, 16), np.random.default_rng(8).normal(size=(N, 16))
    assert np.linalg.norm(D, 2) ** 2 > 3.0

    @jax.jit
    def energies(params, x):
        def descend(layer):
            one = lambda H, _: (layer.step(params, H, x), layer.energy(params, H, x))  # noqa: E731
            return jax.lax.scan(one, jnp.zeros((N, 64)), length=10)[1]

        return [descend(lista(16, 64, curvature=curvature)) for curvature in (None, 1.0)]

    of_dictionary, of_one = map(np.asarray, energies(ListaParams(D), x))
    assert np.all(np.diff(of_dictionary) < 0.0)
    assert of_one[-1] > 10.0 * of_one[0]


@pytest.mark.usefixtures("x64")
def test_lista_with_one_dictionary_converges_to_the_sparse_code():
    _, D, _, x = draw(9)
    layer = lista(DIM, ATOMS, sparsity=0.3)

    @jax.jit
    def solve(params, x):
        H = jax.lax.fori_loop(0, 3000, lambda _, H: layer.step(params, H, x), jnp.zeros((N, ATOMS)))
        return H, layer.energy(params, H, x)

    H, energy = map(np.asarray, solve(ListaParams(D), x))
    variable = cvxpy.Variable((N, ATOMS))
    objective = 0.5 * cvxpy.sum_squares(x - variable @ D) + 0.3 * cvxpy.sum(cvxpy.abs(variable))
    least = cvxpy.Problem(cvxpy.Minimize(objective)).solve(solver=cvxpy.CLARABEL)
    np.testing.assert_allclose(energy, least, rtol=1e-7)
    assert 0 < np.sum(H == 0.0) < H.size  # sparse, and not all of it


@pytest.mark.parametrize(("atoms", "dim"), [(4, 4), (9, 4), (10, 4), (3, 9), (5, 5), (12, 5), (3, 7), (1, 1), (3, 1)])
def test_the_dictionary_has_unit_cosines_from_low_to_high_frequency(atoms, dim):
    D = cosine_dictionary(atoms, dim)
    assert D.shape == (atoms, dim)
    np.testing.assert_allclose(np.linalg.norm(D, axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(D[0], 1.0 / np.sqrt(dim), rtol=1e-12)
    if atoms <= dim:
        np.testing.assert_allclose(D @ D.T, np.eye(atoms), atol=1e-12)
    if int(np.sqrt(dim)) ** 2 != dim:
        wave = np.cos(np.pi * np.arange(atoms)[:, None] * (2 * np.arange(dim) + 1) / (2 * max(atoms, dim)))
        np.testing.assert_allclose(D, wave / np.linalg.norm(wave, axis=1, keepdims=True), atol=1e-12)
