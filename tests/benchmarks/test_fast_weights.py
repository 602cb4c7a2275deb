"""The benchmark of fast weights times equal things."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import fast_weights
from unroll_jax import delta_rule


def test_it_prints_times_and_memory_by_length(monkeypatch, capsys):
    monkeypatch.setattr(fast_weights, "QUICK", fast_weights.Sizes(dim=4, lengths=(64, 128), repeats=1))
    figures = fast_weights.main(quick=True, peers=False).figures
    assert {"delta_rule_seconds", "delta_rule_128_mebibytes", "mesa_mebibytes_power"} <= set(figures)
    assert "delta_rule_over_torch_compiled" not in figures
    assert "temporary MiB" in capsys.readouterr().out


@pytest.mark.oracle("torch")
def test_the_peer_computes_the_same_outputs_and_gradients():
    import torch

    arrays = fast_weights._draw(96, 5)
    *sequence, weights = (torch.from_numpy(array.copy()) for array in arrays)
    leaves = [array.requires_grad_() for array in sequence]
    outputs = fast_weights.torch_delta_rule(*leaves, chunk_size=32)
    (outputs * weights).sum().backward()
    expected, pull = jax.vjp(lambda *each: functools.partial(delta_rule, chunk_size=16)(*each)[0], *arrays[:4])
    np.testing.assert_allclose(outputs.detach(), expected, rtol=1e-4, atol=1e-5)
    for leaf, gradient in zip(leaves, pull(jnp.asarray(arrays[4])), strict=True):
        np.testing.assert_allclose(leaf.grad, gradient, rtol=1e-3, atol=1e-4)
