"""Constraints by name: columns of samples against NumPy, solutions, checkpoints, devices, reports and errors."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.devices import on_eight_devices
from tests.errors import one_line
from tests.train.commands import quiet, read
from tests.train.test_folders import Does
from unroll_jax.train import ConstraintConfig, DualConfig, OwnConfig, OwnTask, PrimalConfig, fit
from unroll_jax.train.config.constraints import LIMITS
from unroll_jax.train.config.images import FeedForwardConfig, ImageFeedForwardConfig
from unroll_jax.train.data.pictures import PictureBatch
from unroll_jax.train.limits import (
    FACTORIES,
    check_names,
    limits_of,
    limits_report,
    limits_violations,
    own_limit,
    sums_of_columns,
    with_columns,
)
from unroll_jax.train.metrics import read_metrics
from unroll_jax.train.parts import loss_gradient
from unroll_jax.train.step import init_state, jit_step
from unroll_jax.train.tasks.images import ImageTask

ARRAYS = {"x": np.full((16, 1), 2.0, np.float32)}
BOUNDS = ConstraintConfig(layers=False, also=("norm=1",), normalise=False, tolerance=0.002)
CONFIG = OwnConfig(
    steps=300,
    batch_size=8,
    validate_every=100,
    constraints=BOUNDS,
    primal=PrimalConfig(learning_rate=0.02, schedule="linear"),
    dual=DualConfig(optimizer="pi", learning_rate=0.05, proportional_gain=1.0),
    track=(),
)


def losses(w, batch):
    """(w - 2)^2, whose least value under w <= 1 is 1 at a price of 2."""
    return jnp.concatenate([batch["x"] ** 2, (w - batch["x"]) ** 2], axis=1)


def task_of(config=CONFIG, **options):
    return OwnTask(lambda key: jnp.full((1,), 0.1), losses, train=ARRAYS, validation=ARRAYS, config=config, **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    (folder,) = fit(task_of(), out=tmp_path_factory.mktemp("limits") / "run", log=quiet)
    return folder


def test_a_bound_on_the_norm_is_met_at_its_price_and_reported_by_name(run):
    evaluation = read(run / "evaluation.json")
    row = evaluation["limits"]["norm"]
    np.testing.assert_allclose([row["value"], row["multiplier"]], [1.0, 2.0], atol=0.03)
    assert (row["status"], evaluation["feasible"]) == ("binding", True)
    last = read_metrics(run / "metrics.jsonl")[-2]
    assert last["multiplier/norm"] == pytest.approx(2.0, abs=0.03)
    page = (run / "report" / "index.html").read_text()
    assert "Constraints by name on the test split" in page


def test_a_run_that_is_resumed_ends_as_one_left_alone(run, tmp_path):
    def stop():
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        fit(task_of(), out=tmp_path / "run", callbacks=[Does("on_step", 150, stop)], log=quiet)
    fit(task_of(), out=tmp_path / "run", log=quiet)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()


def test_a_function_of_the_user_counts_beside_names_and_in_parts():
    def constraints(w, batch, layers):
        return {"mean": jnp.mean(w * batch["x"]) - 1.0, "loss": jnp.mean(layers[:, -1]) * jnp.ones(2) - 3.0}

    def moved(accumulate):
        task = task_of(dataclasses.replace(CONFIG, accumulate=accumulate), constraints=constraints)
        state, step = init_state(task), jit_step(task)
        batch = {"x": jnp.asarray(ARRAYS["x"][:8])}
        state, _ = step(state, batch)
        state, metrics = step(state, batch)
        assert [name for limit in task.limits for name in limit.names] == ["norm", "loss/0", "loss/1", "mean"]
        return state.moving.multipliers, metrics.objective.violations

    np.testing.assert_allclose(moved(1), moved(2), rtol=1e-6)


PROGRAM = """
import dataclasses, jax.numpy as jnp, numpy as np
from tests.train.test_limits import ARRAYS, CONFIG, task_of
from unroll_jax.train.step import init_state, jit_step
from unroll_jax.train.sharding.mesh import put
for mesh in ("data=1", "data=8"):
    bounds = dataclasses.replace(CONFIG.constraints, also=("norm=0.05",))
    task = task_of(dataclasses.replace(CONFIG, mesh=mesh, constraints=bounds))
    state, step, moved = init_state(task), jit_step(task), 0.0
    for number in range(20):
        state, metrics = step(state, put({"x": ARRAYS["x"][:8]}, task.training.mesh))
        moved = moved + np.asarray(state.moving.multipliers)
    print(*moved, *np.asarray(state.params), *task.measured(state.params, "test"))
"""


@pytest.mark.slow
def test_eight_devices_move_multipliers_as_one_does():
    one, eight = (np.array(line.split(), float) for line in on_eight_devices(PROGRAM))
    np.testing.assert_allclose(eight, one, rtol=1e-5)
    assert one[0] == 0.0 < one[1], "the layer is free, the norm is not"


def image_task(also):
    spec = {"shape": [4, 4, 1], "class_names": ["a", "b", "c"], "mean": [0.5], "std": [0.25]}
    network = FeedForwardConfig(convolutional=False, widths=(8,), features=None)
    constraints = dataclasses.replace(ImageFeedForwardConfig().constraints, also=also)
    return ImageTask.rebuild(ImageFeedForwardConfig(batch_size=6, network=network, constraints=constraints), spec)


def test_classes_of_images_are_bound_one_by_one():
    task = image_task(("worst-class=0.5", "norm=20"))
    images = np.random.default_rng(0).integers(256, size=(6, 4, 4, 1)).astype(np.uint8)
    labels = np.array([0, 0, 1, 1, 1, 0], np.int32)
    params = task.init(jax.random.key(0))
    sums = np.asarray(sums_of_columns(task, params, PictureBatch(images, labels), jax.random.key(0)))
    logits = np.asarray(task.logits(params, jnp.asarray(images) / 255.0), np.float64)
    each = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(6), labels]
    of_classes = [each[labels == k].sum() for k in range(3)]
    sizes = 6 * np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(params)))
    np.testing.assert_allclose(sums, [*of_classes, 3, 3, 0, sizes, 6], rtol=1e-5, atol=1e-5)


def test_every_name_has_a_factory_and_what_a_task_cannot_give_is_one_line():
    assert set(LIMITS) == set(FACTORIES)
    for name, words in (("worst_class", "needs a class for each sample"), ("kl", "lora_rank")):
        with one_line(words):
            limits_of(task_of(), {name: 1.0})


def test_options_of_multipliers_have_no_effect_on_images_without_constraints():
    config = ImageFeedForwardConfig(dual=DualConfig(learning_rate=0.5))
    with one_line(r"dual.learning_rate=0.5 has no effect without constraints.also"):
        config.check()


RNG = np.random.default_rng(0)
X, LABELS = RNG.normal(size=(12, 3)), np.array([0, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0])
W, PRICES = np.array([0.5, -1.0, 2.0]), np.array([0.7, 0.3, 0.2])
BATCH = {"x": jnp.asarray(X, jnp.float32), "label": jnp.asarray(LABELS)}


LABELLED = SimpleNamespace(classes=("a", "b"), labels=lambda batch: batch["label"], trained=lambda params: None)
BOTH = limits_of(LABELLED, {"worst_class": 2.0, "norm": 1.5})


def squared(w, batch):
    return (batch["x"] @ w)[:, None] ** 2


def test_violations_are_shares_of_the_bound_and_a_class_without_samples_is_met():
    columns = with_columns(BOTH, jnp.asarray(W), BATCH, squared(jnp.asarray(W), BATCH), None)
    squares = (X @ W) ** 2
    expected = [squares[k == LABELS].mean() / 2.0 - 1.0 for k in (0, 1)] + [np.linalg.norm(W) / 1.5 - 1.0]
    np.testing.assert_allclose(limits_violations(BOTH, jnp.mean(columns, axis=0)[1:]), expected, rtol=1e-5)
    one = limits_violations(BOTH, jnp.array([1.0, 0.0, 0.5, 0.0, 1.5]))
    np.testing.assert_allclose(one, [0.0, 0.0, 0.0], atol=1e-6)


@pytest.mark.parametrize("parts", [1, 3])
def test_the_gradient_of_the_lagrangian_in_parts_is_that_of_the_formula(parts):
    def columns(w, batch, probe):
        return with_columns(BOTH, w, batch, squared(w, batch), None), {}

    def value(samples):
        means = jnp.mean(samples, axis=0)
        return means[0] + jnp.vdot(jnp.asarray(PRICES, jnp.float32), limits_violations(BOTH, means[1:])), None

    _, (gradient, _) = loss_gradient(columns, value, jnp.asarray(W), BATCH, lambda rows: None, parts=parts)
    slopes = 2.0 * (X @ W)[:, None] * X
    expected = slopes.mean(axis=0) + sum(PRICES[k] * slopes[k == LABELS].mean(axis=0) / 2.0 for k in (0, 1))
    np.testing.assert_allclose(gradient, expected + PRICES[2] * W / np.linalg.norm(W) / 1.5, rtol=1e-5)


def test_samples_that_weigh_differently_do_so_in_means():
    counts = jnp.asarray(RNG.integers(1, 5, size=12), jnp.float32)
    columns = with_columns(BOTH, jnp.asarray(W), BATCH, squared(jnp.asarray(W), BATCH), counts)
    np.testing.assert_allclose(jnp.sum(columns[:, -1]) / jnp.sum(counts), np.linalg.norm(W), rtol=1e-6)


def test_the_report_has_values_in_their_units_and_the_price_of_a_unit():
    means = jnp.array([0.5, 2.0, 0.5, 0.5, 3.0])  # class a at 1, b at 4; the norm at 3
    report = limits_report(BOTH, means, jnp.array([0.0, 2.0, 0.3]), tolerance=0.05)
    status = {name: row["status"] for name, row in report["limits"].items()}
    assert status == {"worst_class/a": "idle", "worst_class/b": "violated", "norm": "violated"}
    row = report["limits"]["worst_class/b"]
    assert (row["value"], row["bound"], row["unit"], row["price"]) == (4.0, 2.0, "nats", 1.0)
    assert not report["feasible"]


@pytest.mark.parametrize(
    "returned", [lambda w, batch: w, lambda w, batch: {"count": jnp.zeros(2, int)}, lambda w, batch: {}]
)
def test_what_is_no_dict_of_floating_numbers_is_one_line(returned):
    with pytest.raises(TypeError, match="constraints must return violations by name") as caught:
        own_limit(returned, lambda key: jnp.ones(3), squared, jax.eval_shape(lambda: BATCH))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("returned", [{"a": {"b": 5.0}, "a/b": -1.0}, {"": 1.0}, {"a": {"": 1.0}}], ids=str)
def test_equal_and_empty_names_are_an_error_before_the_first_step(returned):
    limit = own_limit(lambda w, batch: jax.tree.map(jnp.asarray, returned), lambda key: jnp.ones(3), squared, BATCH)
    with one_line(r"constraints must have a name each, got '(a/b|a/|)' twice or empty"):
        check_names(["layer 1", *limit.names])
