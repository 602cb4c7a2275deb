"""Options of every run and of its constraints, for text as for video."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest

from tests.text.test_runs import read
from tests.text.test_task import first_batch
from train.checkpoint import Checkpoints
from train.constrained import ConstraintConfig, DualConfig, init_state, make_step
from train.errors import UserError
from train.export import export, load_exported
from train.metrics import read_metrics
from train.sharding import place
from train.text.config import EncoderOptions, UnrolledConfig
from train.text.recipe import text_recipe

TAILS = ConstraintConfig(
    alpha=(0.1,), reference=0.7, bind="tail", level=0.5, scale=True, slacks="explicit", resilience=2.0, slack_rate=0.1
)
DUALS = DualConfig(optimizer="nu_pi", learning_rate=0.3, every=2, smoothing=0.5)


def stepped(built, experiment, steps=4, **fields):
    """Metrics of every step, and the last state."""
    config, material, task, _ = built(experiment, **fields)
    state, step, rows = init_state(config, task), make_step(config, task), []
    for number in range(steps):
        state, metrics = step(state, first_batch(material, step=number))
        rows.append(metrics)
    return rows, state


def recomputations(built, experiment, **fields):
    """How many parts of the program of a training step are computed again."""
    config, material, task, _ = built(experiment, **fields)
    step, batch = make_step(config, task), first_batch(material)
    return str(jax.make_jaxpr(step)(init_state(config, task), batch)).count("remat2[")


def close(found, expected, tolerance):
    for (path, one), other in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        scale = np.max(np.abs(other), initial=0.0)
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * max(scale, 1e-6), err_msg=str(path))


def test_a_batch_in_parts_takes_the_step_of_the_whole(built, experiment):
    fields = {"constraints": TAILS, "dual": DUALS, "average": 0.5}
    whole, state = stepped(built, experiment, **fields)
    parts, other = stepped(built, experiment, accumulate=4, **fields)
    close(parts, whole, 1e-4)
    close(other.dual.multipliers, state.dual.multipliers, 1e-4)
    assert np.max(state.multipliers) > 0.01, "no multiplier moved"
    assert np.max(whole[-1].slacks) > 0.0, "no slack moved"


@pytest.mark.parametrize("remat", ["everything", "dots_without_batch"])
def test_recomputing_changes_no_step(built, experiment, remat):
    close(stepped(built, experiment, 1, remat=remat)[0], stepped(built, experiment, 1)[0], 1e-5)
    recomputed, kept = (recomputations(built, experiment, remat=option) for option in (remat, "none"))
    assert recomputed > kept, "nothing is recomputed"


def test_violations_are_those_of_the_worst_texts(built):
    bounds = dataclasses.replace(TAILS, scale=False, margin=0.0, first_margin=0.0)
    config, material, task, _ = built("text-ut", constraints=bounds)
    batch, state = first_batch(material), init_state(config, task)
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), 0)
    losses = np.asarray(task.sample_losses(state.params, task.draw(batch, key)), np.float64)
    each = np.column_stack([losses[:, 0] - 0.7, losses[:, 1:] - 0.9 * losses[:, :-1]])
    _, metrics = make_step(config, task)(state, batch)
    np.testing.assert_allclose(metrics.violations, np.sort(each, axis=0)[4:].mean(axis=0), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_run_with_many_options_goes_on_as_if_it_had_not_been_interrupted(small, start, tmp_path):
    options = {"accumulate": 2, "average": 0.7, "remat": "dots", "constraints": TAILS, "dual": DUALS}
    config, folder = small("text-ut", **options), tmp_path / "run"
    start(config, "text-ut")
    rows, found = (folder / "metrics.jsonl").read_bytes(), read(folder, "evaluation.json")
    for name in ("status.json", "evaluation.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "checkpoints" / "4")
    assert "going on from the checkpoint of step 2" in start(config, "text-ut")
    again = read(folder, "evaluation.json")
    assert (folder / "metrics.jsonl").read_bytes() == rows
    for one in (found, again):
        del one["train_seconds"], one["early_exit"]["milliseconds"]
    assert again == found
    assert (found["bind"], len(found["slacks"])) == ("tail", 3)
    first = read_metrics(folder / "metrics.jsonl")[0]
    for figure in ("violation", "multiplier", "slack"):
        assert {f"{figure}/{name}" for name in ("f_0", "layer 1", "layer 2")} <= first.keys()


def test_the_average_is_what_is_judged_and_exported(small, start, built, tmp_path):
    fields = {"average": 0.9, "method": "erm"}
    start(small("text-ut", **fields), "text-ut")
    config, material, task, _ = built("text-ut", **fields)
    like = place(text_recipe(config, task, material)).like
    with Checkpoints(tmp_path / "run" / "checkpoints", read_only=True) as checkpoints:
        _, state, _ = checkpoints.best(like)
    exported = load_exported(export(tmp_path / "run", log=lambda line: None)).params
    for one, averaged, plain in zip(*map(jax.tree.leaves, (exported, state.average, state.params)), strict=True):
        np.testing.assert_array_equal(one, averaged)
        assert not np.array_equal(averaged, plain) or not np.any(plain)


def test_an_epoch_that_never_ends_is_refused(built):
    message = r"--dual.every epoch moves no multiplier: an epoch has 6 steps, multipliers may move in 4"
    with pytest.raises(UserError, match=message):
        built("text-ut", dual=DualConfig(every="epoch"))
    assert built("text-ut", dual=DualConfig(every="epoch"), steps=6)[2].steps_an_epoch == 6


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"accumulate": 3}, "--accumulate must be a divisor of batch-size=8, got 3"),
        ({"dual": DualConfig(start=(0.1, 0.2))}, "--dual.start must be one number, or one for each of 3 constraints"),
        ({"dual": DualConfig(frozen=(3,))}, r"--dual.frozen must be layers in 0\.\.2, got \(3,\)"),
        ({"constraints": ConstraintConfig(slacks="explicit")}, "--constraints.slacks explicit needs a cost of slack"),
        ({"profile": "nine"}, "--profile must be STEP:COUNT"),
        ({"constraints": ConstraintConfig(warmup_steps=4)}, "--constraints.warmup-steps must be below steps=4, or"),
        ({"model": UnrolledConfig(frozen=False)}, "--model.no-frozen has no effect without --model.embeddings"),
        ({"model": UnrolledConfig(embeddings="x", dim=7)}, "--model.dim 7 has no effect without embeddings that are"),
        ({"model": EncoderOptions(revision="main")}, "--model.revision main has no effect without --model.pretrained"),
        ({"model": EncoderOptions(pretrained="x", num_layers=2)}, "--model.num-layers 2 has no effect without an enc"),
        ({"model": EncoderOptions(pretrained="x"), "min_count": 5}, "--min-count 5 has no effect without an encoder"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_an_option_that_cannot_be_is_named(built, fields, message):
    with pytest.raises(UserError, match=message):
        built("text-encoder" if isinstance(fields.get("model"), EncoderOptions) else "text-ut", **fields)
