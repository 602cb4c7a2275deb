"""Cross entropy, the confusion matrix and the scores, against scikit-learn."""

import jax
import numpy as np
import pytest
from scipy.special import softmax
from sklearn import metrics

from unroll_jax.train.data.pictures import NOT_COUNTED
from unroll_jax.train.tasks.image_models import confusion, mean_cross_entropy, scores

CLASSES = 5


@pytest.fixture(params=[(40,), (3, 6, 7)], ids=["images", "pixels"])
def drawn(request):
    """Logits, and labels of which some do not count; class 3 never occurs."""
    rng = np.random.default_rng(0)
    labels = rng.choice([0, 1, 2, 4, NOT_COUNTED], request.param)
    return rng.normal(size=(*request.param, CLASSES)).astype(np.float32), labels.astype(np.uint8)


def test_cross_entropy_is_the_mean_over_the_labels_that_count(drawn):
    logits, labels = drawn
    there = labels != NOT_COUNTED
    expected = metrics.log_loss(
        labels[there], softmax(logits.astype(np.float64), axis=-1)[there], labels=range(CLASSES)
    )
    np.testing.assert_allclose(jax.jit(mean_cross_entropy)(logits, labels), expected, rtol=1e-5)


def test_nothing_that_counts_costs_nothing_and_has_no_gradient():
    labels, logits = np.full((4, 3), NOT_COUNTED, np.uint8), np.ones((4, 3, CLASSES), np.float32)
    loss, gradient = jax.jit(jax.value_and_grad(mean_cross_entropy))(logits, labels)
    assert loss == 0.0
    assert not np.any(gradient)


def test_the_confusion_matrix_and_its_scores_are_scikit_learns(drawn):
    logits, labels = drawn
    there, predicted = labels != NOT_COUNTED, np.argmax(logits, -1)
    right, guess = labels[there], predicted[there]
    matrix = jax.jit(confusion)(logits, labels)
    np.testing.assert_array_equal(matrix, metrics.confusion_matrix(right, guess, labels=range(CLASSES)))
    actual = scores(matrix)
    occurring = np.unique(right)
    either = np.union1d(occurring, guess)
    assert actual.accuracy == pytest.approx(metrics.accuracy_score(right, guess))
    recalls = metrics.recall_score(right, guess, labels=occurring, average=None)
    assert actual.class_accuracy == pytest.approx(np.mean(recalls))
    overlaps = metrics.jaccard_score(right, guess, labels=either, average=None)
    assert actual.intersection_over_union == pytest.approx(np.mean(overlaps))
