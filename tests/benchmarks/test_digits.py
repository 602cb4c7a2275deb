"""The benchmarks of digits and of general constraints, at tiny sizes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import digits, general_constraints
from unroll_jax.constrained import suggest_alpha

TINY = digits.Setting(layers=2, width=8, heads=2, batch=4, steps=3, seeds=2)


def test_every_layer_is_read_by_one_readout():
    params = digits.init(jax.random.key(0), TINY)
    images, labels, *_ = digits.digits()
    logits = np.asarray(digits.layer_logits(params, images[:5], TINY.heads), float)
    logs = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
    expected = -logs[:, np.arange(5), labels[:5]].mean(axis=1)
    losses = digits.layer_losses(params, images[:5], labels[:5], TINY.heads)
    assert losses.shape == (3,)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_weights_of_zero_are_plain_training_and_every_method_trains():
    data = digits.digits()
    plain = digits.train(digits.Method(), TINY, data)
    assert [part.shape for part in plain[:3]] == [(2, 3)] * 3
    unweighted = digits.train(digits.Method(weights=(0.0, 0.0, 1.0)), TINY, data)
    np.testing.assert_array_equal(plain[2], unweighted[2])
    method = digits.methods(2)["cumulative, Adam .2"](None)
    *_, multipliers, sums = digits.train(method, dataclasses.replace(TINY, seeds=1), data)
    assert multipliers.shape == (1, 3)
    assert sums[0] >= multipliers.sum() > 0.0
    suggested = digits.methods(2)["cumulative, suggest_alpha, Adam .01"](np.array([2.5, 1.0, 0.5]))
    alpha = suggest_alpha([2.5, 1.0, 0.5], reference=digits.CHANCE)
    bounds = suggested.constraints.bounds(jnp.ones(3))
    np.testing.assert_allclose(bounds, digits.CHANCE * (1.0 - alpha) ** np.arange(3), rtol=1e-5)


def test_general_constraints_print_every_case(capsys, monkeypatch):
    setting = general_constraints.QUICK._replace(inputs=8, width=8, batch=6, repeats=2)
    monkeypatch.setattr(general_constraints, "QUICK", setting)
    record = general_constraints.main(quick=True, peers=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[1:6]] == [
        "no constraints",
        "dense, 1",
        "dense, 100",
        "indexed, 1",
        "indexed, 100",
    ]
    assert record.figures["ours, dense, 100 over plain"] > 0.0
