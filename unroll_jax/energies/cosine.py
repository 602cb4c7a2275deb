"""The cosine dictionary: atoms of the discrete cosine transform, and of finer ones."""

import math

import numpy as np

from unroll_jax.arguments import at_least, checked

__all__ = ["cosine_dictionary"]


@checked(num_atoms=at_least(1), dim=at_least(1))
def cosine_dictionary(num_atoms: int, dim: int) -> np.ndarray:
    """Returns the cosine dictionary (num_atoms, dim) in float64.

    Its rows are cosines of unit length, lowest frequencies first. For num_atoms = dim
    it is the orthonormal discrete cosine transform, for fewer its first rows. For more,
    atom k has frequency pi k / num_atoms, finer than the transform's, and the squared
    spectral norm is about num_atoms / dim. A perfect square ``dim`` is taken for the
    pixels of a square patch, row by row: atoms are products of two cosines.

    Args:
      num_atoms, dim: number of atoms, and entries of a signal or pixels of a square
        patch, at least 1.

    Source: Porras-Valenzuela et al. (2026), B.2, after Luong et al. (2021).

    Example:
      >>> import numpy as np
      >>> atoms = cosine_dictionary(4, 4)  # of patches of 2 x 2 pixels
      >>> bool(np.allclose(atoms @ atoms.T, np.eye(4))), atoms[0].round(4).tolist()
      (True, [0.5, 0.5, 0.5, 0.5])
    """
    side = math.isqrt(dim)
    if side * side != dim:
        return _cosines(max(num_atoms, dim), dim)[:num_atoms]

    # Enough cosines along each axis for all atoms, ordered by the sum of frequencies.
    across = max(math.isqrt(max(num_atoms - 1, 0)) + 1, side)
    single = _cosines(across, side)
    frequencies = np.add.outer(np.arange(across), np.arange(across)).ravel()
    order = np.argsort(frequencies, kind="stable")
    return np.kron(single, single)[order][:num_atoms]


def _cosines(count: int, samples: int) -> np.ndarray:
    # Takes as long to import as the rest of the library.
    from scipy.fft import dct as cosine_transform

    waves = np.asarray(cosine_transform(np.eye(count), axis=0, norm="ortho"))
    waves = waves[:, :samples]
    return waves / np.linalg.norm(waves, axis=1, keepdims=True)
