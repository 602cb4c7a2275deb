"""The benchmark of video steps: DUST in PyTorch is DUST here, with its gradient."""

import math

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
    """A small one, and parameters other than cosines."""
    problem = dust(SIZES, Sparse(curvature=2.5))
    params = jax.jit(problem.init)(jax.random.key(0))
    noise = lambda leaf: leaf + 0.1 * jax.random.normal(jax.random.key(1), leaf.shape)  # noqa: E731
    return problem, jax.tree.map(noise, params)


@pytest.mark.oracle("torch")
def test_both_libraries_compute_one_loss_and_one_gradient(problem):
    import torch

    problem, params = problem
    loss, slope = jax.jit(jax.value_and_grad(problem.last_loss))(params, problem.batch)
    stack = torch.from_numpy(np.array(params["params"]["layers"].D))
    dictionaries = [each.clone().requires_grad_() for each in stack]
    noisy, clean = (torch.from_numpy(np.array(problem.batch[name])) for name in ("noisy", "clean"))
    peer = torch_dust_loss(dictionaries, noisy, clean, Sparse(curvature=2.5))
    peer.backward()
    np.testing.assert_allclose(float(loss), peer.item(), rtol=1e-5)
    gradient = np.stack([each.grad.numpy() for each in dictionaries])
    np.testing.assert_allclose(slope["params"]["layers"].D, gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.oracle("torch")
def test_the_peer_s_loop_lowers_its_loss(problem, monkeypatch):
    import torch

    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    problem, params = problem
    run = torch_dust_loop(params, problem.batch, Sparse(curvature=2.5))
    losses = [run().item() for _ in range(20)]
    assert losses[-1] < losses[0]


def products(jaxpr):
    """Operations of all matrix products of a program."""
    count = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            ((contracted, _), _), left = equation.params["dimension_numbers"], equation.invars[0].aval
            width = math.prod(left.shape[axis] for axis in contracted)
            count += 2.0 * math.prod(equation.outvars[0].aval.shape) * width
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda one: hasattr(one, "jaxpr")):
            inner = getattr(inner, "jaxpr", inner)
            count += times * products(inner) if hasattr(inner, "eqns") else 0.0
    return count


def test_a_curvature_that_moves_costs_the_products_of_its_bounds_and_the_floor_has_them():
    counted, told = [], []
    for curvature in (2.5, None):
        problem = dust(SIZES, Sparse(curvature=curvature))
        params = jax.eval_shape(problem.init, jax.random.key(0))
        program = jax.make_jaxpr(jax.value_and_grad(problem.last_loss))(params, problem.batch)
        counted.append(products(program.jaxpr))
        told.append(problem.flops[0])
    assert counted[1] - counted[0] == told[1] - told[0] > 0.0
    assert told[0] <= counted[0], "it is a floor"


def test_it_prints_a_row_a_step_and_its_floor(monkeypatch, capsys):
    monkeypatch.setattr(video_step, "UNROLLED", SIZES)
    monkeypatch.setattr(video_step, "FEW", 2)
    monkeypatch.setattr(torch_peer, "torch_or_none", lambda: None)
    record = video_step.main(quick=True)
    printed = capsys.readouterr().out
    for name in ("UT", "DUST", "DUST, c moves"):
        assert name in printed
        assert record.floors[f"{name}_seconds"]["seconds"] > 0.0
    assert "floor ms" in printed
    assert jnp.isfinite(record.figures["DUST_seconds"])
