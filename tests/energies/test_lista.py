"""Sparse coding of tokens (LISTA), and the dictionary that it starts from."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.energies.comparing import Case, assert_equal
from tests.energies.dust_reference import (
    ATOMS,
    DIM,
    N,
    coding_energy,
    coding_step,
    draw,
)
from tests.marks import in_float64
from tests.reference import compiled, gaussian
from unroll_jax.energies import ListaParams, cosine_dictionary, lista

# arrays are float64 unless a test makes them float32
pytestmark = in_float64


def test_lista_equals_the_reference():
    H, D, _, x = draw(0)
    cases = {}
    for s, c in itertools.product((0.0, 0.3), (None, 7.0)):
        layer = lista(DIM, ATOMS, sparsity=s, curvature=c)
        expected = coding_step(H, D, x, s, c)
        cases[s, c] = Case(
            layer, ListaParams(D), H, x, coding_energy(H, D, x, s), expected
        )
    assert_equal(cases)


@pytest.mark.parametrize("shape", [(9, 12), (40, 9), (5, 1)], ids=str)
def test_the_default_curvature_bounds_the_dictionary_from_above_by_little(shape):
    """In float32, for dictionaries of any spread of singular values and any size,
    rounding apart."""
    rng = np.random.default_rng(21)
    D = rng.normal(size=(60, *shape)) * 10.0 ** rng.uniform(-2, 2, size=(60, 1, 1))
    D *= 10.0 ** (
        rng.uniform(0, 3, size=(60, 1, 1)) * rng.uniform(-1, 0, size=(60, 1, shape[1]))
    )
    # some are tight frames
    D[:20] = np.linalg.qr(rng.normal(size=(20, max(shape), min(shape))))[0].reshape(
        20, *shape
    )
    x = rng.normal(size=(4, shape[1])).astype(np.float32)
    start = np.zeros((4, shape[0]), np.float32)

    @compiled
    @jax.vmap
    def curvatures(D):
        """c, read from the codes that the default step makes of a signal: x D^T / c."""
        stepped = lista(shape[1], shape[0], sparsity=0.0).step(ListaParams(D), start, x)
        return jnp.sqrt(jnp.sum((x @ D.T) ** 2) / jnp.sum(stepped**2))

    bounds = curvatures(D.astype(np.float32))
    true = np.linalg.norm(D, 2, axis=(1, 2)) ** 2
    assert np.all(bounds >= true * (1.0 - 1e-4))
    assert np.all(bounds <= true * 1.02)


@pytest.mark.parametrize("atoms", [4, 7])
def test_derivatives_through_the_curvature_are_finite(
    atoms,
):
    """A step from zero is x D^T / c, which shrinks as D grows: its derivative along
    D is minus itself."""
    D, (x, weight) = (
        cosine_dictionary(atoms, 4),
        (gaussian(3, k) for k in (4, atoms)),
    )
    layer = lista(4, atoms, sparsity=0.0)

    @compiled
    def along(D):
        def made(D):
            return jnp.sum(
                weight * layer.step(ListaParams(D), jnp.zeros((3, atoms)), x)
            )

        return jnp.sum(jax.grad(made)(D) * D), made(D)

    derivative, value = along(D)
    assert_allclose(derivative, -value, rtol=1e-9)


def test_a_dictionary_of_zeros_leaves_no_code():
    zeros = np.zeros((ATOMS, DIM))
    codes = np.ones((N, ATOMS))
    signal = np.ones((N, DIM))
    assert_array_equal(
        compiled(lista(DIM, ATOMS).step)(ListaParams(zeros), codes, signal), 0.0
    )


@pytest.mark.parametrize(("atoms", "dim"), [(10, 4), (3, 9), (12, 5), (1, 1)])
def test_the_dictionary_has_unit_cosines_from_low_to_high_frequency(atoms, dim):
    """An overcomplete one needs more than curvature 1, half of its |D|^2 at least
    (docs/explanation/errata.md)."""
    assert np.linalg.norm(cosine_dictionary(64, 16), 2) ** 2 > 3.0
    D = cosine_dictionary(atoms, dim)
    assert D.shape == (atoms, dim)
    assert_allclose(np.linalg.norm(D, axis=1), 1.0, rtol=1e-12)
    assert_allclose(D[0], 1.0 / np.sqrt(dim), rtol=1e-12)
    if atoms <= dim:
        assert_allclose(D @ D.T, np.eye(atoms), atol=1e-12)
    if int(np.sqrt(dim)) ** 2 != dim:
        wave = np.cos(
            np.pi
            * np.arange(atoms)[:, None]
            * (2 * np.arange(dim) + 1)
            / (2 * max(atoms, dim))
        )
        assert_allclose(
            D, wave / np.linalg.norm(wave, axis=1, keepdims=True), atol=1e-12
        )
