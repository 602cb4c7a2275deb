"""Constraints by name in runs: their solutions, checkpoints, devices, reports and errors."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.devices import on_eight_devices
from tests.errors import one_line
from unroll_jax.train import ConstraintConfig, DualConfig, OwnConfig, OwnTask, PrimalConfig, fit
from unroll_jax.train.config.constraints import LIMITS
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.config.images import FeedForwardConfig, ImageFeedForwardConfig
from unroll_jax.train.data.pictures import PictureBatch
from unroll_jax.train.limits import FACTORIES, limits_of, sums_of_columns
from unroll_jax.train.loop import Callbacks
from unroll_jax.train.metrics import read_metrics
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


def quiet(line):
    pass


def read(path):
    return json.loads(path.read_text())


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


class Stops(Callbacks):
    def on_step(self, row):
        if row["step"] == 150:
            raise RuntimeError("stopped")


def test_a_run_that_is_resumed_ends_as_one_left_alone(run, tmp_path):
    with pytest.raises(RuntimeError, match="stopped"):
        fit(task_of(), out=tmp_path / "run", callbacks=[Stops()], log=quiet)
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


def test_every_name_has_a_factory_and_a_unit():
    assert set(LIMITS) == set(FACTORIES)


@pytest.mark.parametrize(("name", "words"), [("worst_class", "needs a class for each sample"), ("kl", "lora_rank")])
def test_what_a_task_cannot_give_is_one_line(name, words):
    with one_line(words):
        limits_of(task_of(), {name: 1.0})


def test_options_of_multipliers_have_no_effect_on_images_without_constraints():
    config = ImageFeedForwardConfig(dual=DualConfig(learning_rate=0.5))
    with pytest.raises(UserError, match=r"dual.learning_rate=0.5 has no effect without constraints.also"):
        config.check()
