"""Constraints on means and samples, as ratios, and deep supervision: the gradient of
a step in NumPy."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.errors import one_line
from tests.train.ladder import batches, planned
from unroll_jax.train.core.objective import judge
from unroll_jax.train.core.step import first_state, train_step

MULTIPLIERS, KEPT = (0.5, 2.0, 1.0), 0.4 * (1 - np.array([0.2, 0.05]))
CASES = {
    "difference": {},
    "ratio, another first": {
        "constraints.form": "ratio",
        "constraints.first_alpha": 0.9,
    },
    "ratio of means, floor": {
        "constraints.form": "ratio_of_means",
        "constraints.floor": 0.3,
    },
    "log ratio of means": {"constraints.form": "log_ratio_of_means"},
    "not normalised, an alpha a layer": {
        "constraints.normalise": False,
        "constraints.alpha": (0.6, 0.7),
    },
    "ratio of means, cumulative": {
        "constraints.form": "ratio_of_means",
        "constraints.bounds": "cumulative",
    },
}
LAST = {
    "constraints.last": 0.2,
    "constraints.reference": None,
    "layer_weights": (0.3,),
}
SUPERVISED = {
    "plain": (0.1, [0.0, 0.0, 1.0]),
    "deep_supervision": (0.3, [0.0, 0.3, 1.0]),
}


@pytest.fixture(scope="module")
def steps(changed):
    data = batches(1, 8)[0]
    fields = {
        "batch_size": 8,
        "dual.start": MULTIPLIERS,
        "constraints.reference": 0.4,
        "constraints.alpha": (0.6,),
    }
    configs = {name: changed(**fields | one) for name, one in CASES.items()}
    for name, (weight, _) in SUPERVISED.items():
        configs[name] = changed(
            **fields, method=name, layer_weights=(weight,), accumulate=2
        )
    configs["last"] = changed(**fields | LAST | {"dual.start": (2.0,)})

    @jax.jit
    def every():
        tasks = {name: planned(config) for name, config in configs.items()}
        states = {name: first_state(*both, 0) for name, both in tasks.items()}
        params = states["difference"].params
        task, _ = tasks["difference"]

        def losses(params):
            return task.losses(params, data, task.trial)[0]

        steps = {}
        for name, both in tasks.items():
            state, metrics = train_step(*both, states[name], data)
            steps[name] = metrics, state.params - params
        return losses(params), jax.jacrev(losses)(params), steps

    f, in_params, steps = jax.device_get(every())
    return {name: (f, in_params, *step) for name, step in steps.items()}


def _violations(name, f):
    """(8, 3) of every sample, and their slopes (8, 3, 3) in its losses, by complex
    steps."""
    of_means = "of means" in name
    f = np.tile(f.mean(axis=0, dtype=float), (8, 1)) if of_means else np.float64(f)
    kept = KEPT
    if "another first" in name:
        kept = np.array([0.1 * 0.8, KEPT[1]])
    if "an alpha a layer" in name:
        kept = np.array([KEPT[0], 0.3 * 0.95])

    def violate(losses, before):
        # losses, and those that the bounds of the next layers are made of
        bounds = np.column_stack([np.full(8, 0.4), kept * before[:, :-1]])
        if "floor" in name:  # the margins tighten it, too
            least = 0.3 * np.array([0.8, 0.95])
            bounds[:, 1:] = np.maximum(bounds[:, 1:], least)
            assert np.any(bounds[:, 1:] == least)
        if "cumulative" in name:  # tightened by the margins of the two layers
            bounds[:, 1:] = np.array([0.4 * 0.4, 0.4 * 0.4**2]) * [0.8, 0.95]
        if name.startswith("log ratio"):
            return np.log(losses / bounds)
        return losses / bounds - 1 if name.startswith("ratio") else losses - bounds

    slopes = []
    for step in 1e-30j * np.eye(3):
        # in means, the loss before a layer is a constant
        before = f if of_means else f + step
        slopes.append(violate(f + step, before).imag / 1e-30)
    return violate(f, f), np.stack(slopes, axis=-1)


def _assert_gradient(metrics, weights, in_params, moved):
    gradient = np.tensordot(weights, in_params.astype(np.float64), axes=2)
    # Adam's first step is against the sign of each entry
    assert_array_equal(np.sign(moved), -np.sign(gradient))
    assert_allclose(metrics.grad_norm, np.linalg.norm(gradient), rtol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_violations_and_gradient_are_those_of_numpy(steps, name):
    f, in_params, metrics, moved = steps[name]
    violations, slopes = _violations(name, f)
    assert_allclose(
        metrics.prices.violations, violations.mean(axis=0), rtol=1e-4, atol=1e-5
    )
    assert_allclose(metrics.layer_losses, f.mean(axis=0), rtol=1e-5)
    weights = np.einsum("c,scl->sl", np.array(MULTIPLIERS), slopes) / 8
    weights[:, -1] += 1 / 8
    if "not normalised" not in name:
        weights /= 1 + sum(MULTIPLIERS)
    _assert_gradient(metrics, weights, in_params, moved)


@pytest.mark.parametrize("name", SUPERVISED)
def test_deep_supervision_is_a_sum_of_losses_also_in_parts(steps, name):
    f, in_params, metrics, moved = steps[name]
    weights = np.array(SUPERVISED[name][1])
    assert_allclose(metrics.value, f.mean(axis=0) @ weights, rtol=1e-5)
    _assert_gradient(metrics, np.tile(weights / 8, (8, 1)), in_params, moved)
    assert not np.any(metrics.prices.multipliers), "watched constraints have a price"


def test_early_losses_are_minimised_within_a_bound_on_the_last(steps):
    f, in_params, metrics, moved = steps["last"]
    bound = 0.2 * 0.95
    assert_allclose(metrics.prices.violations, [f[:, 2].mean() - bound], rtol=1e-4)
    value = np.append(0.3 * f[:, 1], 2.0 * (f[:, 2] - bound)).mean() * 2 / 3
    assert_allclose(metrics.value, value, rtol=1e-5)
    weights = np.tile(np.array([0.0, 0.3, 2.0]) / 3 / 8, (8, 1))
    _assert_gradient(metrics, weights, in_params, moved)


def test_weights_of_layers_are_those_given_and_never_all_zero(changed):
    for options, expected in (
        ({"layer_weights": (0.1,)}, (0.0, 0.1, 0.1, 0.1, 1.0)),
        ({"layer_weights": (0.1, 0.2, 0.3)}, (0.0, 0.1, 0.2, 0.3, 1.0)),
        ({"layer_weighting": "layerskip"}, (0.0, 1.0)),
    ):
        config = changed(method="deep_supervision", **options)
        assert config.loss_weights(len(expected) - 1) == expected
    early = changed(**LAST | {"layer_weighting": "layerskip"})
    assert early.loss_weights(3) == pytest.approx((0.0, 0.0, 0.3 / 2.6, 0.0))
    with one_line(
        r"layer_weighting must be given: no layer of \(0, 1, 2\) gets a weight"
    ):
        early.loss_weights(2)


@pytest.mark.parametrize(("read", "scale"), [(range(6), 0.2), ((0, 5, 10, 15), 0.5)])
def test_weights_are_those_of_layer_skip(changed, read, scale):
    depth = read[-1]
    # The paper's e(l) for its layers 0..L-1, whose outputs are our layers 1..L.
    paper = [scale * sum(range(layer + 1)) for layer in range(depth - 1)]
    paper.append(depth - 1 + scale * sum(range(depth - 1)))
    enabled = np.array([0.0, *paper])[list(read)]
    config = changed(
        method="deep_supervision", layer_weights=(scale,), layer_weighting="layerskip"
    )
    assert_allclose(
        config.loss_weights(len(read) - 1, read), enabled / enabled.sum(), rtol=1e-12
    )


def test_a_bound_on_the_last_loss_ranks_by_early_losses(changed):
    """In double precision, and without a reference."""
    changed(**LAST, **{"constraints.bounds": "cumulative"}).check()
    _, plan = planned(changed(**LAST))
    samples = np.array([[2.0, 0.5, 0.1], [2.0, 0.7, 0.1]])
    state = jax.jit(plan.optimizer.init)(np.zeros(2))
    row, score = judge(plan, samples, state)  # warnings are errors
    assert row["minimised"] == -score == pytest.approx(0.3 * 0.6)
    assert changed(**LAST).judge(row).metric == row["minimised"]
    assert changed().judge(row).metric == row["layer_losses"][-1]
