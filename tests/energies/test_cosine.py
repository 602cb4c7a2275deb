"""The cosine dictionary."""

import numpy as np
import pytest

from unroll_jax.energies import cosine_dictionary


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
