"""Steps of supervised training in parts and recomputed, and their rows: equilibria, gradients and norms of weights."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn import metrics

from tests.supervised.conftest import Fields, small, traced
from unroll_jax.fixed_point import equilibrium
from unroll_jax.train.data.pictures import NOT_COUNTED
from unroll_jax.train.step import describe_step, validate
from unroll_jax.train.tasks.image_models import SOLVE, adjoint_probe
from unroll_jax.train.tasks.images import ImageTask

pytestmark = pytest.mark.xdist_group("images")
STEPS = 3


def _leaves(config, batches=None):
    task, init, step = traced(config)
    state = init()
    for _, batch in zip(range(STEPS), batches or task.batches(0, None), strict=False):
        state, result = step(state, batch)
    return jax.tree.leaves_with_path((state, result))


def _assert_close(actual, expected, bound):
    for (path, one), (_, two) in zip(actual, expected, strict=True):
        if "residual" in jax.tree_util.keystr(path) or "iterations" in jax.tree_util.keystr(path):
            continue  # of a solver: mere rounding
        one, two = np.asarray(one, np.float64), np.asarray(two, np.float64)
        bounds = {"rtol": 0, "atol": bound * np.max(np.abs(two), initial=0.0)}
        np.testing.assert_allclose(one, two, **bounds, err_msg=jax.tree_util.keystr(path))


@pytest.mark.slow
def test_four_parts_of_images_and_recomputed_layers_take_the_step_of_one_batch():
    config = network_of(small("image-opteq"), tol=1e-5)
    configs = [dataclasses.replace(config, **one) for one in ({"accumulate": 4, "remat": "everything"}, {})]
    _assert_close(*map(_leaves, configs), 2e-3)


@pytest.mark.slow
def test_parts_count_by_their_labels_and_are_augmented_as_the_whole_is():
    # Parts take every other scene: one part has almost no labels that count.
    scenes = Fields().splits["train"]
    scenes.labels[::2, 1:] = NOT_COUNTED
    batches = [type(scenes)(*(part[8 * step : 8 * step + 8] for part in scenes)) for step in range(STEPS)]
    config = dataclasses.replace(small("segment-fcn"), augment=True)
    configs = [
        dataclasses.replace(config, accumulate=count, remat=remat) for count, remat in ((2, "dots"), (1, "none"))
    ]
    _assert_close(*(_leaves(config, batches) for config in configs), 2e-3)


def test_scenes_without_a_label_that_counts_cost_nothing_and_have_no_gradient():
    task, init, step = traced(dataclasses.replace(small("segment-fcn"), augment=True))
    scenes = next(task.batches(0, None))
    _, result = step(init(), scenes._replace(labels=np.full_like(scenes.labels, NOT_COUNTED)))
    assert result.value == result.layer_losses[-1] == result.grad_norm == 0.0


def test_the_loss_of_a_split_is_over_the_labels_that_count_however_they_fall_into_batches(monkeypatch):
    data, slope = Fields(), np.float32(3.0)
    scenes = data.splits["validation"]
    scenes.labels[:8, 1:] = NOT_COUNTED  # of the first batch of two
    scenes.labels[0, 1:] = 0
    task = ImageTask(small("segment-fcn"), data)
    assert task.config.batch_size == 8
    logits_of = lambda params, images, probe=None: (params * images[..., :2] / 255.0, None)  # noqa: E731
    monkeypatch.setattr(task, "_logits", logits_of)
    row, matrix = task.split_scores(jnp.asarray(slope), "validation")
    there, logits = scenes.labels != NOT_COUNTED, slope * scenes.images[..., :2] / 255.0
    labels = scenes.labels[there].astype(int)
    logs = log_softmax(logits.astype(np.float64), axis=-1)[there]
    np.testing.assert_allclose(row["loss"], -np.mean(logs[np.arange(len(labels)), labels]), rtol=1e-6)
    np.testing.assert_array_equal(matrix, metrics.confusion_matrix(labels, np.argmax(logs, axis=-1)))


ADJOINT = ("adjoint_residual", "adjoint_iterations", "adjoint_converged")


def train_row(config):
    task, init, step = traced(config)
    _, metrics = step(init(), next(task.batches(0, None)))
    return describe_step(task, 1, jax.device_get(metrics))[0]


def validation_row(config):
    task, init, _ = traced(config)
    state = init()
    return validate(task, state)[0], state.params


def network_of(config, **options):
    return dataclasses.replace(config, network=dataclasses.replace(config.network, **options))


@pytest.mark.slow
def test_rows_hold_the_residuals_and_iterations_of_both_solves():
    row = train_row(network_of(small("image-opteq"), tol=1e-5))
    for residual, iterations, converged in (("residual", "iterations", "converged"), ADJOINT):
        assert 0.0 < row[residual] <= 1e-5, residual
        assert row[iterations] >= 1.0, iterations
        assert row[converged] == 1.0, converged


@pytest.mark.slow
def test_an_adjoint_that_is_cut_short_is_seen_in_the_rows(monkeypatch):
    def hasty(*arguments, **options):
        return equilibrium(*arguments, **options, adjoint_max_steps=1, adjoint_tol=1e-6)

    monkeypatch.setattr("unroll_jax.models.opteq_base.equilibrium", hasty)
    row = train_row(network_of(small("image-opteq"), tol=2e-3))  # of no other test
    assert row["adjoint_residual"] > 1e-6
    assert row["adjoint_iterations"] <= 1.0
    assert row["adjoint_converged"] < 1.0


def test_where_no_adjoint_system_is_solved_there_is_no_figure():
    network = small("image-opteq").network
    for way in ("unrolled", "averaged"):
        assert adjoint_probe(dataclasses.replace(network, way=way), 8) is None
    task, figures = traced(small("image-dnn")).task, {name: np.ones(2) for name in ("right", *SOLVE)}
    row, _ = task.describe(task.summarise(figures, np.ones(2), None))
    assert [row[name] for name in (*SOLVE, *ADJOINT)] == [1.0] * 3 + [None] * 3


@pytest.mark.slow
def test_validation_rows_hold_the_norms_of_the_weights_in_the_order_of_the_layers():
    row, params = validation_row(network_of(small("image-opteq"), tol=1e-5))
    layers = [params["params"][name]["W"] for name in ("layer_1", "layer_2")]
    assert 0.0 < row["residual"] <= 1e-5
    norms = [np.linalg.norm(W, 2) for W in layers]
    np.testing.assert_allclose(row["weight_norms"], norms, rtol=1e-3)
    np.testing.assert_allclose(row["weight_norm_bounds"], norms, rtol=2e-3)
    assert all(bound >= norm * (1 - 1e-6) for bound, norm in zip(row["weight_norm_bounds"], norms, strict=True))
    estimated, _ = validation_row(network_of(small("image-opteq"), norm_steps=2))
    assert "weight_norms" in estimated
    assert "weight_norm_bounds" not in estimated, "which is not what they are divided by"
    assert not {"weight_norms", "weight_norm_bounds"} & validation_row(small("image-dnn"))[0].keys()
