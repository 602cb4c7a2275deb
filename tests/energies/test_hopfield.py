"""Hopfield energies and cross-attention."""

import jax
import numpy as np
from numpy.testing import assert_allclose
from scipy.special import logsumexp, softmax

from tests.energies.attention.examples import tokens
from tests.energies.comparing import Case, assert_equal
from tests.marks import in_float64
from tests.reference import compiled
from unroll_jax.descent import Anchor
from unroll_jax.energies.hopfield import HopfieldParams, hopfield

# arrays are float64 unless a test makes them float32
pytestmark = in_float64
N, M, DIM = 5, 7, 3
OWN = HopfieldParams(None)


def reference_energy(y, S, b, anchor=0.0):
    """- log sum_j exp(b s_j . y) / b + |y - B|^2 / 2 of each token, summed."""
    lookups = logsumexp(b * y @ S.T, axis=1) / b if len(S) else 0.0
    return 0.5 * np.sum((y - anchor) ** 2) - np.sum(lookups)


def reference_step(y, S, b, anchor=0.0, step_size=1.0):
    lookups = softmax(b * y @ S.T, axis=1) @ S if len(S) else 0.0
    return (1.0 - step_size) * y + step_size * (lookups + anchor)


def test_energy_and_step_equal_the_reference():
    """With learned patterns, and with keys, of which some or all may be absent."""
    y = tokens(0, (N, DIM))
    S = tokens(1, (M, DIM))
    B = tokens(2, (N, DIM))
    some = np.arange(M) % 3 != 1
    cases = {}
    for b, size in ((0.5, 1.0), (20.0, 0.3)):
        crossed = hopfield(DIM, inverse_temperature=b, step_size=size)
        learned = hopfield(DIM, num_patterns=M, inverse_temperature=b, step_size=size)
        for name, layer, params, x, kept, anchor in (
            ("keys", crossed, OWN, S, S, 0.0),
            ("some keys", crossed, OWN, Anchor(S, some), S[some], 0.0),
            ("no key", crossed, OWN, Anchor(S, np.zeros_like(some)), S[:0], 0.0),
            ("patterns", learned, HopfieldParams(S), None, S, 0.0),
            ("patterns and anchor", learned, HopfieldParams(S), B, S, B),
        ):
            energy = reference_energy(y, kept, b, anchor)
            step = reference_step(y, kept, b, anchor, size)
            cases[f"b={b}, {name}"] = Case(layer, params, y, x, energy, step)
    assert_equal(cases)


def test_cold_lookups_return_the_nearest_pattern():
    """For patterns of one length the limit of b to infinity is retrieval of the
    nearest of them, in one step."""
    S = tokens(6, (M, DIM))
    y = tokens(7, (4, N, DIM))
    S /= np.linalg.norm(S, axis=1, keepdims=True)
    nearest = S[np.argmin(np.linalg.norm(y[..., None, :] - S, axis=-1), axis=-1)]
    assert_allclose(
        compiled(hopfield(DIM, inverse_temperature=1e6).step)(OWN, y, S),
        nearest,
        atol=1e-9,
    )


def test_learned_patterns_have_about_unit_length():
    init = hopfield(400, num_patterns=50).init
    patterns = compiled(lambda: init(jax.random.key(0, impl="rbg")))().S
    assert np.all(np.abs(np.linalg.norm(patterns, axis=1) - 1.0) < 0.2)
