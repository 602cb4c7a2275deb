"""Augmentation against every shift and flip, and scores against scikit-learn. Losses
are in test_steps.py."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import metrics

from tests.reference import compiled
from unroll_jax.train.tasks.images.models import (
    build,
    feature_figures,
    flip,
    flip_and_shift,
    scores,
)
from unroll_jax.train.tasks.images.options import OptEqConfig

SHIFT = 4
augment = jax.jit(flip_and_shift)


@pytest.fixture
def batch():
    """Random images without black, the colour of borders. All differ."""
    return np.random.default_rng(0).integers(1, 256, (64, 12, 10, 3), np.uint8)


def places(result, image):
    height, width, _ = image.shape
    padded = np.pad(image, ((SHIFT, SHIFT), (SHIFT, SHIFT), (0, 0)))
    for row, column in np.ndindex(2 * SHIFT + 1, 2 * SHIFT + 1):
        window = padded[row : row + height, column : column + width]
        for mirrored, shown in ((False, window), (True, window[:, ::-1])):
            if np.array_equal(shown, result):
                yield row, column, mirrored


def test_every_image_is_a_shifted_or_mirrored_copy(batch, getkey):
    key = getkey()
    result, same, other = (
        np.asarray(augment(each, batch)) for each in (key, key, getkey())
    )
    assert_array_equal(result, same)
    assert (result != other).any()
    assert (result.shape, result.dtype) == (batch.shape, np.uint8)
    moves = [
        list(places(shown, image)) for shown, image in zip(result, batch, strict=True)
    ]
    rows, columns, mirrored = zip(*(place for (place,) in moves), strict=True)
    # 64 draws of 9: each end is missed with probability (8/9)^64 = 0.0005. The key is
    # fixed.
    assert {0, 2 * SHIFT} <= set(rows)
    assert {0, 2 * SHIFT} <= set(columns)
    assert 16 < sum(mirrored) < 48


def test_a_scene_and_its_labels_are_mirrored_alike(batch, getkey):
    images, labels = map(np.asarray, jax.jit(flip)(getkey(), batch, batch[..., 1]))
    assert_array_equal(images[..., 1], labels)
    mirrored = [
        np.array_equal(image, scene[:, ::-1])
        for image, scene in zip(images, batch, strict=True)
    ]
    kept = [
        np.array_equal(image, scene) for image, scene in zip(images, batch, strict=True)
    ]
    assert 16 < sum(mirrored) < 48
    assert sum(mirrored) + sum(kept) == len(batch)


def test_scores_of_a_confusion_matrix_are_scikit_learns():
    """Of five classes, one of which is never right and one of which does not occur."""
    rng = np.random.default_rng(0)
    right, guess = rng.choice([0, 1, 2, 4], 100), rng.choice([0, 1, 2, 3], 100)
    actual = scores(metrics.confusion_matrix(right, guess, labels=range(5)))
    occurring, either = np.unique(right), np.union1d(right, guess)
    assert actual.accuracy == pytest.approx(metrics.accuracy_score(right, guess))
    recalls = metrics.recall_score(right, guess, labels=occurring, average=None)
    assert actual.class_accuracy == pytest.approx(np.mean(recalls))
    overlaps = metrics.jaccard_score(right, guess, labels=either, average=None)
    assert actual.intersection_over_union == pytest.approx(np.mean(overlaps))


def _numpy_equilibrium(x, params, way, regulariser, strength):
    """(samples, 4): 20 steps of one dense layer in float64, by Sections 4.1 and 4.2."""
    W, U, b = (np.float64(params["layer_1"][name]) for name in ("W", "U", "b"))
    z = np.zeros((len(x), W.shape[1]))
    for k in range(1, 21):
        new = np.maximum(z @ W.T + x @ U.T + b, 0.0) @ W
        if way == "averaged":
            # eta = 1, p = .5, c = .2, and L_R = strength
            gamma, beta, weight = 0.5 / strength, k**-0.5, k**-0.2
            slope = z if regulariser == "half_square" else np.sign(z)
            away = (1.0 - gamma * weight) * z - gamma * slope
            z = beta * away + (1.0 - beta) * new
        elif regulariser == "absolute":
            z = np.sign(new) * np.maximum(np.abs(new) - strength, 0.0)
        else:
            z = new / (1.0 + strength)
    return z


# The way, the regulariser, its strength, and the option of it.
REGULARISED = [
    ("unrolled", "absolute", 0.02, "regulariser_step"),
    ("unrolled", "half_square", 0.5, "regulariser_step"),
    ("averaged", "absolute", 50.0, "regulariser_smoothness"),
    ("averaged", "half_square", 1.0, None),  # which it states itself
]


def test_features_of_every_regulariser_are_those_of_numpy():
    @compiled
    def features(x):
        found = []
        for way, regulariser, strength, option in REGULARISED:
            options = {"way": way, "regulariser": regulariser, "widths": (6,)}
            if option is not None:
                options[option] = strength
            network = OptEqConfig(
                convolutional=False, channels=4, features=None, max_norm=None, **options
            )
            module = build(network, 3)
            params = module.init(jax.random.key(0), x)
            _, states = module.apply(params, x, mutable=["intermediates"])
            found.append((params["params"], feature_figures(states, 5)))
        return found

    x = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    for case, (params, found) in zip(REGULARISED, features(x), strict=True):
        z = _numpy_equilibrium(np.float64(x), params, *case[:3])
        close = {"rtol": 1e-4, "err_msg": str(case)}
        absolute, square = np.abs(z).mean(1), (z**2).mean(1)
        assert_allclose(found["feature_absolute"], absolute, **close)
        assert_allclose(found["feature_square"], square, **close)
