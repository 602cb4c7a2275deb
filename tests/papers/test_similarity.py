"""How alike tokens become: cosines and layers are those of the paper's formulas."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from papers import similarity
from unroll_jax.energies.attention.rho import log


def unit(y):
    return y / np.linalg.norm(y, axis=-1, keepdims=True)


def cosines(y):
    pairs = np.triu_indices(len(y), 1)
    return np.mean((unit(y) @ unit(y).T)[pairs])


def test_the_mean_cosine_is_of_pairs_of_different_tokens():
    y = np.random.default_rng(0).normal(size=(3, 5, 4)).astype(np.float32)
    expected = [cosines(tokens) for tokens in y]
    actual = jax.jit(similarity.mean_cosine)(y, np.ones((3, 5), bool))
    assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def attend(y):
    """The coefficients of Section 7, 1 / (2 - y_i.y_j), which sum to 1."""
    weights = 1.0 / (2.0 - y @ y.T)
    return unit(weights / weights.sum(-1, keepdims=True) @ y)


def descend(y):
    """A step of .5 / n on the sum of log(1 + z) over pairs of tokens."""
    apart = y[:, None] - y
    z = 0.5 * np.sum(apart**2, axis=-1, keepdims=True)
    return unit(y - 0.5 / len(y) * np.sum(apart / (1.0 + z), axis=1))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("rule", "step"),
    [("normalised attention", attend), ("gradient step", descend)],
)
def test_layers_of_log_are_those_of_the_formulas(rule, step, monkeypatch):
    monkeypatch.setattr(similarity, "SETS", 2)
    monkeypatch.setattr(similarity, "TOKENS", 5)
    draw = np.random.default_rng(0)
    common = draw.normal(size=(2, 1, similarity.DIM))
    sets = unit(common + draw.normal(size=(2, 5, similarity.DIM)))
    expected = []
    for _ in range(similarity.LAYERS + 1):
        expected.append(np.mean([cosines(y) for y in sets]))
        sets = np.stack([step(y) for y in sets])
    actual = similarity.similarities(rule, "log")
    assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.nightly
def test_slower_growth_keeps_tokens_dissimilar_under_one_length():
    """Section 7 claims it for log(z + 2) under weights that sum to 1."""

    def distance(rule, rho):
        return 1.0 - similarity.similarities(rule, rho)[1]

    slow, faster = log(2.0), "log"
    for rule in ("gradient step", "normalised attention"):
        softmax = distance(rule, "softmax")
        assert distance(rule, faster) < softmax
        assert (distance(rule, slow) > softmax) == (rule == "gradient step")
