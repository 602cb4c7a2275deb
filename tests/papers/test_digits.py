"""The transformer of digits at tiny sizes: its readout and losses by NumPy, its
methods."""

import dataclasses

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax

from papers import digits

TINY = digits.Setting(layers=2, width=8, heads=2, batch=4, steps=3, seeds=2)


@pytest.fixture(scope="module")
def started():
    """Drawn parameters, and logits and losses of five digits."""
    images, labels, *_ = digits.digits()

    @jax.jit
    def run(key):
        params = digits.init(key, TINY)
        losses = digits.layer_losses(params, images[:5], labels[:5], TINY.heads)
        return params, digits.layer_logits(params, images[:5], TINY.heads), losses

    return jax.device_get(run(jax.random.key(0)))


def test_every_layer_is_read_by_one_readout(started):
    logits, losses = map(np.float64, started[1:])
    logs = log_softmax(logits, axis=-1)
    expected = -logs[:, np.arange(5), digits.digits()[1][:5]].mean(axis=1)
    assert losses.shape == (3,)
    assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.nightly
def test_weights_of_zero_are_plain_training(started, monkeypatch):
    data = tuple(part[:24] for part in digits.digits())

    def drawn(key, setting):
        scale = 1.0 + 0.1 * jax.random.normal(key)
        return jax.tree.map(lambda leaf: leaf * scale, started[0])

    monkeypatch.setattr(digits, "init", drawn)
    plain = digits.train(digits.Method(), TINY, data)[2]
    assert not np.array_equal(*plain), "each seed has a start of its own"
    weighted = digits.train(digits.Method(weights=(0.0, 0.0, 1.0)), TINY, data)[2]
    assert_array_equal(plain, weighted)
    method = digits.methods(2)["cumulative, Adam .2"](None)
    one_seed = dataclasses.replace(TINY, seeds=1)
    *_, multipliers, sums = digits.train(method, one_seed, data)
    assert multipliers.shape == (1, 3)
    assert sums[0] >= multipliers.sum() > 0.0
