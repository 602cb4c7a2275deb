"""The benchmark of constraints: its models read what they say, its step is Cooper's, and it judges by its bars."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks import constrained_step
from benchmarks.constrained_step import cooper_peer, problems, steps
from benchmarks.constrained_step.problems import Sizes, UnrolledSizes, decoder, encoder, unrolled_transformer
from benchmarks.constrained_step.steps import compiled_step, repeated
from benchmarks.language_model import LanguageModel, cross_entropy, matmul_flops_a_token

UNROLLED = UnrolledSizes(num_layers=2, dim=4, tokens=3, batch=2)
TINY = Sizes(num_layers=3, dim=8, heads=2, hidden=12, vocabulary=11, tokens=8, batch=2, chunk=2)
PROBLEMS = {
    "unrolled": lambda: unrolled_transformer(UNROLLED),
    "encoder": lambda: encoder(TINY),
    "decoder": lambda: decoder(TINY),
    "decoder, sampled": lambda: decoder(TINY, share=4),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_plain_and_constrained_steps_have_one_objective(name):
    problem = PROBLEMS[name]()

    def both(key, batch):
        params = problem.init(key)
        return problem.last_loss(params, batch), *problem.layer_losses(params, batch, jnp.int32(0))

    plain, last, losses = jax.jit(both)(jax.random.key(1), problem.batch)
    np.testing.assert_allclose(plain, last, rtol=1e-5)
    assert losses.shape == (problem.num_constraints + 1,)
    assert problem.constraints(losses).shape == (problem.num_constraints,)
    if name != "decoder, sampled":
        assert losses[-1] == last


def test_cross_entropy_in_chunks_is_that_of_all_logits(getkey):
    y, kernel = jax.random.normal(getkey(), (3, 2, 6, 4)), jax.random.normal(getkey(), (4, 5))
    labels = jax.random.randint(getkey(), (2, 6), 0, 5)

    def whole(kernel):
        normed = y / jnp.sqrt(jnp.mean(y**2, -1, keepdims=True) + 1e-6)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(normed @ kernel), labels[None, ..., None], -1)
        return -jnp.mean(chosen, axis=(1, 2, 3))

    def in_chunks(kernel):
        return cross_entropy({"scale": jnp.ones(4), "kernel": kernel}, y, labels, chunk=2)

    for differentiate in (lambda f: f, jax.jacobian):
        found, expected = (jax.jit(differentiate(f))(kernel) for f in (in_chunks, whole))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_samples_visit_every_position_and_estimate_the_same_losses():
    whole, sampled = decoder(TINY), decoder(TINY, share=4)
    params = jax.jit(whole.init)(jax.random.key(1))
    of_sample = jax.jit(sampled.layer_losses)
    found = np.stack([of_sample(params, sampled.batch, jnp.int32(step))[1] for step in range(24)])
    distinct = np.unique(found.round(5), axis=0)
    assert len(distinct) == 4  # one for each offset
    expected = jax.jit(whole.layer_losses)(params, whole.batch, jnp.int32(0))[1]
    np.testing.assert_allclose(distinct.mean(axis=0), expected, rtol=1e-4)


@pytest.mark.parametrize("causal", [True, False])
def test_a_causal_model_alone_does_not_see_later_tokens(causal, getkey):
    tokens = jax.random.randint(getkey(), (1, 6), 0, 11)
    model = LanguageModel(11, 11, 8, 2, heads=2, kv_heads=1, hidden=12, causal=causal)
    read = lambda readout, y: jnp.sum(y[..., :3, :] ** 2, axis=(-3, -2, -1))  # noqa: E731
    params = jax.jit(lambda key: model.init(key, tokens, read))(getkey())
    run = jax.jit(lambda params, tokens: model.apply(params, tokens, read)[0])
    changed = [run(params, tokens.at[0, 4].set(token)) for token in (1, 2)]
    assert (changed[0] == changed[1]) == causal


def test_operations_are_those_of_the_weights_and_of_attention():
    model = LanguageModel(11, 7, 8, 3, heads=4, kv_heads=2, hidden=12)
    shapes = jax.eval_shape(
        lambda: model.init(jax.random.key(0), jnp.zeros((1, 5), jnp.int32), lambda _, y: jnp.sum(y))
    )
    matrices = [math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes["params"]["layers"]) if leaf.ndim == 3]
    layers, readout = matmul_flops_a_token(model, n=5)
    assert layers == 2 * sum(matrices) + 3 * 2 * 2 * 5 * 8
    assert readout == 2 * 8 * 7


def test_the_constrained_step_is_adam_on_the_weighted_losses_then_ascent():
    problem = PROBLEMS["decoder"]()
    step = compiled_step(problem, constrained=True)
    params, batch = jax.device_get(step.state.params), step.batch
    state, _, losses = step.program(step.state, batch)
    violations = losses[1:] - (1.0 - problems.ALPHA) * losses[:-1]
    np.testing.assert_allclose(state.dual.multipliers, np.maximum(1.0 + steps.DUAL_RATE * violations, 0.0), rtol=1e-6)
    # All multipliers are 1: f_0 weighs -(1 - alpha), those between alpha, and f_L 2.
    weights = np.array([problems.ALPHA - 1.0, *[problems.ALPHA] * (len(losses) - 2), 2.0], np.float32)
    weighted = lambda params: jnp.sum(weights * problem.layer_losses(params, batch, jnp.int32(0))[1])  # noqa: E731
    gradients = jax.jit(jax.grad(weighted))(params)
    means = optax.tree.get(state.opt_state, "mu")
    for found, gradient in zip(jax.tree.leaves(means), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(found, 0.1 * gradient, rtol=1e-3, atol=1e-7)


@pytest.mark.peers
def test_cooper_does_the_same_steps(monkeypatch):
    if cooper_peer.cooper_or_none() is None:
        pytest.skip("the peers extra is not installed")
    for module in (steps, cooper_peer):
        monkeypatch.setattr(module, "PRIMAL_RATE", 1e-2)
        monkeypatch.setattr(module, "DUAL_RATE", 0.5)
    step = compiled_step(unrolled_transformer(UNROLLED), constrained=True)
    params, state = jax.device_get(step.state.params), step.state
    run, multipliers, layers = cooper_peer.constrained_loop(params, step.batch, compile_model=False)
    for _ in range(6):
        state, _, losses = step.program(state, step.batch)
        np.testing.assert_allclose(losses, run(), rtol=1e-4)
        np.testing.assert_allclose(state.dual.multipliers, multipliers.detach(), rtol=1e-4)
    for stack, of_peer in zip(state.params["params"]["layers"], zip(*layers, strict=True), strict=True):
        np.testing.assert_allclose(stack, np.stack([weight.detach() for weight in of_peer]), atol=1e-4)


@pytest.mark.peers
def test_the_plain_peer_minimises_the_last_loss():
    if cooper_peer.cooper_or_none() is None:
        pytest.skip("the peers extra is not installed")
    step = compiled_step(unrolled_transformer(UNROLLED), constrained=False)
    peer = cooper_peer.plain_loop(jax.device_get(step.state.params), step.batch, compile_model=False)
    ours = repeated(step)
    for _ in range(3):
        np.testing.assert_allclose(ours()[0], peer(), rtol=1e-5)


def _shrink(monkeypatch):
    values = {"REPEATS": dict.fromkeys(constrained_step.REPEATS, 1), "UNROLLED": UNROLLED, "ENCODER": TINY,
              "DECODER": TINY, "SHARE": 4, "matmul_rate": lambda *sizes: 1e9}  # fmt: skip
    for name, value in values.items():
        monkeypatch.setattr(constrained_step, name, value)


def test_every_ratio_is_reported_beside_its_bar_and_floor(capsys, monkeypatch):
    _shrink(monkeypatch)
    monkeypatch.setattr(constrained_step, "cooper_or_none", lambda: None)
    figures = constrained_step.main()
    printed = capsys.readouterr().out
    assert "without Cooper" in printed
    assert printed.count("constrained / erm, ") == printed.count("floor of the ratio") == 4
    assert printed.count("bar 1.25") == 2
    ratios = [value for key, value in figures.items() if key.endswith("_ratio")]
    assert len(ratios) == 12
    assert all(value > 0.0 and math.isfinite(value) for value in ratios)


def test_the_ratio_to_cooper_is_ours_over_its(capsys):
    median = {"ours": 1.0, "torch erm, compiled": 2.0, "torch Cooper, eager": 5.0, "torch Cooper, compiled": 4.0}
    found = constrained_step._against_cooper("ours", median)
    assert found == {"over torch Cooper, eager": 0.2, "over torch Cooper, compiled": 0.25, "torch_time_ratio": 2.0}
    assert "constrained, ours / torch Cooper, compiled: 0.250 (faster)" in capsys.readouterr().out


def test_bars_are_judged(capsys):
    problem = PROBLEMS["decoder"]()
    label = problem.name
    time, memory, floors = ({"erm": 1.0, label: value} for value in (1.3, 1.0, 3.0))
    constrained_step._judged("decoder", problem, time, memory, floors)
    printed = capsys.readouterr().out
    assert "time 1.300 (bar 1.25, not met)" in printed
    assert "temporary memory 1.000 (bar 1.10, met)" in printed
    assert "no program that reads every position" in printed
