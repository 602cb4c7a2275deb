"""The benchmark of constraints: its models read the named positions, its step is
Cooper's, and its bars hold."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from benchmarks import constrained_step
from benchmarks.constrained_step import cooper_peer, steps
from benchmarks.constrained_step.problems import (
    Sizes,
    UnrolledSizes,
    decoder,
    encoder,
    unrolled_transformer,
)
from benchmarks.constrained_step.steps import compiled_step
from benchmarks.language_model import cross_entropy
from unroll_jax import multipliers_of

UNROLLED = UnrolledSizes(num_layers=2, dim=4, tokens=3, batch=2)
TINY = Sizes(
    num_layers=3, dim=8, heads=2, hidden=12, vocabulary=11, tokens=8, batch=2, chunk=2
)
PROBLEMS = {
    "unrolled": lambda: unrolled_transformer(UNROLLED),
    "encoder": lambda: encoder(TINY),
    "decoder": lambda: decoder(TINY),
    "decoder, sampled": lambda: decoder(TINY, share=4),
}
STEPS = 24  # of a sample, which are to visit every position


@pytest.fixture(scope="module")
def read():
    @functools.cache
    def run(name):
        problem = PROBLEMS[name]()

        def all_steps(key, batch):
            params = problem.init(key)
            losses = lambda step: problem.layer_losses(params, batch, step)
            return problem.last_loss(params, batch), *jax.lax.map(
                losses, jnp.arange(STEPS, dtype=jnp.int32)
            )

        return problem, *jax.device_get(
            jax.jit(all_steps)(jax.random.key(1), problem.batch)
        )

    return run


@pytest.mark.parametrize("name", PROBLEMS)
def test_plain_and_constrained_steps_have_one_objective(name, read):
    problem, plain, last, losses = read(name)
    assert_allclose(np.full(STEPS, plain), last, rtol=1e-5)
    assert losses.shape == (STEPS, len(problem.constraints) + 1)
    if name != "decoder, sampled":
        assert losses[0, -1] == last[0]


def test_cross_entropy_in_chunks_is_that_of_all_logits():
    generator = np.random.default_rng(0)
    y = jnp.asarray(generator.normal(size=(3, 2, 6, 4)), jnp.float32)
    kernel = jnp.asarray(generator.normal(size=(4, 5)), jnp.float32)
    labels = jnp.asarray(generator.integers(0, 5, (2, 6)))

    def in_chunks(kernel):
        readout = {"scale": jnp.ones(4), "kernel": kernel}
        return cross_entropy(readout, y, labels, chunk=2)

    def whole(kernel):
        normed = y / jnp.sqrt(jnp.mean(y**2, -1, keepdims=True) + 1e-6)
        logs = jax.nn.log_softmax(normed @ kernel) * jax.nn.one_hot(labels, 5)
        return -jnp.mean(jnp.sum(logs, axis=-1), axis=(1, 2))

    for actual, expected in (
        (in_chunks, whole),
        (jax.jacobian(in_chunks), jax.jacobian(whole)),
    ):
        assert_allclose(actual(kernel), expected(kernel), rtol=1e-5, atol=1e-6)


def test_samples_visit_every_position_and_estimate_the_same_losses(read):
    distinct = np.unique(read("decoder, sampled")[-1].round(5), axis=0)
    assert len(distinct) == 4  # one for each offset
    assert_allclose(distinct.mean(axis=0), read("decoder")[-1][0], rtol=1e-4)


@pytest.mark.oracle("torch", "cooper")
def test_cooper_does_the_same_steps(monkeypatch):
    for module in (steps, cooper_peer):
        monkeypatch.setattr(module, "PRIMAL_RATE", 1e-2)
        monkeypatch.setattr(module, "DUAL_RATE", 0.5)
    step = compiled_step(unrolled_transformer(UNROLLED), constrained=True)
    params, state = jax.device_get(step.state.params), step.state
    run, multipliers, layers = cooper_peer.constrained_loop(
        params, step.batch, compile_model=False
    )
    for _ in range(6):
        state, _, losses = step.program(state, step.batch)
        assert_allclose(losses, run(), rtol=1e-4)
        assert_allclose(
            list(multipliers_of(state.opt_state).values()),
            multipliers.detach(),
            rtol=1e-4,
        )
    for stack, of_peer in zip(
        state.params["params"]["layers"], zip(*layers, strict=True), strict=True
    ):
        assert_allclose(
            stack, np.stack([weight.detach() for weight in of_peer]), atol=1e-4
        )


def test_every_ratio_is_measured(monkeypatch):
    made = {
        kind: compiled_step(decoder(TINY), constrained=kind) for kind in (False, True)
    }
    # a step consumes its own
    states = {kind: jax.device_get(step.state) for kind, step in made.items()}

    def copied(problem, constrained):
        return made[constrained]._replace(state=jax.device_put(states[constrained]))

    for name, value in {
        "FULL": constrained_step.Setting(UNROLLED, TINY, TINY, 4, repeats=(1, 1, 1)),
        "matmul_rate": lambda *sizes: 1e9,
        "compiled_step": copied,
        "cooper_or_none": lambda: None,
    }.items():
        monkeypatch.setattr(constrained_step, name, value)
    figures = constrained_step.main().figures
    ratios = [value for key, value in figures.items() if key.endswith("_ratio")]
    assert len(ratios) == 12
    assert all(value > 0.0 and math.isfinite(value) for value in ratios)
