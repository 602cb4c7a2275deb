"""Options of every run in supervised training: parts of a batch, averages of parameters, what is recomputed."""

import dataclasses
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.supervised.conftest import Fields, recipe_of
from tests.supervised.test_runs import small
from train.checkpoint import Checkpoints
from train.data.pictures import NOT_COUNTED
from train.errors import UserError
from train.experiments import EXPERIMENTS
from train.metrics import read_metrics
from train.supervised.config import check_supervised
from train.supervised.evaluate import make_split_scores
from train.supervised.kind import IMAGE_FEEDFORWARD
from train.supervised.objective import confusion, mean_cross_entropy
from train.supervised.task import Equilibrium

pytestmark = pytest.mark.xdist_group("images")

STEPS = 3


def _leaves(recipe, batches):
    """State and metrics after some steps."""
    state = recipe.init()
    for _, batch in zip(range(STEPS), batches, strict=False):
        state, metrics = recipe.step(state, batch)
    return jax.tree.leaves_with_path((state, metrics))


def _assert_close(found, expected, bound):
    for (path, one), (_, two) in zip(found, expected, strict=True):
        if "residual" in jax.tree_util.keystr(path) or "iterations" in jax.tree_util.keystr(path):
            continue  # of a solver: mere rounding
        one, two = np.asarray(one, np.float64), np.asarray(two, np.float64)
        bounds = {"rtol": 0, "atol": bound * np.max(np.abs(two), initial=0.0)}
        np.testing.assert_allclose(one, two, **bounds, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize(
    ("name", "remat"), [pytest.param("image-opteq", "everything", marks=pytest.mark.slow), ("image-dnn", "dots")]
)
def test_four_parts_of_images_and_recomputed_layers_take_the_step_of_one_batch(name, remat):
    config = small(name)
    if name == "image-opteq":
        config = dataclasses.replace(config, network=dataclasses.replace(config.network, tol=1e-5))
    recipes = [recipe_of(dataclasses.replace(config, **one), name) for one in ({"accumulate": 4, "remat": remat}, {})]
    _assert_close(*(_leaves(recipe, recipe.batches(0)) for recipe in recipes), 2e-3)


def test_parts_count_by_their_labels_and_are_augmented_as_the_whole_is():
    # Parts take every other scene: those of one have hardly any labels that count.
    scenes = Fields().splits["train"]
    scenes.labels[::2, 1:] = NOT_COUNTED
    batches = [type(scenes)(*(part[8 * step : 8 * step + 8] for part in scenes)) for step in range(STEPS)]
    config = dataclasses.replace(small("segment-fcn"), augment=True)
    recipes = [recipe_of(dataclasses.replace(config, accumulate=count), "segment-fcn") for count in (2, 1)]
    _assert_close(*(_leaves(recipe, batches) for recipe in recipes), 2e-3)


def test_the_loss_of_a_split_is_over_the_labels_that_count_however_they_fall_into_batches():
    data = Fields()
    scenes = data.splits["validation"]
    scenes.labels[:8, 1:] = NOT_COUNTED  # of the first batch of two
    scenes.labels[0, 1:] = 0

    def measure(params, batch):
        logits = params * jnp.stack([batch.images[..., 0], batch.images[..., 1]], axis=-1) / 255.0
        return mean_cross_entropy(logits, batch.labels), confusion(logits, batch.labels), Equilibrium(*[jnp.nan] * 3)

    params = jnp.asarray(np.float32(3.0))
    found = make_split_scores(SimpleNamespace(measure=measure), data, 8)(params, "validation")
    loss, matrix, _ = jax.jit(measure)(params, scenes)
    np.testing.assert_allclose(found.loss, loss, rtol=1e-6)
    np.testing.assert_array_equal(found.matrix, matrix)


def test_an_average_is_what_a_run_is_judged_by(start, stripes, tmp_path):
    config = dataclasses.replace(small("image-dnn"), average=0.9, accumulate=2, remat="dots")
    start(config, "image-dnn")
    recipe = IMAGE_FEEDFORWARD.recipe(config, stripes)
    with Checkpoints(tmp_path / "run" / "checkpoints", read_only=True) as checkpoints:
        step, state, _ = checkpoints.best(jax.eval_shape(recipe.init))
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    (row,) = (row for row in rows if row["kind"] == "validation" and row["step"] == step)
    losses = make_split_scores(_task(config, stripes), stripes, config.batch_size)
    last, average = (losses(params, "validation").loss for params in state[2::2])
    np.testing.assert_allclose(row["loss"], average, rtol=1e-5)
    assert abs(last - average) > 1e-4 * average, "the case tells the two apart"
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    np.testing.assert_allclose(found["loss"], losses(state.evaluated, "test").loss, rtol=1e-5)


def _task(config, data):
    from train.supervised.task import supervised_task

    return supervised_task(config, data, lambda key, images, labels: (images, labels))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"accumulate": 5}, "--accumulate must be a divisor of --batch-size 8, got 5"),
        ({"accumulate": 0}, "--accumulate must be a whole number from 1"),
        ({"average": 1.0}, "--average must be in"),
        ({"profile": "now"}, "--profile must be STEP:COUNT"),
    ],
)
def test_bad_options_are_one_line(changes, words):
    config = dataclasses.replace(small("image-dnn"), batch_size=8, **changes)
    with pytest.raises(UserError, match=words):
        check_supervised(config)


def test_the_folder_of_a_run_names_its_options_but_not_what_may_change_as_it_goes_on():
    label, config = EXPERIMENTS["image-dnn"].kind.label, EXPERIMENTS["image-dnn"].config
    assert "average0.5" in label(dataclasses.replace(config, average=0.5))
    assert label(dataclasses.replace(config, accumulate=2, remat="dots", profile="1:1")) == label(config)
