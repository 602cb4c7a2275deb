"""The certified digits at tiny sizes: parity with NumPy, certificates and attacks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from papers import certified
from tests.energies import potential_reference as reference

PLAIN, SPECTRAL, OFFSET, _, BOUND = certified.CHOSEN
REFLECTED = certified.Setting("", 1e-2, offset=0.8, temperature=0.1, kind="reflected")
TRAINED = {
    "offset": OFFSET,
    "bound": BOUND,
    "equilibria": REFLECTED,
    "spectral": SPECTRAL,
}


@pytest.fixture(scope="module")
def data():
    train, _, (images, labels) = certified.digits()
    return train, (images[:40], labels[:40])


@pytest.fixture(scope="module")
def trained(data):
    """A short run of each kind of network with a guarantee, and under the bound."""
    runs = {}
    for name, setting in TRAINED.items():
        short = dataclasses.replace(setting, steps=60)
        runs[name] = certified.train(short, data[0], 0)
    return runs


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "atol"), [("offset", 1e-4), ("equilibria", 1e-3)])
def test_logits_are_those_of_numpy(name, atol, data, trained):
    images = data[1][0][:3]
    params = trained[name][0]
    kind = TRAINED[name].kind
    computed = certified.logits_of(params, jnp.asarray(images), kind)
    layers = jax.tree.map(np.float64, params["layers"])
    head = np.float64(params["head"])
    head = head / np.linalg.norm(head, axis=0)
    for image, logits in zip(images, computed, strict=True):
        x = np.pad(np.float64(image), (0, certified.WIDTH - 64))
        for W, b, log_q in zip(*layers, strict=True):
            scaling = reference.dense_scaling(W, np.exp(log_q))
            change = reference.gradient(x, W, scaling, b)
            if kind == "reflected":
                change = np.zeros_like(x)
                for _ in range(40):
                    change = 0.5 * reference.gradient(change + x, W, scaling, b)
            x = x - 2.0 * change
        assert_allclose(logits, x @ head + params["bias"], atol=atol)


@pytest.mark.nightly
@pytest.mark.parametrize("name", TRAINED)
def test_certified_accuracy_is_not_above_attacked_accuracy(name, data, trained):
    params, price = trained[name]
    kind = TRAINED[name].kind
    clean, *shares = certified.certified(params, data[1], kind)
    attacks = certified.attacked(params, data[1], kind)
    assert clean > 0.6
    assert shares == sorted(shares, reverse=True)
    by_limit = dict(zip(certified.RADII, shares, strict=True))
    for limit, accuracy in zip(certified.ATTACKS, attacks, strict=True):
        assert by_limit[limit] <= accuracy <= clean
    # Short training certifies, and only a bound has a price.
    assert shares[0] > 0.2
    assert (price > 0.0) == (name == "bound")
