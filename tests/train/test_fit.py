"""`fit` from Python: a task of one's own in under twenty lines, constrained, heard of, gone on with, reported."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.errors import one_line
from tests.train.commands import quiet, read
from unroll_jax.train.config.constrained import OwnConfig
from unroll_jax.train.config.constraints import ConstraintConfig
from unroll_jax.train.config.run import PrimalConfig
from unroll_jax.train.evaluate import best_checkpoint
from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.loop import Callbacks
from unroll_jax.train.main import fit
from unroll_jax.train.metrics import read_metrics
from unroll_jax.train.step import jit_step, state_like
from unroll_jax.train.tasks.own import OwnTask

# A user's code; `train` and `validation` are arrays by name.
NOTEBOOK = """\
import flax.linen as nn, jax.numpy as jnp
from unroll_jax.train import Callbacks, ConstraintConfig, OwnConfig, OwnTask, PrimalConfig, fit
class Denoiser(nn.Module):
    @nn.compact
    def __call__(self, y):
        outputs = [y]
        for _ in range(2):
            outputs.append(nn.Dense(8, kernel_init=nn.initializers.constant(0.1))(outputs[-1]))
        return jnp.stack(outputs)
def layer_losses(params, batch):
    return jnp.mean((Denoiser().apply(params, batch["noisy"]) - batch["clean"]) ** 2, -1).T
class Heard(Callbacks):
    def on_validation(self, row):
        print("worst:", row["worst_excess"])
bounds = ConstraintConfig(alpha=(0.05,), reference=None)
config = OwnConfig(steps=100, validate_every=50, batch_size=16, constraints=bounds, primal=PrimalConfig(0.02))
init = lambda key: Denoiser().init(key, train["noisy"])
task = OwnTask(init, layer_losses, train=train, validation=validation, config=config)
(run,) = fit(task, out=out, callbacks=[Heard()])
"""


def arrays(count, seed):
    generator = np.random.default_rng(seed)
    clean = generator.normal(size=(count, 1)).astype(np.float32) * np.ones(8, np.float32)
    return {"clean": clean, "noisy": clean + generator.normal(size=clean.shape).astype(np.float32)}


TRAIN, VALIDATION = arrays(64, 0), arrays(16, 1)
STEADY = PrimalConfig(schedule="constant", warmup_share=0.0)  # a run may go on to more steps


def layer_losses(params, batch):
    outputs = [batch["noisy"], batch["noisy"] @ params["w"]]
    return jnp.stack([jnp.mean((output - batch["clean"]) ** 2, -1) for output in outputs], -1)


def linear(*, init=lambda key: {"w": jnp.full((8, 8), 0.1)}, losses=layer_losses, train=TRAIN, test=None, **options):
    constraints = ConstraintConfig(alpha=(0.1,), reference=None)
    usual = {"steps": 6, "validate_every": 2, "batch_size": 8, "constraints": constraints, "primal": STEADY}
    return OwnTask(init, losses, train=train, validation=VALIDATION, test=test, config=OwnConfig(**usual | options))


@pytest.mark.slow
def test_a_task_of_ones_own_takes_under_twenty_lines(tmp_path, capsys):
    assert len(NOTEBOOK.splitlines()) < 20
    namespace = {"train": TRAIN, "validation": VALIDATION, "out": tmp_path / "run"}
    exec(NOTEBOOK, namespace)
    evaluation = read(tmp_path / "run" / "evaluation.json")
    assert evaluation["feasible"]
    assert len(evaluation["layer_losses"]) == 3
    assert evaluation["layer_losses"][2] < 0.7 * evaluation["layer_losses"][0]
    rows = read_metrics(namespace["run"] / "metrics.jsonl")
    heard = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines() if line.startswith("worst:")]
    assert heard == [row["worst_excess"] for row in rows if row["kind"] == "validation"]
    assert read(namespace["run"] / "report" / "summary.json")["methods"]["constrained"]["feasible"]


def test_callbacks_hear_of_every_step_every_validation_and_the_end(tmp_path):
    heard = []

    class Ear(Callbacks):
        def __init__(self, **kinds):
            for event, kind in kinds.items():
                setattr(self, event, lambda row, kind=kind: heard.append((kind, row)))

    callbacks = [Ear(), Ear(on_step="train", on_validation="validation", on_end="end")]
    (folder,) = fit(linear(steps=3), out=tmp_path / "run", callbacks=callbacks, log=quiet)
    rows = read_metrics(folder / "metrics.jsonl")
    assert [(kind, {"kind": kind, **row}) for kind, row in heard[:-1]] == [(row["kind"], row) for row in rows]
    assert heard[-1] == ("end", folder)


def test_the_parameters_of_the_best_checkpoint_are_at_hand(own_run):
    task = linear()
    best = best_checkpoint(task, own_run, experiment="own")
    losses = task.predict(best.state.params, VALIDATION)
    evaluation = read(own_run / "evaluation.json")
    assert evaluation["best_step"] == best.step
    assert losses.mean(axis=0) == pytest.approx(evaluation["layer_losses"])


X = jnp.ones(3)
NARROW = {name: array[:, :4] for name, array in VALIDATION.items()}
REFUSED = [
    ({"losses": lambda params, batch: batch["noisy"][:, 0]}, "layer_losses must be floating, of shape (samples"),
    ({"losses": lambda params, batch: (layer_losses(params, batch),) * 2}, "with L >= 1, got a tuple; return one"),
    ({"losses": lambda params, batch: layer_losses(params, batch) > 0}, "with L >= 1, got bool (2, "),
    ({"losses": None}, "layer_losses must be a function, got NoneType"),
    ({"init": {"w": 0.0}}, "init must be a function, got dict"),
    ({"train": TRAIN["clean"]}, "train must be a dict of arrays by name, got ndarray; pass a dict"),
    ({"train": {}}, "arrays of train must have the same number of rows, at least 1, got {}"),
    ({"train": {**TRAIN, "clean": TRAIN["clean"][1:]}}, "arrays of train must have the same number of rows"),
    ({"train": TRAIN | {"name": np.array(["a"] * 64)}}, "train['name'] must be an array of numbers"),
    ({"train": TRAIN | {"scale": np.float32(2)}}, "train['scale'] must be an array of numbers"),
    ({"train": TRAIN | {"weight": TRAIN["clean"]}}, "validation must have 'weight' with rows of shape"),
    ({"train": TRAIN | {"clean": np.where(np.arange(64) == 5, np.nan, TRAIN["clean"].T).T}}, "finite in row 5"),
    ({"train": TRAIN | {"row": np.arange(64) + 2**40}}, "train['row'] of int64 has numbers beyond 32 bits"),
    ({"test": NARROW}, "test must have 'clean' with rows of shape (8,), as train has"),
    ({"train_gamma": 0.1}, "train_gamma=0.1 has no effect without noise, which a user's task"),
    ({"batch_size": 65}, "batch_size must be at most the 64 samples of the train split, got 65"),
    ({"constraints": ConstraintConfig(alpha=(0.1, 0.1), reference=None)}, "constraints.alpha must be one number"),
    ({"mesh": "data=4096"}, "mesh=data=4096 asks for 4096 devices"),
    # Parameters that no checkpoint would give back.
    ({"init": lambda key: {}}, "init must return parameters"),
    ({"init": lambda key: {"a.b": X, "a": {"b": 2 * X}}}, "'a.b'"),
    ({"init": lambda key: {"a": [X, 2 * X], "a.0": X}}, "'a.0'"),
    ({"init": lambda key: {"w": X, "empty": jnp.zeros((0, 3))}}, "empty"),
    ({"init": lambda key: {"w\udc80": X}}, "UTF-8"),
    ({"init": lambda key: {"w": X, "table": np.array([2**40])}}, "table"),
    ({"init": lambda key: {"w": X * 1j}}, "complex64"),
]


@pytest.mark.parametrize(("changed", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_a_task_that_cannot_be_is_refused_in_one_line_and_leaves_no_folder(changed, words, tmp_path):
    losses = {"losses": lambda params, batch: batch["noisy"][:, :2]} if changed.keys() == {"init"} else {}
    with one_line(re.escape(words)):
        fit(linear(**losses | changed), out=tmp_path / "run", log=quiet)
    assert not (tmp_path / "run").exists()


def test_losses_have_a_row_for_every_sample(tmp_path):
    task, parts = (linear(losses=lambda params, batch: layer_losses(params, batch)[:3], accumulate=n) for n in (1, 2))
    with one_line("losses must have shape", "(8, 2)", "(3, 2)"):
        jit_step(task).eval_shape(state_like(task), next(task.batches(0, None)))
    with one_line("losses must have shape", "(4, 2)", "(3, 2)"):
        fit(parts, out=tmp_path / "run", log=quiet)
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def test_what_is_recomputed_is_a_choice_and_changes_no_gradient():
    tasks, params = [linear(remat=remat, steps=1) for remat in ("none", "everything")], {"w": jnp.full((8, 8), 0.1)}
    means = [lambda params, task=task: task.losses(params, TRAIN, None)[0].mean() for task in tasks]
    programs = [str(jax.make_jaxpr(jax.grad(mean))(params)) for mean in means]
    assert ["remat" in program or "checkpoint" in program for program in programs] == [False, True]
    expected, again = jax.jit(lambda params: [jax.grad(mean)(params)["w"] for mean in means])(params)
    np.testing.assert_allclose(again, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("what", "words"),
    [(None, "None of type NoneType"), (OwnTask, "the class OwnTask"), (EXPERIMENTS["demo"], "Experiment(")],
)
def test_other_targets_are_refused_in_one_line(what, words):
    with one_line("what must be the name of an experiment", f"got {words}"):
        fit(what)


def test_both_methods_of_an_experiment_open_their_data_once(monkeypatch, tmp_path):
    opened, one_step = [], functools.partial(linear, steps=1, validate_every=1)

    def open_task(config, log):
        opened.append(config.method)
        return one_step(method=config.method)

    monkeypatch.setattr("unroll_jax.train.main.open_task", open_task)
    folders = fit(one_step(method="both").config, out=tmp_path / "runs", log=quiet)
    assert [read(folder / "config.json")["method"] for folder in folders] == ["plain", "constrained"]
    assert opened == ["plain"]
