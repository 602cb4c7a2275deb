"""The schedules and rules that a configuration stands for, against their formulas."""

import jax.numpy as jnp
import numpy as np
import pytest

from train.config.run import OptimizerConfig
from train.optimizers import learning_rates, make_optimizer

STEPS, EPOCH = 100, 5


def rates(**options):
    schedule = learning_rates(OptimizerConfig(learning_rate=2.0, **options), num_steps=STEPS, steps_an_epoch=EPOCH)
    return np.array([schedule(step) for step in range(STEPS)])


STEP = np.arange(STEPS)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"schedule": "constant"}, 2.0 + 0.0 * STEP),
        ({"schedule": "linear"}, 2.0 * (1.0 - STEP / STEPS)),
        ({"schedule": "cosine"}, 1.0 + np.cos(np.pi * STEP / STEPS)),
        ({"schedule": "polynomial", "power": 0.9}, 2.0 * (1.0 - STEP / STEPS) ** 0.9),
        ({"schedule": "staircase", "decay": 0.5, "decay_every": 3}, 2.0 * 0.5 ** (STEP // 15)),
    ],
    ids=lambda value: value["schedule"] if isinstance(value, dict) else "",
)
def test_a_schedule_is_its_formula(options, expected):
    np.testing.assert_allclose(rates(**options), expected, rtol=1e-5, atol=1e-6)


def test_a_warm_up_rises_in_a_line_and_the_rest_is_what_it_was():
    warm = rates(schedule="cosine", warmup_share=0.2)
    np.testing.assert_allclose(warm[:20], 2.0 * (1 + np.arange(20) * 19 / 20) / 20, rtol=1e-5)
    np.testing.assert_allclose(warm[20:], 1.0 + np.cos(np.pi * np.arange(80) / 80), rtol=1e-5, atol=1e-6)


def update(gradient, weight, **options):
    rule = make_optimizer(
        OptimizerConfig(learning_rate=0.1, schedule="constant", **options), num_steps=STEPS, steps_an_epoch=EPOCH
    )
    gradient, weight = jnp.asarray(gradient), jnp.asarray(weight)
    return rule.update(gradient, rule.init(weight), weight)[0]


def test_sgd_adds_the_decay_to_the_gradient_and_adam_takes_it_apart():
    step = update([3.0], [2.0], name="sgd", weight_decay=0.5)
    np.testing.assert_allclose(step, [-0.1 * (3.0 + 0.5 * 2.0)], rtol=1e-6)
    step = update([3.0], [2.0], name="adam", weight_decay=0.5)
    np.testing.assert_allclose(step, [-0.1 * (1.0 + 0.5 * 2.0)], rtol=1e-5)  # Adam's first step is the sign


def test_momentum_gathers_gradients():
    rule = make_optimizer(
        OptimizerConfig(name="sgd", learning_rate=1.0, schedule="constant", momentum=0.5),
        num_steps=STEPS,
        steps_an_epoch=EPOCH,
    )
    weight, gradient = jnp.zeros(1), jnp.ones(1)
    state = rule.init(weight)
    found = []
    for _ in range(3):
        step, state = rule.update(gradient, state, weight)
        found.append(float(step[0]))
    np.testing.assert_allclose(found, [-1.0, -1.5, -1.75])


def test_clipping_bounds_the_global_norm():
    step = update([3.0, 4.0], [0.0, 0.0], name="sgd", clip_norm=1.0)
    np.testing.assert_allclose(step, [-0.06, -0.08], rtol=1e-6)
