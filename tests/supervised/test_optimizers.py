"""The schedules and rules of a configuration, against their formulas."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.reference import compiled
from unroll_jax.train.config.run import (
    DecayedPrimalConfig,
    OptimizerConfig,
    PrimalConfig,
)
from unroll_jax.train.core.optimizers import learning_rates, make_optimizer

STEPS, EPOCH = 100, 5
STEP = np.arange(STEPS)


# a line to the first rate
WARM = 2.0 * (1 + STEP * 19 / 20) / 20
SCHEDULES = {
    "constant": ({}, 2.0 + 0.0 * STEP),
    "linear": ({}, 2.0 * (1.0 - STEP / STEPS)),
    "poly": ({}, 2.0 * (1.0 - STEP / STEPS) ** 0.9),
    "cosine": ({}, 1.0 + np.cos(np.pi * STEP / STEPS)),
    "a warm-up": (
        {"schedule": "cosine", "warmup_share": 0.2},
        np.where(STEP < 20, WARM, 1.0 + np.cos(np.pi * (STEP - 20) / 80)),
    ),
    "staircase": ({"decay": 0.5, "decay_every": 3}, 2.0 * 0.5 ** (STEP // 15)),
}


def test_a_schedule_is_its_formula():
    @compiled
    def rates(steps):
        found = {}
        for name, (options, _) in SCHEDULES.items():
            options = {"learning_rate": 2.0, "schedule": name, **options}
            config = OptimizerConfig(**options)
            sizes = {"num_steps": STEPS, "steps_an_epoch": EPOCH}
            found[name] = jax.vmap(learning_rates(config, **sizes))(steps)
        return found

    for name, found in rates(np.float32(STEP)).items():
        _, expected = SCHEDULES[name]
        close = {"rtol": 1e-5, "atol": 1e-6, "err_msg": name}
        assert_allclose(found, expected, **close)


RATE: dict[str, Any] = {"learning_rate": 0.1, "schedule": "constant"}
DECAYED = DecayedPrimalConfig(
    **RATE, warmup_share=0.0, clip_norm=None, weight_decay=0.5
)
# Options, a gradient and weights; the steps with that gradient, and how close. Adam's
# first step is the sign.
RULES = {
    "sgd adds the decay to the gradient": (
        OptimizerConfig(name="sgd", weight_decay=0.5, **RATE), [3.0], [2.0], [[-0.1 * (3.0 + 0.5 * 2.0)]], 1e-6,
    ),
    "adam takes it apart": (
        OptimizerConfig(name="adam", weight_decay=0.5, **RATE), [3.0], [2.0], [[-0.1 * (1.0 + 0.5 * 2.0)]], 1e-5,
    ),
    "so does that of a decoder": (DECAYED, [3.0], [2.0], [[-0.1 * (1.0 + 0.5 * 2.0)]], 1e-5),
    "momentum gathers gradients": (
        OptimizerConfig(name="sgd", **RATE), [1.0], [0.0], [[-0.1], [-0.19], [-0.271]], 1e-6,
    ),
    "clipping bounds the global norm": (
        OptimizerConfig(name="sgd", clip_norm=1.0, **RATE), [3.0, 4.0], [0.0, 0.0], [[-0.06, -0.08]], 1e-6,
    ),
}  # fmt: skip


@pytest.mark.standard_promotion("optax mixes its counters with floats")
def test_steps_of_a_rule_are_its_formula():
    @compiled
    def steps():
        found = {}
        for name, (config, *given, expected, _) in RULES.items():
            gradient, weight = map(jnp.float32, given)
            rule = make_optimizer(config, num_steps=STEPS)
            state, found[name] = rule.init(weight), []
            for _ in expected:
                update, state = rule.update(gradient, state, weight)
                found[name].append(update)
        return found

    for name, found in steps().items():
        *_, expected, close = RULES[name]
        assert_allclose(found, expected, rtol=close, err_msg=name)


KERNEL = {"kernel": (3, 3, 4, 5), "dense": (6, 3), "bias": (5,)}
STACKS = {
    "stack": (2, 5, 3),
    "wide": (3, 6),
    "bias": (4,),
    "embedding": (6, 4),
    "layers.theta": (3, 4),
}
MUON = {
    "stacks": (
        STACKS,
        PrimalConfig(name="muon", warmup_share=0.0, clip_norm=None, **RATE),
        0.0,
    ),
    "images": (KERNEL, OptimizerConfig(name="muon", weight_decay=0.5, **RATE), 0.5),
}


@pytest.mark.nightly
@pytest.mark.parametrize(("shapes", "config", "decay"), MUON.values(), ids=MUON)
def test_muon_makes_singular_values_of_steps_equal(shapes, config, decay):
    """And as large as Adam's. The first step is U V^T of the gradient, as far as its
    Newton-Schulz iteration goes: within 0.6 to 1.3."""
    rng = np.random.default_rng(0)
    gradients, weights = (
        {name: rng.normal(size=shape) for name, shape in shapes.items()}
        for _ in range(2)
    )
    rule = make_optimizer(config, num_steps=STEPS)
    given, params = jax.tree.map(jnp.float32, (gradients, weights))
    updates, _ = rule.update(given, rule.init(params), params)
    for name, update in updates.items():
        step = np.float64(update) / -0.1 - decay * weights[name]
        gradient = gradients[name]
        # Adam's first step is the sign, by Nesterov's momentum
        if name in ("bias", "embedding", "layers.theta"):
            expected = (1.0 + 0.09 / 0.19) * np.sign(gradient)
            assert_allclose(step, expected, rtol=1e-4)
            continue
        if name == "kernel":
            step, gradient = step.reshape(36, 5), gradient.reshape(36, 5)
        left, _, right = np.linalg.svd(gradient, full_matrices=False)
        inner = np.swapaxes(left, -1, -2) @ step @ np.swapaxes(right, -1, -2)
        assert_allclose(left @ inner @ right, step, atol=1e-4)
        inner /= 0.2 * np.sqrt(max(step.shape[-2:]))
        values = np.diagonal(inner, axis1=-2, axis2=-1)
        assert np.all((values > 0.6) & (values < 1.3))
        apart = inner - values[..., None] * np.eye(values.shape[-1])
        assert np.abs(apart).max() < 1e-3
