"""The benchmark of video steps: DUST in PyTorch is DUST here, with its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import torch_peer, video_step
from benchmarks.constrained_step.problems import UnrolledSizes
from benchmarks.video_step import Sparse, dust, torch_dust_loop, torch_dust_loss

SIZES = UnrolledSizes(num_layers=2, dim=16, tokens=3, batch=2)


@pytest.fixture(scope="module")
def problem():
    """A small one, and parameters that are no cosines."""
    problem = dust(SIZES, Sparse(curvature=2.5))
    params = jax.jit(problem.init)(jax.random.key(0))
    noise = lambda leaf: leaf + 0.1 * jax.random.normal(jax.random.key(1), leaf.shape)  # noqa: E731
    return problem, jax.tree.map(noise, params)


def test_both_libraries_compute_one_loss_and_one_gradient(problem):
    torch = pytest.importorskip("torch", reason="the peer is PyTorch")
    problem, params = problem
    loss, slope = jax.jit(jax.value_and_grad(problem.last_loss))(params, problem.batch)
    stack = torch.from_numpy(np.array(params["params"]["layers"].D))
    dictionaries = [each.clone().requires_grad_() for each in stack]
    noisy, clean = (torch.from_numpy(np.array(problem.batch[name])) for name in ("noisy", "clean"))
    peer = torch_dust_loss(dictionaries, noisy, clean, Sparse(curvature=2.5))
    peer.backward()
    np.testing.assert_allclose(float(loss), peer.item(), rtol=1e-5)
    found = np.stack([each.grad.numpy() for each in dictionaries])
    np.testing.assert_allclose(slope["params"]["layers"].D, found, rtol=1e-3, atol=1e-4)


def test_the_peer_s_loop_lowers_its_loss(problem, monkeypatch):
    torch = pytest.importorskip("torch", reason="the peer is PyTorch")
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    problem, params = problem
    run = torch_dust_loop(params, problem.batch, Sparse(curvature=2.5))
    losses = [run().item() for _ in range(20)]
    assert losses[-1] < losses[0]


def test_it_prints_a_row_a_step_and_its_floor(monkeypatch, capsys):
    monkeypatch.setattr(video_step, "UNROLLED", SIZES)
    monkeypatch.setattr(video_step, "FEW", 2)
    monkeypatch.setattr(torch_peer, "torch_or_none", lambda: None)
    record = video_step.main(quick=True)
    printed = capsys.readouterr().out
    for name in ("UT", "DUST", "DUST, c moves"):
        assert name in printed
        assert record.floors[f"{name}_seconds"]["seconds"] > 0.0
    assert jnp.isfinite(record.figures["DUST_seconds"])
