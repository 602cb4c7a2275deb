"""Early exit: calibrated on some texts, tried on others."""

import numpy as np
import pytest
import scipy.stats
from numpy.testing import assert_allclose, assert_array_equal

from unroll_jax.train.core.evaluate import read
from unroll_jax.train.core.task import Trial
from unroll_jax.train.tasks.text.task import (
    choose_threshold,
    evaluate_exits,
    exits,
    predict_improvements,
)

pytestmark = pytest.mark.xdist_group("text-runs")
RNG = np.random.default_rng(0)
ENTROPIES = RNG.uniform(0.0, 0.7, (3000, 3))


def losses_by_entropy(noise):
    """Later layers reduce the loss by twice the entropy at layer 0 and by half of it
    at layer 1, but for noise."""
    last = RNG.uniform(0.0, 0.1, 3000)
    steps = np.stack([2.0 * ENTROPIES[:, 0], 0.5 * ENTROPIES[:, 1]], axis=1)
    return np.concatenate(
        [last[:, None] + steps + noise * RNG.normal(size=steps.shape), last[:, None]],
        axis=1,
    )


def test_the_predictor_finds_what_entropy_says_of_the_improvement():
    at = np.array([[0.2, 0.2, 0.0], [0.5, 0.5, 0.0]])
    noisy = {"losses": losses_by_entropy(0.3), "entropies": ENTROPIES}
    _, predicted, levels = predict_improvements(noisy, {"entropies": at})
    assert_allclose(predicted, [[0.4, 0.1], [1.0, 0.25]], atol=0.08)
    assert all(np.all(np.diff(nats) >= 0) for nats in levels)
    exact = {"losses": losses_by_entropy(0.0), "entropies": ENTROPIES}
    _, predicted, _ = predict_improvements(exact, exact)
    assert_allclose(predicted[:, 0], 2.0 * ENTROPIES[:, 0], rtol=1e-6)


def layers_of(predicted, threshold):
    """Where each text leaves, by hand."""
    return [
        next((layer for layer in range(3) if row[layer] < threshold), 3)
        for row in predicted
    ]


def test_exits_go_from_full_depth_to_none():
    predicted = np.sort(RNG.uniform(0.0, 1.0, (1000, 3)))[:, ::-1]
    right = RNG.uniform(size=(1000, 4)) < [0.5, 0.7, 0.9, 0.9]
    thresholds = np.array([0.0, 0.25, 0.5, 1.1])
    tried = exits(predicted, right, thresholds)
    assert (tried.depths[0], tried.depths[-1]) == (3.0, 0.0)
    for threshold, *figures in zip(thresholds, *tried, strict=True):
        layers = layers_of(predicted, threshold)
        left = right[np.arange(1000), layers]
        lost = right[:, -1].astype(int) - left
        error = scipy.stats.sem(lost, ddof=0)
        expected = (np.mean(layers), left.mean(), lost.mean(), error)
        assert figures == pytest.approx(expected)
    assert choose_threshold(exits(predicted, np.ones_like(right), thresholds)) == 3


def test_the_chosen_threshold_surely_costs_half_a_point():
    """At most, one standard error above its mean included, of least depth."""
    rng = np.random.default_rng(1)
    predicted = np.sort(rng.uniform(0.0, 1.0, (4000, 3)))[:, ::-1]
    last = rng.uniform(size=4000) < 0.9
    # what layer 2 gets wrong
    wrong = last & (predicted[:, 2] > 0.2) & (rng.uniform(size=4000) < 0.02)
    first = last & (rng.uniform(size=4000) < 0.5)
    right = np.stack([first, last & ~wrong, last & ~wrong, last], axis=1)
    tried = exits(predicted, right, np.linspace(0.0, 1.1, 40))
    depths, _, lost, errors = map(np.array, tried)
    surely = np.where(lost + errors <= 0.005, depths, np.inf)
    likely = np.where(lost <= 0.005, depths, np.inf)
    chosen = choose_threshold(tried)
    assert depths[chosen] == surely.min() > likely.min(), "the standard error decides"


def test_no_text_is_predicted_by_itself():
    losses, entropies = losses_by_entropy(0.3)[:40], ENTROPIES[:40]
    changed = losses.copy()
    changed[7, 0] += 100.0
    before, after = (
        predict_improvements(reading, reading)[0]
        for reading in (
            {"losses": losses, "entropies": entropies},
            {"losses": changed, "entropies": entropies},
        )
    )
    assert_array_equal(after[1::2], before[1::2])  # text 7 is one of these
    assert not np.array_equal(after[::2], before[::2])


def test_exits_are_calibrated_and_chosen_on_validation_data_alone(built):
    task, params = built("text-ut")
    validation, test = (
        read(task, params, split, Trial(0.6)) for split in ("validation", "test")
    )
    other = {**test, "right": ~test["right"], "losses": test["losses"][:, ::-1]}
    one, two = (evaluate_exits(validation, each) for each in (test, other))
    for name in ("threshold", "mean_depth"):
        assert one[name] == two[name]
    _, predicted, _ = predict_improvements(validation, test)
    found = exits(predicted, test["right"], np.array([one["threshold"]]))
    assert one["mean_depth"] == pytest.approx(found.depths[0])
    assert one["accuracy"] == pytest.approx(found.accuracies[0])
