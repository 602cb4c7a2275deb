"""The evaluation against NumPy: RMSE, noise, bounds and ratios."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.reference import compiled
from tests.train.conftest import traced_task
from unroll_jax.train.core.evaluate import NOISE_SEED, evaluate
from unroll_jax.train.core.metrics import ratio_figures
from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.core.step import init_state
from unroll_jax.train.tasks.common import add_noise, to_unit
from unroll_jax.train.tasks.video.models import build_video_model

USUAL = {
    "constraints.resilience": 2.0,
    "constraints.margin": 0.1,
    "constraints.first_margin": 0.5,
}
VARIANTS = {
    "usual": USUAL,
    "no reference, another seed": {"constraints.reference": None, "seed": 3},
    "plain, without noise, one layer": {
        "method": "plain",
        "train_gamma": 0.0,
        "model.num_layers": 1,
    },
}


@functools.cache
def _evaluated(config, data):
    task = traced_task(config, data)
    plan = make_plan(task)
    state = init_state(task, plan, config.seed)
    opt_state = state.opt_state
    if config.enforces:
        numbers = np.arange(len(plan.stated), dtype=np.float32)
        prices = dict(zip(plan.stated, map(jnp.asarray, numbers), strict=True))
        dual = opt_state.dual._replace(multipliers=prices)
        opt_state = opt_state._replace(dual=dual)
    figures = evaluate(task, plan, state.params, opt_state, Path("unused"))
    return task, state.params, figures


@pytest.fixture
def evaluated(in_memory, changed, clips):
    return lambda name="usual": _evaluated(changed(**VARIANTS[name]), clips)


@functools.cache
def _outputs(options, spec):
    apply = build_video_model(options, spec, np.float32).module.apply
    return compiled(lambda params, noisy: apply(params, noisy, record=lambda y: y))


@jax.jit
def _with_noise(pixels, variance):
    clean = to_unit(pixels)
    key = jax.random.fold_in(jax.random.key(NOISE_SEED), 0)
    return clean, add_noise(clean, variance, key)


def _noisy(clips, gamma):
    return _with_noise(clips.splits["test"], gamma * clips.spec.pixel_std)


def test_rmse_is_that_of_all_pixels_on_the_byte_scale(evaluated, clips):
    task, params, evaluation = evaluated()
    for gamma in (0.0, 0.15, 0.3):
        clean, noisy = (
            np.asarray(pixels, np.float64) for pixels in _noisy(clips, gamma)
        )
        outputs = _outputs(task.options, clips.spec)(params, noisy.astype(np.float32))
        output = np.float64(outputs[-1])
        assert evaluation["rmse"][str(gamma)] == pytest.approx(
            255 * np.sqrt(np.mean((output - clean) ** 2)), rel=1e-5
        )
        if gamma == 0.15:
            ends = [0.5 * np.sum((y - clean) ** 2, -1).mean() for y in (noisy, output)]
            layers = np.array(evaluation["layer_losses"])
            assert_allclose(layers[[0, -1]], ends, rtol=1e-5)
        noisy_rmse = 255 * np.sqrt(np.mean((noisy - clean) ** 2))
        assert evaluation["noisy_rmse"][str(gamma)] == pytest.approx(
            noisy_rmse, rel=1e-5, abs=1e-9
        )


def test_bounds_are_stated_and_slackness_is_of_the_tightened(
    evaluated,
):
    task, _, evaluation = evaluated()
    losses, settings = np.array(evaluation["layer_losses"]), task.options.constraints
    kept = (1.0 - settings.alpha[0]) * losses[:-1]
    bounds = np.array([settings.reference, *kept])
    assert_allclose(evaluation["bounds"], bounds, rtol=1e-6)
    assert_allclose(evaluation["violations"], losses - bounds, rtol=1e-5, atol=1e-6)
    assert evaluation["feasible"] == bool(np.all(losses <= 1.05 * bounds))
    enforced = losses - [settings.reference, *kept * (1.0 - np.array([0.5, 0.1]))]
    expected = np.array(evaluation["multipliers"]) * (enforced - evaluation["slacks"])
    assert_allclose(
        evaluation["complementary_slackness"], expected, rtol=1e-4, atol=1e-6
    )


def test_every_seed_and_method_is_tested_on_the_same_noise(evaluated):
    usual, seeded, plain = (evaluated(name)[2] for name in VARIANTS)
    assert usual["noisy_rmse"] == seeded["noisy_rmse"]
    assert usual["layer_losses"][0] == seeded["layer_losses"][0]
    assert (len(seeded["violations"]), seeded["bounds"][0]) == (
        len(seeded["layer_losses"]),
        None,
    )
    assert plain["noisy_rmse"] == {
        gamma: usual["noisy_rmse"][gamma] for gamma in ("0.0", "0.3")
    }


def test_losses_of_zero_do_not_spoil_ratios_and_nan_does():
    losses = np.array([[1.0, 2**24, 0.0], [0.0, 0.0, 0.0], [4.0, 2.0, 0.0]], np.float32)
    figures = ratio_figures(losses)
    assert (figures["mean_ratio"], figures["mean_ratio_all"]) == (
        [2**23 + 0.25, 0.0],
        2**22 + 0.125,
    )
    assert (figures["descend_share"], figures["share_descending"]) == (
        pytest.approx([1 / 3, 2 / 3]),
        0.5,
    )
    losses[0, 0] = np.nan
    for values in map(ratio_figures(losses).get, ("mean_ratio", "descend_share")):
        assert [type(value) for value in values] == [type(None), float]
