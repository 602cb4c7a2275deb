"""`fit` from Python: a task of one's own, constrained and heard of; what it refuses."""

import dataclasses
import re
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.errors import one_line
from tests.train.commands import quiet, read
from tests.train.own import STEADY, TRAIN, VALIDATION, layer_losses, linear
from unroll_jax.train import main
from unroll_jax.train.config.constrained import ConstraintConfig
from unroll_jax.train.core.evaluate import read as read_split
from unroll_jax.train.core.metrics import Callbacks, read_metrics
from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.core.step import jit_step, state_like
from unroll_jax.train.core.task import Trial
from unroll_jax.train.main import fit
from unroll_jax.train.registry import EXPERIMENTS
from unroll_jax.train.tasks.own.options import OwnConfig

pytestmark = pytest.mark.xdist_group("own-runs")
CODE = Path(main.__file__).parent


class Ear(Callbacks):
    """Hears of the events named, and writes them down."""

    def __init__(self, heard, **kinds):
        for event, kind in kinds.items():
            setattr(self, event, lambda row, kind=kind: heard.append((kind, row)))


@pytest.mark.usefixtures("without_a_report")
def test_three_frames_lie_above_the_step_and_six_between_it_and_the_maths(tmp_path):
    stacks = []

    def losses(params, batch):
        frames = traceback.extract_stack()
        ours = [frame for frame in frames if CODE in Path(frame.filename).parents]
        stacks.append([frame.name for frame in ours])
        return layer_losses(params, batch)

    fit(linear(losses=losses, steps=1), out=tmp_path / "run", log=quiet)
    (stack,) = [names for names in stacks if "train_step" in names]
    where = stack.index("step")
    assert stack[:where] == ["fit", "train_run", "train", "_compile"]
    assert len(stack[where:]) == 6


@pytest.mark.usefixtures("without_a_report")
def test_a_task_comes_within_its_bounds_and_callbacks_hear_of_every_step_every_validation_and_the_end(
    tmp_path,
):
    heard = []
    callbacks = [
        Ear(heard),
        Ear(heard, on_step="train", on_validation="validation", on_end="end"),
    ]
    task = linear(
        init=lambda key: {"w": jnp.full((8, 8), -0.05)},
        steps=9,
        validate_every=4,
        constraints=ConstraintConfig(alpha=(0.4,), reference=None),
        primal=dataclasses.replace(STEADY, learning_rate=0.02),
    )
    (folder,) = fit(task, out=tmp_path / "run", callbacks=callbacks, log=quiet)
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "validation"] == [4, 8, 9]
    assert [(kind, {"kind": kind, **row}) for kind, row in heard[:-1]] == [
        (row["kind"], row) for row in rows
    ]
    assert heard[-1] == ("end", folder)
    assert rows[0]["violations"][1] > 0.0, "the first weights are within the bounds"
    evaluation = read(folder / "evaluation.json")
    assert evaluation["feasible"]
    assert evaluation["layer_losses"][1] < 0.6 * evaluation["layer_losses"][0]


X = jnp.ones(3)
NARROW = {name: array[:, :4] for name, array in VALIDATION.items()}
REFUSED = [
    (
        {"losses": lambda params, batch: batch["noisy"][:, 0]},
        "layer_losses must be floating, of shape (samples",
    ),
    (
        {"losses": lambda params, batch: (layer_losses(params, batch),) * 2},
        "with L >= 1, got a tuple; return one",
    ),
    (
        {"losses": lambda params, batch: layer_losses(params, batch) > 0},
        "with L >= 1, got bool (2, ",
    ),
    ({"losses": None}, "layer_losses must be a function, got NoneType"),
    (
        {"train": TRAIN["clean"]},
        "train must be a dict of arrays by name, got ndarray; pass a dict",
    ),
    (
        {"train": {}},
        "arrays of train must have the same number of rows, at least 1, got {}",
    ),
    (
        {"train": {**TRAIN, "clean": TRAIN["clean"][1:]}},
        "arrays of train must have the same number of rows",
    ),
    (
        {"train": TRAIN | {"name": np.array(["a"] * 64)}},
        "train['name'] must be an array of numbers",
    ),
    (
        {
            "train": (
                TRAIN
                | {"clean": np.where(np.arange(64) == 5, np.nan, TRAIN["clean"].T).T}
            )
        },
        "finite in row 5",
    ),
    ({"train": TRAIN | {3: TRAIN["clean"]}}, "names of arrays of train must be texts"),
    (
        {"train": TRAIN | {"row": np.ma.masked_equal(np.arange(64), 3)}},
        "train['row'] is masked",
    ),
    (
        {"train": TRAIN | {"row": np.zeros(64, "i4,f4")}},
        "train['row'] must be an array of numbers",
    ),
    (
        {"train": TRAIN | {"row": np.rec.array(np.zeros(64, "i4,f4"))}},
        "train['row'] must be an array of numbers with a row a sample, got",
    ),
    (
        {"train": TRAIN | {"row": np.zeros(64, np.longdouble)}},
        "train['row'] must be an array of numbers with a row a sample",
    ),
    (
        {"train": TRAIN | {"row": jax.random.split(jax.random.key(0), 64)}},
        "train['row'] must be an array of numbers with a",
    ),
    (
        {"train": TRAIN | {"row": np.arange(64) + 2**40}},
        "train['row'] of int64 has numbers beyond 32 bits",
    ),
    ({"test": NARROW}, "test must have 'clean' with rows of shape (8,), as train has"),
    (
        {"train_gamma": 0.1},
        "train_gamma=0.1 has no effect without noise, which a user's task",
    ),
    # Parameters that no checkpoint would give back.
    ({"init": lambda key: {}}, "init must return parameters"),
    ({"init": lambda key: {"a.b": X, "a": {"b": 2 * X}}}, "'a.b'"),
    ({"init": lambda key: {"a": [X, 2 * X], "a.0": X}}, "'a.0'"),
    ({"init": lambda key: {"w": X, "empty": jnp.zeros((0, 3))}}, "empty"),
    ({"init": lambda key: {"w\udc80": X}}, "UTF-8"),
    ({"init": lambda key: {"w": X, "table": np.array([2**40])}}, "table"),
    ({"init": lambda key: {"w": X * 1j}}, "complex64"),
]


@pytest.mark.parametrize(
    ("changed", "words"), REFUSED, ids=[words for _, words in REFUSED]
)
def test_a_task_that_cannot_be_is_refused_in_one_line_and_leaves_no_folder(
    changed, words, tmp_path
):
    losses = (
        {"losses": lambda params, batch: batch["noisy"][:, :2]}
        if changed.keys() == {"init"}
        else {}
    )
    with one_line(re.escape(words)):
        fit(linear(**losses | changed), out=tmp_path / "run", log=quiet)
    assert not (tmp_path / "run").exists()


@dataclasses.dataclass(frozen=True)
class Ours(OwnConfig):
    """A user's options by the name of a task of the application."""

    task: ClassVar[str] = "video"


WHAT, CALLBACKS = (
    "what must be the name of an experiment",
    "callbacks must be a list of objects with on_step, .*",
)
TARGETS = {
    f"{WHAT}.* got None of type NoneType": (None, ()),
    f"{WHAT}.* got the class OwnConfig": (OwnConfig, ()),
    r"Ours\.task must not be 'video'": (Ours(), ()),
    f"{CALLBACKS} got .*Ear": (EXPERIMENTS["demo"].config, Ear([])),
    f"{CALLBACKS} got .*namespace": (
        EXPERIMENTS["demo"].config,
        [SimpleNamespace(on_step=print)],
    ),
}


@pytest.mark.parametrize("words", TARGETS)
def test_other_targets_and_callbacks_are_refused_before_a_folder_is_made(
    words, tmp_path
):
    what, callbacks = TARGETS[words]
    with one_line(words):
        fit(what, out=tmp_path / "run", callbacks=callbacks, log=quiet)
    assert not (tmp_path / "run").exists()


def test_batches_of_an_evaluation_have_one_size_and_the_byte_order_of_the_machine():
    def losses(params, batch):
        return layer_losses(params, batch) * len(batch["clean"])

    swapped = {name: array.astype(">f4") for name, array in VALIDATION.items()}
    task = linear(losses=losses, test={k: v[:11] for k, v in swapped.items()})
    params = task.init(jax.random.key(0))
    actual = read_split(task, params, "test", Trial())["losses"]
    expected = layer_losses(params, {k: v[:11] for k, v in VALIDATION.items()})
    np.testing.assert_allclose(actual, 8 * expected, rtol=1e-4)


def test_other_dtypes_and_numbers_of_layers_are_other_data():
    prints = [
        linear(train=TRAIN | {"clean": np.zeros((64, 8), dtype)}).fingerprint()
        for dtype in (np.int32, np.float32)
    ]
    assert prints[0]["train"] != prints[1]["train"]
    deeper = linear(losses=lambda p, b: jnp.tile(layer_losses(p, b), 2))
    assert deeper.fingerprint()["layers"] != prints[0]["layers"]


def test_losses_have_a_row_for_every_sample(tmp_path):
    task, parts = (
        linear(
            losses=lambda params, batch: layer_losses(params, batch)[:3], accumulate=n
        )
        for n in (1, 2)
    )
    with one_line("losses must have shape", "(8, 2)", "(3, 2)"):
        plan = make_plan(task)
        batch = next(task.batches(0, 0, None))
        jit_step(task, plan).eval_shape(state_like(task, plan), batch)
    with one_line("losses must have shape", "(4, 2)", "(3, 2)"):
        fit(parts, out=tmp_path / "run", log=quiet)
    assert not list((tmp_path / "run").glob("checkpoints/*"))
