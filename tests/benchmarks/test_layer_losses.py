"""The benchmark of layer losses compares equal things, and measures the memory of a step."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import layer_losses
from benchmarks.layer_losses import BAR, SIZES, LossSizes, step_mebibytes, whole_cross_entropy
from unroll_jax.constrained import chunked_cross_entropy


@pytest.mark.usefixtures("x64")
def test_both_candidates_are_the_same_function():
    generator = np.random.default_rng(0)
    hidden, head = (jnp.asarray(generator.standard_normal(shape)) for shape in ((3, 7, 5), (23, 5)))
    labels = jnp.asarray(generator.integers(23, size=7))
    gradients = [
        jax.value_and_grad(lambda *each, loss=loss: jnp.sum(jnp.sin(loss(*each, labels))), (0, 1))(hidden, head)
        for loss in (chunked_cross_entropy, whole_cross_entropy)
    ]
    chex.assert_trees_all_close(*gradients, rtol=1e-12, atol=1e-14)


def test_it_prints_both_times_and_the_memory_of_both_steps(monkeypatch, capsys):
    monkeypatch.setattr(layer_losses, "QUICK", LossSizes(vocabulary=64, dim=16, num_layers=2, tokens=8))
    figures = layer_losses.main(quick=True).figures
    printed = capsys.readouterr().out
    assert "chunked / whole" in printed
    assert {"chunked_over_whole_1", "chunked_over_whole_2"} < set(figures)
    assert figures["logits_of_a_layer_mib"] == 4 * 8 * 64 / 2**20


@pytest.mark.slow
def test_a_constrained_step_takes_little_more_memory_than_a_plain_one_and_less_than_all_logits_of_a_layer():
    plain_step, constrained = (step_mebibytes(SIZES, constrained=constrained) for constrained in (False, True))
    assert constrained <= BAR * plain_step
    assert constrained < 4 * SIZES.tokens * SIZES.vocabulary / 2**20
