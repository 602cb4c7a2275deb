"""Early exit: calibrated on some texts, tried on others."""

import numpy as np
import pytest
import scipy.stats

from unroll_jax.train.tasks.common import Trial
from unroll_jax.train.tasks.text_models import (
    calibrate,
    calibrate_crosswise,
    choose_threshold,
    evaluate_exits,
    exit_curve,
    exit_layers,
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
    knots = calibrate(losses_by_entropy(0.3), ENTROPIES)
    at = np.array([[0.2, 0.2, 0.0], [0.5, 0.5, 0.0]])
    np.testing.assert_allclose(
        predict_improvements(knots, at), [[0.4, 0.1], [1.0, 0.25]], atol=0.08
    )
    assert all(np.all(np.diff(nats) >= 0) for _, nats in knots)
    exact = predict_improvements(
        calibrate(losses_by_entropy(0.0), ENTROPIES), ENTROPIES
    )
    np.testing.assert_allclose(exact[:, 0], 2.0 * ENTROPIES[:, 0], rtol=1e-6)


def test_the_curve_goes_from_full_depth_to_none_and_the_chosen_threshold_keeps_the_accuracy():
    predicted = np.sort(RNG.uniform(0.0, 1.0, (1000, 3)))[:, ::-1]
    correct = np.stack(
        [RNG.uniform(size=1000) < share for share in (0.5, 0.7, 0.9, 0.9)], axis=1
    )
    thresholds = [0.0, 0.25, 0.5, 1.1]
    curve = exit_curve(predicted, correct, thresholds)
    assert (curve["mean_depths"][0], curve["mean_depths"][-1]) == (3.0, 0.0)
    assert curve["accuracies"][0] == pytest.approx(correct[:, -1].mean())
    assert curve["accuracies"][-1] == pytest.approx(correct[:, 0].mean())
    for threshold, depth, accuracy in zip(*curve.values(), strict=True):
        by_hand = [
            next((layer for layer in range(3) if row[layer] < threshold), 3)
            for row in predicted
        ]
        assert depth == pytest.approx(np.mean(by_hand))
        assert accuracy == pytest.approx(
            np.mean([correct[row, layer] for row, layer in enumerate(by_hand)])
        )
    assert choose_threshold(predicted, np.ones_like(correct), thresholds) == 1.1


def test_the_chosen_threshold_is_the_one_of_least_depth_that_surely_costs_no_more_than_half_a_point():
    rng = np.random.default_rng(1)
    predicted = np.sort(rng.uniform(0.0, 1.0, (4000, 3)))[:, ::-1]
    right = rng.uniform(size=4000) < 0.9
    # what layer 2 gets wrong
    wrong = right & (predicted[:, 2] > 0.2) & (rng.uniform(size=4000) < 0.02)
    correct = np.stack(
        [right & (rng.uniform(size=4000) < 0.5), right & ~wrong, right & ~wrong, right],
        axis=1,
    )
    thresholds = np.linspace(0.0, 1.1, 40).tolist()
    surely, likely = [], []
    for threshold in thresholds:
        layers = exit_layers(predicted, threshold)
        lost = [
            int(row[-1]) - int(row[layer])
            for row, layer in zip(correct, layers, strict=True)
        ]
        for error, allowed in ((scipy.stats.sem(lost, ddof=0), surely), (0.0, likely)):
            if np.mean(lost) + error <= 0.005:
                allowed.append((layers.mean(), threshold))
    kept = choose_threshold(predicted, correct, thresholds)
    assert kept == min(surely)[1]
    assert kept != min(likely)[1], "the standard error decides"
    assert 0.0 < kept < 1.1


def test_no_text_is_predicted_by_itself():
    losses, entropies = losses_by_entropy(0.3)[:40], ENTROPIES[:40]
    before, changed = calibrate_crosswise(losses, entropies), losses.copy()
    changed[7, 0] += 100.0
    after = calibrate_crosswise(changed, entropies)
    np.testing.assert_array_equal(after[1::2], before[1::2])  # text 7 is one of these
    assert not np.array_equal(after[::2], before[::2])


def test_exits_are_calibrated_and_chosen_on_validation_data_alone(built):
    task, params = built("text-ut")
    validation, test = (
        task.reading(params, split, Trial(0.6)) for split in ("validation", "test")
    )
    other = test._replace(labels=1 - test.labels, losses=test.losses[:, ::-1])
    one, two = (evaluate_exits(validation, each) for each in (test, other))
    for name in ("threshold", "mean_depth"):
        assert one[name] == two[name]
    knots = calibrate(validation.losses, validation.entropies)
    layers = exit_layers(predict_improvements(knots, test.entropies), one["threshold"])
    assert one["mean_depth"] == pytest.approx(layers.mean())
    assert one["accuracy"] == pytest.approx(
        np.mean(test.predictions[np.arange(20), layers] == test.labels)
    )
