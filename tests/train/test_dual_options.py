"""Multipliers under every option, replayed in NumPy; how checkpoints are ranked; the
least cost of slack that rests."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.errors import one_line
from tests.reference import compiled
from tests.train.ladder import batches, planned, train
from unroll_jax.train.core.objective import (
    INFEASIBLE,
    describe_layers,
    judge,
    violated,
)
from unroll_jax.train.core.plan import dual_of, make_plan
from unroll_jax.train.core.step import first_state, train_step
from unroll_jax.train.tasks.video.task import make

pytestmark = pytest.mark.xdist_group("video-runs")
STEPS, RATE = 9, 0.3
TIGHT = {
    "constraints.reference": 0.4,
    "constraints.alpha": (0.6,),
    "primal.learning_rate": 0.02,
}
SGD = {"dual.optimizer": "sgd", "dual.learning_rate": RATE}
VARIANTS = {
    "pi": {
        "dual.optimizer": "pi",
        "dual.learning_rate": RATE,
        "dual.proportional_gain": 0.5,
    },
    "adam": {"dual.optimizer": "adam", "dual.learning_rate": RATE},
    "every 3 batches": {**SGD, "dual.every": 3},
    "resilient, after a warm-up": {
        **SGD,
        "constraints.resilience": 2.0,
        "constraints.warmup_steps": 2,
    },
    "capped": {**SGD, "dual.cap": 0.4},
    "resilient, ratios, started": {
        **SGD,
        "constraints.resilience": 2.0,
        "constraints.form": "ratio",
        "dual.start": (0.0, 0.5, 0.25),
    },
}
OTHERS = {
    "plain": {"method": "plain"},
    "started, warm": {**SGD, "dual.start": (2.0,), "constraints.warmup_steps": 3},
}


@pytest.fixture(scope="module")
def runs(changed):
    usual = {"steps": STEPS, "batch_size": 32, **TIGHT}
    configs = {
        name: changed(**usual | fields) for name, fields in (VARIANTS | OTHERS).items()
    }
    data = batches(STEPS, 32)
    results = jax.device_get(
        jax.jit(lambda: {name: train(one, data) for name, one in configs.items()})()
    )
    return {name: (config, results[name][1]) for name, config in configs.items()}


@compiled
def adam(gradient, state):
    rule = optax.adam(RATE)
    return rule.update(gradient, rule.init(gradient) if state is None else state)


def _replay(config, rows):
    dual, settings = config.dual, config.constraints
    lam = integral = np.broadcast_to(np.array(dual.start), 3).astype(float)
    waiting, history = [], []
    moments = None
    for step, violations in enumerate(rows.prices.violations.astype(np.float64)):
        history.append(lam)
        if step < settings.warmup_steps:
            continue
        waiting.append(violations)
        if len(waiting) < dual.every:
            continue
        pressure, waiting = np.mean(waiting, axis=0), []
        if settings.resilience:
            pressure = pressure - lam / settings.resilience
        move = RATE * pressure
        if dual.optimizer == "adam":
            move, moments = adam(-pressure, moments)
        integral = np.maximum(integral + move, 0)
        gain = dual.proportional_gain if dual.optimizer == "pi" else 0.0
        lam = np.clip(integral + gain * pressure, 0, dual.cap)
        integral = integral if dual.optimizer == "pi" else lam
    return history


@pytest.mark.parametrize("name", VARIANTS)
def test_multipliers_are_those_of_the_options_written_out(runs, name):
    config, rows = runs[name]
    for step, multipliers in enumerate(_replay(config, rows)):
        assert_allclose(
            rows.prices.multipliers[step], multipliers, rtol=2e-4, atol=1e-5
        )
    assert np.max(rows.prices.multipliers[:, 1]) > 0.2, (
        "the case never raised a multiplier"
    )


def test_the_warm_up_is_plain_risk_though_multipliers_start(runs):
    (_, rows), (_, plain) = runs["started, warm"], runs["plain"]
    # after three steps as well
    assert_allclose(rows.layer_losses[:4], plain.layer_losses[:4], rtol=1e-6)
    assert_allclose(rows.value[:3], rows.layer_losses[:3, -1], rtol=1e-6)
    assert_array_equal(rows.prices.multipliers[:4], np.full((4, 3), 2.0))
    assert np.all(rows.prices.multipliers[4] != 2.0)


def test_only_layers_compute_in_bfloat16(changed, clips):
    """All of the state, gradients and multipliers stay float32."""
    fields = {**VARIANTS["resilient, ratios, started"], **TIGHT, "batch_size": 32}
    several = list(itertools.islice(clips.batches("train", batch_size=32, seed=0), 4))
    ends = []
    for dtype in ("bfloat16", "float32"):
        task = make(changed(**fields, **{"model.dtype": dtype}), clips)
        plan = make_plan(task)
        step = functools.partial(train_step, task, plan)
        start = jax.jit(functools.partial(first_state, task, plan, 0))()
        ends.append(
            jax.jit(lambda b, s=step, z=start: jax.lax.scan(s, z, b))(np.stack(several))
        )
    for leaf in jax.tree.leaves(ends):
        assert leaf.dtype in (jnp.float32, jnp.int32, jnp.uint32)
    narrow, wide = (metrics.layer_losses for _, metrics in ends)
    assert_allclose(narrow, wide, rtol=0.05)
    assert not np.array_equal(narrow, wide)


# Losses at layers 0..2 of two samples; alpha is 0.5 and the reference 1.
FEASIBLE, LATE, EARLY = (
    np.array([[0.8, *layers], [1.0, *layers]])
    for layers in ([0.4, 0.2], [0.6, 0.1], [0.5, 0.6])
)


@pytest.mark.parametrize(
    ("resilience", "form"),
    [
        (None, "difference"),
        (2.0, "difference"),
        (None, "ratio_of_means"),
        (None, "log_ratio_of_means"),
    ],
)
def test_what_is_not_feasible_ranks_last(changed, resilience, form):
    """By its worst excess, or by its loss with the cost of slack."""
    options = {"constraints.alpha": (0.5,), "constraints.reference": 1.0}
    options |= {"constraints.resilience": resilience, "constraints.form": form}
    _, plan = planned(changed(**options))
    state = jax.jit(plan.optimizer.init)(np.zeros(2))
    row, score = judge(plan, FEASIBLE, state)
    assert row["feasible"]
    assert score == pytest.approx(-np.mean(FEASIBLE[:, -1]), rel=1e-5)
    for losses in (LATE, EARLY):
        row, score = judge(plan, losses, state)
        assert not row["feasible"]
        means = losses.mean(axis=0)
        bounds = np.array([1.0, *(0.5 * means[:2])])
        cost = np.max(means / bounds) - 1.0
        assert row["worst_excess"] == pytest.approx(cost, rel=1e-5)
        if resilience is not None:
            # by half the resilience
            cost = means[-1] + np.sum(np.maximum(means - bounds, 0.0) ** 2)
        assert INFEASIBLE - score == pytest.approx(cost, rel=1e-5)
    _, plain = planned(changed(**options, method="plain"))
    assert judge(plain, LATE, None)[1] == pytest.approx(-0.1)


@pytest.mark.parametrize("form", ["difference", "ratio_of_means"])
def test_the_report_on_held_out_data_has_prices_of_the_losses(changed, form):
    """And names a multiplier that has wound up."""
    options = {"constraints.alpha": (0.5,), "constraints.reference": 2.0}
    options |= {"constraints.form": form, "dual.start": (0.5, 3.0, 1.0)}
    _, plan = planned(changed(**options))
    state = jax.jit(plan.optimizer.init)(np.zeros(2))
    figures = describe_layers(plan, LATE, state)
    _, *rows, verdict = figures["constraint_report"]
    assert [row.split("  ")[0] for row in rows] == ["f_0", "layer 1", "layer 2"]
    columns = np.array([row.split()[-7:] for row in rows])
    values, bounds, prices = np.float64(columns[:, [0, 1, 5]].T)
    expected = np.array([2.0, 0.45, 0.3])
    assert_allclose(values, LATE.mean(axis=0), rtol=1e-2)
    assert_allclose(bounds, expected, rtol=1e-2)
    # multipliers of ratios are per share of the bound
    units = np.ones(3) if form == "difference" else expected
    assert_allclose(prices, [0.5, 3.0, 1.0] / units, rtol=1e-2)
    assert violated(figures) == "violated: layer 1 by 33.33%"
    assert f"f_0 (a multiplier of {prices[0]:.3g}, wound up unless" in verdict


def settled(config):
    """Multipliers after many steps at violations of 0.3."""
    dual = dual_of(config)
    violations = dict.fromkeys(("layer 1", "layer 2"), jnp.full((), 0.3))

    def update(state, _):
        return dual.update(state, violations), None

    return jax.lax.scan(update, dual.init(violations), length=2000)[0].multipliers


# The rule of multipliers, and the least resilience under which they come to rest.
LEAST = {
    "sgd": ({"dual.optimizer": "sgd"}, 0.05),
    "pi": ({"dual.optimizer": "pi", "dual.proportional_gain": 0.5}, 0.55),
}


def resilient(changed, rule, share):
    options, least = LEAST[rule]
    fields = {"constraints.resilience": share * least, "dual.learning_rate": 0.1}
    return changed(**options | fields)


def test_multipliers_rest_above_the_least_resilience_and_swing_below(changed):
    cases = itertools.product(LEAST, (1.02, 0.98))
    configs = {case: resilient(changed, *case) for case in cases}
    last = compiled(lambda: {name: settled(one) for name, one in configs.items()})()
    for (rule, share), config in configs.items():
        at_rest = 0.3 * config.constraints.resilience
        rests = np.allclose(jax.tree.leaves(last[rule, share]), at_rest, rtol=1e-3)
        assert rests == (share > 1.0), (rule, share)


@pytest.mark.parametrize("rule", LEAST)
def test_a_resilience_is_refused_where_multipliers_would_swing(changed, rule):
    resilient(changed, rule, 1.02).check()
    with one_line(r"resilience must be above .*, or multipliers will oscillate"):
        resilient(changed, rule, 0.98).check()
