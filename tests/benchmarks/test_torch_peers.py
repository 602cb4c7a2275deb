"""The PyTorch peers compute and learn the timed functions, and counts of operations
match the products."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import unroll_jax as uj
from benchmarks import encoder_throughput, fast_weights, torch_peer, transformer_forward
from benchmarks.constrained_step.problems import UnrolledSizes
from benchmarks.programs import product_flops
from benchmarks.video_step import Sparse, dust, torch_dust_loss
from unroll_jax.models import Classifier, Encoder, EncoderConfig

pytestmark = pytest.mark.xdist_group("torch")  # which takes seconds to import


@pytest.mark.oracle("torch")
def test_the_transformer_of_the_peer_computes_the_same_numbers():
    import torch

    layer, generator = uj.transformer(6), np.random.default_rng(0)
    y, x = (generator.uniform(size=(3, 7, 6)).astype(np.float32) for _ in range(2))

    @jax.jit
    def run(key):
        params = layer.init(key)

        def loss(params):
            last, trace = uj.unroll(
                layer, params, jnp.asarray(y), jnp.asarray(x), num_layers=4
            )
            return jnp.mean(last**2), (last, trace.energy)

        return params, *jax.grad(loss, has_aux=True)(params)

    params, gradients, (last, energies) = run(jax.random.key(0))
    W_a, W_f, *arrays = (
        torch.from_numpy(np.array(a)) for a in (params.W_a, params.W_f, y, x)
    )
    function = functools.partial(torch_peer.forward, num_layers=4)
    of_W_a, of_W_f, expected = torch_peer.gradients(
        function, W_a.requires_grad_(), W_f.requires_grad_(), *arrays
    )
    assert_allclose(energies, expected, rtol=1e-4)
    assert_allclose(gradients.W_a, of_W_a, rtol=1e-3, atol=1e-6)
    assert_allclose(gradients.W_f, of_W_f, rtol=1e-3, atol=1e-6)
    assert_allclose(last, function(W_a, W_f, *arrays)[0].detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.oracle("torch", "transformers")
def test_the_encoder_of_the_peer_learns_the_same(monkeypatch):
    import torch

    shape = EncoderConfig(20, dim=8, num_layers=2, num_heads=2, hidden_dim=12)
    monkeypatch.setattr(encoder_throughput, "RATE", 1e-2)
    monkeypatch.setattr(torch, "compile", lambda model: model)
    model = Classifier(Encoder(shape), 2, hidden="tanh")
    params, peer = encoder_throughput._same_weights(model)
    batch = {
        "tokens": np.random.default_rng(0).integers(1, 20, (3, 5)),
        "labels": np.array([0, 1, 1]),
    }
    theirs = encoder_throughput.torch_calls(peer, batch)["torch eager"]
    assert_allclose(
        encoder_throughput.forward(model, params, batch)(),
        theirs["forward"](),
        atol=1e-6,
    )
    ours, lost = encoder_throughput.training(model, params, batch), []
    for _ in range(6):
        lost.append((ours(), theirs["training"]()))
    assert_allclose(*np.transpose(lost), rtol=1e-3)
    assert lost[-1][0] < lost[0][0]


@pytest.mark.oracle("torch")
def test_fast_weights_of_the_peer_are_the_same():
    import torch

    arrays = fast_weights._draw(96, 5)
    *sequence, weights = (torch.from_numpy(array.copy()) for array in arrays)
    leaves = [array.requires_grad_() for array in sequence]
    outputs = fast_weights.torch_delta_rule(*leaves, chunk_size=32)
    (outputs * weights).sum().backward()
    expected, pull = jax.vjp(
        lambda *each: functools.partial(uj.delta_rule, chunk_size=16)(*each)[0],
        *arrays[:4],
    )
    assert_allclose(outputs.detach(), expected, rtol=1e-4, atol=1e-5)
    for leaf, gradient in zip(leaves, pull(jnp.asarray(arrays[4])), strict=True):
        assert_allclose(leaf.grad, gradient, rtol=1e-3, atol=1e-4)


SIZES = UnrolledSizes(num_layers=2, dim=16, tokens=3, batch=2)


@pytest.fixture(scope="module")
def problem():
    problem = dust(SIZES, Sparse(curvature=2.5))
    params = jax.jit(problem.init)(jax.random.key(0))
    noise = lambda leaf: leaf + 0.1 * jax.random.normal(jax.random.key(1), leaf.shape)
    return problem, jax.tree.map(noise, params)


@pytest.mark.oracle("torch")
def test_dust_of_the_peer_has_the_same_loss_and_gradient(problem):
    import torch

    problem, params = problem
    loss, slope = jax.jit(jax.value_and_grad(problem.last_loss))(params, problem.batch)
    stack = torch.from_numpy(np.array(params["params"]["layers"].D))
    dictionaries = [each.clone().requires_grad_() for each in stack]
    noisy, clean = (
        torch.from_numpy(np.array(problem.batch[name])) for name in ("noisy", "clean")
    )
    peer = torch_dust_loss(dictionaries, noisy, clean, Sparse(curvature=2.5))
    peer.backward()
    assert_allclose(float(loss), peer.item(), rtol=1e-5)
    gradient = np.stack([each.grad.numpy() for each in dictionaries])
    assert_allclose(slope["params"]["layers"].D, gradient, rtol=1e-3, atol=1e-4)


def test_the_floor_has_the_products_of_a_moving_curvature():
    counted, told = [], []
    for curvature in (2.5, None):
        problem = dust(SIZES, Sparse(curvature=curvature))
        params = jax.eval_shape(problem.init, jax.random.key(0))
        program = jax.make_jaxpr(jax.value_and_grad(problem.last_loss))(
            params, problem.batch
        )
        counted.append(product_flops(program.jaxpr))
        told.append(problem.flops[0])
    assert counted[1] - counted[0] == told[1] - told[0] > 0.0
    assert told[0] <= counted[0], "it is a floor"


def test_operations_are_counted_from_the_products_of_a_layer():
    products = 2 * 230 * 300 * 300 + 2 * 230 * 230 * 300  # two each of d x d and n x n
    assert transformer_forward.flops_forward(
        transformer_forward.FULL, 1
    ) == pytest.approx(12 * 2 * products)
    dense = 384 * (3 * 384) + 384 * 384 + 2 * 384 * 1536
    attention = 2 * 64 * 384  # scores and their use, for each token
    assert encoder_throughput.flops(encoder_throughput.FULL) == 2 * 6 * 32 * 64 * (
        dense + attention
    )
