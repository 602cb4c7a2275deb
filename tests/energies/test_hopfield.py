"""Hopfield energies and cross-attention."""

import jax
import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from unroll_jax.descent import Anchor
from unroll_jax.energies.hopfield import HopfieldParams, hopfield

pytestmark = pytest.mark.usefixtures("x64")  # arrays are float64 unless a test makes them float32
N, M, DIM = 5, 7, 3
OWN = HopfieldParams(None)


def reference_energy(y, S, b, anchor=None, seen=None):
    """- log sum_j exp(b s_j . y) / b + |y - B|^2 / 2 of each token, summed."""
    kept = S if seen is None else S[seen]
    lookups = logsumexp(b * y @ kept.T, axis=1) / b if len(kept) else 0.0
    return 0.5 * np.sum((y - (0.0 if anchor is None else anchor)) ** 2) - np.sum(lookups)


def reference_step(y, S, b, anchor=None, seen=None, step_size=1.0):
    kept = S if seen is None else S[seen]
    lookups = softmax(b * y @ kept.T, axis=1) @ kept if len(kept) else 0.0
    return (1.0 - step_size) * y + step_size * (lookups + (0.0 if anchor is None else anchor))


def both(layer):
    return lambda *args: (layer.energy(*args), layer.step(*args))


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def test_energy_and_step_equal_the_reference():
    y, S, x, seen = draw(0, N, DIM), draw(1, M, DIM), draw(2, N, DIM), np.arange(M) % 3 != 1
    nobody, table = np.zeros(M, bool), [(0.5, 1.0), (20.0, 0.3)]

    @jax.jit
    def all_of(y, S, x, seen, nobody):
        def one(b, step_size):
            learned = both(hopfield(DIM, num_patterns=M, inverse_temperature=b, step_size=step_size))
            crossed = both(hopfield(DIM, inverse_temperature=b, step_size=step_size))
            of_keys = [crossed(OWN, y, given) for given in (S, Anchor(S, seen), Anchor(S, nobody))]
            return [learned(HopfieldParams(S), y, anchor) for anchor in (None, x)] + of_keys

        return [one(*entry) for entry in table]

    cases = ({}, {"anchor": x}, {}, {"seen": seen}, {"seen": nobody})
    for (b, step_size), results in zip(table, all_of(y, S, x, seen, nobody), strict=True):
        for place, (options, (energy, stepped)) in enumerate(zip(cases, results, strict=True)):
            message = f"b={b}, step_size={step_size}, case {place}"
            np.testing.assert_allclose(energy, reference_energy(y, S, b, **options), rtol=1e-12, err_msg=message)
            expected = reference_step(y, S, b, step_size=step_size, **options)
            np.testing.assert_allclose(stepped, expected, rtol=1e-12, atol=1e-14, err_msg=message)


def test_as_printed_without_the_transpose_the_step_raises_the_energy():
    """S softmax(b S y), eq. 7 as printed, for square S."""
    rng, rose = np.random.default_rng(5), 0
    for _ in range(100):
        y, S = rng.normal(size=(1, DIM)), rng.normal(size=(DIM, DIM))
        printed = (S @ softmax(S @ y[0]))[None]
        rose += reference_energy(printed, S, 1.0) > reference_energy(y, S, 1.0) + 1e-6
    assert rose > 5


def test_cold_lookups_return_the_nearest_pattern():
    """For patterns of one length the limit of b to infinity is retrieval of the nearest of them, in one step."""
    S = draw(6, M, DIM)
    S /= np.linalg.norm(S, axis=1, keepdims=True)
    y = draw(7, 4, N, DIM)
    nearest = S[np.argmin(np.linalg.norm(y[..., None, :] - S, axis=-1), axis=-1)]
    np.testing.assert_allclose(jax.jit(hopfield(DIM, inverse_temperature=1e6).step)(OWN, y, S), nearest, atol=1e-9)


def test_learned_patterns_have_about_unit_length(getkey):
    assert np.all(np.abs(np.linalg.norm(hopfield(400, num_patterns=50).init(getkey()).S, axis=1) - 1.0) < 0.2)
