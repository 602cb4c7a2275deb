"""The benchmark of a whole transformer runs, and its peer computes the same."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from benchmarks import torch_peer, transformer_forward

pytestmark = pytest.mark.xdist_group("torch")  # which takes seconds to import


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(transformer_forward, "FULL", transformer_forward.Sizes(2, 4, 5, repeats=((1, 2), (2, 2))))
    monkeypatch.setattr(transformer_forward, "matmul_rate", lambda *sizes: 1e9)


@pytest.mark.usefixtures("small")
def test_the_cost_of_a_transformer_is_reported_without_peers(capsys, monkeypatch):
    monkeypatch.setattr(torch_peer, "torch_or_none", lambda: None)
    record = transformer_forward.main()
    figures = record.figures
    assert {"batch_2_gradient_over_plain", "batch_1_forward_recorded_seconds"} <= set(figures)
    forward, gradient = (record.floors[f"batch_2_{what}_plain_seconds"]["flops"] for what in ("forward", "gradient"))
    assert gradient == 3.0 * forward
    assert all(value > 0 and math.isfinite(value) for value in figures.values())
    printed = capsys.readouterr().out
    assert "without PyTorch" in printed
    assert "torch eager" not in printed


@pytest.mark.oracle("torch")
@pytest.mark.usefixtures("small")
def test_the_peers_are_timed_where_they_are_installed(capsys, monkeypatch):
    monkeypatch.setattr(
        torch_peer, "compiled", lambda depth: 2 * (functools.partial(torch_peer.forward, num_layers=2),)
    )
    for what in ("_forward", "_gradient"):  # of ours are run without peers
        monkeypatch.setattr(transformer_forward, what, lambda arrays, sizes, record: lambda: None)
    figures = transformer_forward.main().figures
    assert figures["batch_2_gradient_over_torch_compiled"] > 0
    printed = capsys.readouterr().out
    assert "recorded / torch eager" in printed
    assert "the same allocator" in printed
    assert "batch_2_gradient_over_torch_compiled" not in transformer_forward.main(peers=False).figures


@pytest.mark.oracle("torch")
def test_the_peer_computes_the_same_numbers():
    import torch

    layer, generator = uj.transformer(6), np.random.default_rng(0)
    y, x = (generator.uniform(size=(3, 7, 6)).astype(np.float32) for _ in range(2))

    @jax.jit
    def run(key):
        params = layer.init(key)

        def loss(params):
            last, trace = uj.unroll(layer, params, jnp.asarray(y), jnp.asarray(x), num_layers=4)
            return jnp.mean(last**2), (last, trace.energy)

        return params, *jax.grad(loss, has_aux=True)(params)

    params, gradients, (last, energies) = run(jax.random.key(0))
    W_a, W_f, *arrays = (torch.from_numpy(np.array(a)) for a in (params.W_a, params.W_f, y, x))
    function = functools.partial(torch_peer.forward, num_layers=4)
    of_W_a, of_W_f, expected = torch_peer.gradients(function, W_a.requires_grad_(), W_f.requires_grad_(), *arrays)
    np.testing.assert_allclose(energies, expected, rtol=1e-4)
    np.testing.assert_allclose(gradients.W_a, of_W_a, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(gradients.W_f, of_W_f, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(last, function(W_a, W_f, *arrays)[0].detach(), rtol=1e-4, atol=1e-5)


def test_operations_are_counted_from_the_products_of_a_layer():
    products = 2 * 230 * 300 * 300 + 2 * 230 * 230 * 300  # two each of d x d and n x n
    assert transformer_forward.flops_forward(transformer_forward.FULL, 1) == pytest.approx(12 * 2 * products)
