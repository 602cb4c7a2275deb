"""`fit` from Python: a task of one's own, constrained and heard of; what it refuses."""

import dataclasses
import re
from types import SimpleNamespace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.errors import one_line
from tests.train.commands import quiet, read
from tests.train.own import STEADY, TRAIN, VALIDATION, layer_losses, linear
from unroll_jax.train.config.constrained import ConstraintConfig
from unroll_jax.train.core.metrics import Callbacks, read_metrics
from unroll_jax.train.main import fit
from unroll_jax.train.registry import EXPERIMENTS
from unroll_jax.train.tasks.own.options import OwnConfig

pytestmark = pytest.mark.xdist_group("own-runs")


class Ear(Callbacks):
    """Hears of the events named, and writes them down."""

    def __init__(self, heard, **kinds):
        for event, kind in kinds.items():
            setattr(self, event, lambda row, kind=kind: heard.append((kind, row)))


@pytest.mark.usefixtures("without_a_report")
def test_a_task_comes_within_its_bounds_and_callbacks_hear(tmp_path):
    heard = []
    ears = [
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
    (folder,) = fit(task, out=tmp_path / "run", callbacks=ears, log=quiet)
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "validation"] == [4, 8, 9]
    assert heard == [*((row.pop("kind"), row) for row in rows), ("end", folder)]
    assert rows[0]["violations"][1] > 0.0, "the first weights are within the bounds"
    evaluation = read(folder / "evaluation.json")
    assert evaluation["feasible"]
    assert evaluation["layer_losses"][1] < 0.6 * evaluation["layer_losses"][0]


X = jax.device_put(np.ones(3))
NARROW = {name: array[:, :4] for name, array in VALIDATION.items()}
NOT_FINITE = np.where(np.arange(64)[:, None] == 5, np.nan, TRAIN["clean"])
REFUSED = [
    (
        {"losses": lambda params, batch: batch["noisy"][:, 0]},
        "layer_losses must be floating, of shape (samples",
    ),
    ({"losses": None}, "layer_losses must be a function, got NoneType"),
    (
        {"train": TRAIN["clean"]},
        "train must be a dict of arrays by name, got ndarray; pass a dict",
    ),
    (
        {"train": TRAIN | {"clean": TRAIN["clean"][1:]}},
        "arrays of train must have the same number of rows",
    ),
    (
        {"train": TRAIN | {"name": np.array(["a"] * 64)}},
        "train['name'] must be an array of numbers",
    ),
    ({"train": TRAIN | {"clean": NOT_FINITE}}, "finite in row 5"),
    (
        {"train": TRAIN | {"row": np.ma.masked_equal(np.arange(64), 3)}},
        "train['row'] is masked",
    ),
    (
        {"train": TRAIN | {"row": np.arange(64) + 2**40}},
        "train['row'] of int64 has numbers beyond 32 bits",
    ),
    ({"test": NARROW}, "test must have 'clean' with rows of shape (8,), as train has"),
    # Parameters that no checkpoint would give back.
    ({"init": lambda key: {}}, "init must return parameters"),
    ({"init": lambda key: {"a.b": X, "a": {"b": 2 * X}}}, "'a.b'"),
    ({"init": lambda key: {"w": X, "table": np.array([2**40])}}, "table"),
    ({"init": lambda key: {"w": X, "count": 3}}, "['count']\" is of int32"),
    ({"init": lambda key: {"w": X * 1j}}, "is of complex64"),
    ({"init": lambda key: {"w": X, "none": np.zeros((0, 3))}}, "has no element"),
]


@pytest.mark.parametrize(
    ("changed", "words"), REFUSED, ids=[words for _, words in REFUSED]
)
def test_a_task_that_cannot_be_leaves_no_folder(changed, words, tmp_path):
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


NO_CALLBACK = SimpleNamespace(on_step=print)
TARGETS = {
    "what must be the name of an experiment.* got None of type": (None, ()),
    r"Ours\.task must not be 'video'": (Ours(), ()),
    "callbacks must be .* objects with on_step, .* got .*namespace": (
        EXPERIMENTS["demo"].config,
        [NO_CALLBACK],
    ),
}


@pytest.mark.parametrize("words", TARGETS)
def test_other_targets_and_callbacks_leave_no_folder(words, tmp_path):
    what, callbacks = TARGETS[words]
    with one_line(words):
        fit(what, out=tmp_path / "run", callbacks=callbacks, log=quiet)
    assert not (tmp_path / "run").exists()


def test_losses_have_a_row_for_every_sample(tmp_path):
    losses = lambda params, batch: layer_losses(params, batch)[:3]
    for parts, wanted in ((1, "(8, 2)"), (2, "(4, 2)")):
        task = linear(losses=losses, accumulate=parts)
        with one_line("losses must have shape", wanted, "(3, 2)"):
            fit(task, out=tmp_path / "run", log=quiet)
    assert not list((tmp_path / "run").glob("checkpoints/*"))
