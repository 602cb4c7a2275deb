"""The certified digits at tiny sizes: parity with NumPy, certificates and attacks, and
the tables."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from papers import certified
from tests.energies import potential_reference as reference

PLAIN, OFFSET, _, BOUND = certified.CHOSEN


@pytest.fixture(scope="module")
def data():
    train, _, (images, labels) = certified.digits()
    return train, (images[:40], labels[:40])


@pytest.fixture(scope="module")
def trained(data):
    """Two short runs: of the margin loss, and under the bound."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certified, "STEPS", 60)
        return {
            setting.name: certified.train(setting, data[0], 0)
            for setting in (OFFSET, BOUND)
        }


def test_splits_are_disjoint_and_pixels_in_the_unit_interval(data):
    parts = certified.digits()
    assert [len(labels) for _, labels in parts] == [1197, 200, 400]
    images = np.concatenate([images for images, _ in parts])
    assert images.min() == 0.0
    assert images.max() == 1.0


@pytest.mark.slow
def test_logits_are_those_of_numpy(data, trained):
    images = data[1][0][:3]
    params = trained[OFFSET.name][0]
    computed = certified.logits_of(params, jnp.asarray(images), OFFSET)
    layers = jax.tree.map(np.float64, params["layers"])
    head = np.float64(params["head"])
    head = head / np.linalg.norm(head, axis=0)
    for image, logits in zip(images, computed, strict=True):
        z = np.pad(np.float64(image), (0, certified.WIDTH - 64))
        for W, b, log_q in zip(*layers, strict=True):
            scaling = reference.dense_scaling(W, np.exp(log_q))
            z = z - 2.0 * reference.gradient(z, W, scaling, b)
        np.testing.assert_allclose(logits, z @ head + params["bias"], atol=1e-4)


@pytest.mark.slow
def test_certified_accuracy_is_not_above_attacked_accuracy(data, trained):
    for setting in (OFFSET, BOUND):
        params = trained[setting.name][0]
        clean, *shares = certified.certified(params, data[1], setting)
        attacks = certified.attacked(params, data[1], setting)
        assert clean > 0.6
        assert shares == sorted(shares, reverse=True)
        by_limit = dict(zip(certified.RADII, shares, strict=True))
        for limit, accuracy in zip(certified.ATTACKS, attacks, strict=True):
            assert by_limit[limit] <= accuracy <= clean
        assert shares[0] > 0.2
    assert trained[BOUND.name][1] > 0.0
    assert trained[OFFSET.name][1] == 0.0


def test_the_bound_of_plain_networks_multiplies_norms(data):
    params = certified.init(jax.random.key(0), PLAIN)
    bound = certified.bound_of(params, data[1][0], PLAIN, "float32")
    norms = [np.linalg.norm(W, 2) for W in np.float64(params["layers"].W)]
    np.testing.assert_allclose(bound.constant, np.prod(norms), rtol=1e-9)


def test_the_command_has_a_row_for_every_setting(monkeypatch, capsys):
    monkeypatch.setattr(certified, "train", lambda setting, data, seed: (seed, 2.0))

    def figures(params, *_):
        return np.full(5, 0.5 + 0.1 * params)

    monkeypatch.setattr(certified, "certified", figures)
    monkeypatch.setattr(certified, "attacked", lambda *given: figures(*given)[:3])
    certified.main(["--seeds", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(certified.CHOSEN)
    assert "55.0 (50.0 to 60.0)" in lines[2]


def test_trials_hold_the_chosen_settings():
    trials = {dataclasses.replace(trial, name="") for trial in certified.trials()}
    assert {
        dataclasses.replace(chosen, name="") for chosen in certified.CHOSEN
    } <= trials
