"""The benchmark of an encoder runs, and its peer computes and learns the same."""

import math

import numpy as np
import pytest

from benchmarks import encoder_throughput, torch_peer
from unroll_jax.models import Classifier, Encoder, EncoderConfig

pytestmark = pytest.mark.xdist_group("torch")  # which takes seconds to import


@pytest.fixture
def small(monkeypatch):
    shape = EncoderConfig(20, dim=8, num_layers=2, num_heads=2, hidden_dim=12)
    monkeypatch.setattr(encoder_throughput, "FULL", encoder_throughput.Sizes(shape, batch=3, tokens=5, repeats=2))
    monkeypatch.setattr(encoder_throughput, "RATE", 1e-2)
    return shape


@pytest.mark.usefixtures("small")
def test_tokens_a_second_are_reported_without_peers(capsys, monkeypatch):
    monkeypatch.setattr(torch_peer, "torch_or_none", lambda: None)
    figures = encoder_throughput.main().figures
    ways = [f"{what}_{way}" for what in ("forward", "training") for way in ("unroll_jax", "unroll_jax_unrolled")]
    assert set(figures) == {f"{way}_{unit}" for way in ways for unit in ("seconds", "tokens_a_second")}
    for way in ways:
        assert figures[f"{way}_tokens_a_second"] == pytest.approx(15 / figures[f"{way}_seconds"])
    assert all(value > 0 and math.isfinite(value) for value in figures.values())
    printed = capsys.readouterr().out
    assert "without PyTorch" in printed
    assert "torch eager" not in printed


@pytest.mark.slow
@pytest.mark.oracle("torch", "transformers")
@pytest.mark.usefixtures("small")
def test_the_peer_has_the_same_logits_and_learns_the_same(capsys, monkeypatch, small):
    import torch

    monkeypatch.setattr(torch, "compile", lambda model: model)
    model = Classifier(Encoder(small), 2, hidden="tanh")
    params, peer = encoder_throughput._same_weights(model)
    generator = np.random.default_rng(0)
    batch = {"tokens": generator.integers(1, 20, (3, 5)), "labels": np.array([0, 1, 1])}
    theirs = encoder_throughput.torch_calls(peer, batch)["torch eager"]
    np.testing.assert_allclose(encoder_throughput.forward(model, params, batch)(), theirs["forward"](), atol=1e-6)
    ours, lost = encoder_throughput.training(model, params, batch), []
    for _ in range(6):
        lost.append((ours(), theirs["training"]()))
    np.testing.assert_allclose(*np.transpose(lost), rtol=1e-3)
    assert lost[-1][0] < lost[0][0]
    for what in ("forward", "training"):  # of ours are run without peers
        monkeypatch.setattr(encoder_throughput, what, lambda model, params, batch: lambda: 0.0)
    figures = encoder_throughput.main().figures
    assert figures["training_unroll_jax_unrolled_over_torch_compiled"] > 0
    assert "unroll_jax / torch eager" in capsys.readouterr().out


def test_operations_are_counted_from_the_products_of_a_layer():
    dense = 384 * (3 * 384) + 384 * 384 + 2 * 384 * 1536
    attention = 2 * 64 * 384  # scores and their use, for each token
    assert encoder_throughput.flops(encoder_throughput.FULL) == 2 * 6 * 32 * 64 * (dense + attention)
