"""Options of every run and of its constraints, for text as for video."""

import jax
import numpy as np
import pytest

from tests.errors import one_line
from tests.text.conftest import MANY, newest_state
from unroll_jax.train.config.constraints import DualConfig
from unroll_jax.train.config.tokens import EncoderOptions, UnrolledConfig
from unroll_jax.train.metrics import read_metrics
from unroll_jax.train.step import describe_step, init_state, jit_step

pytestmark = pytest.mark.xdist_group("text-runs")


def close(actual, expected, tolerance):
    for (path, one), other in zip(jax.tree.leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        scale = np.max(np.abs(other), initial=0.0)
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * max(scale, 1e-6), err_msg=str(path))


def figures(row):
    """The figures of a row, without the multipliers and violations by name."""
    values = {name: row[name] for name in ("lagrangian", "layer_losses", "violations", "multipliers", "grad_norm")}
    return values | {kind: [row[name] for name in row if name.startswith(kind)] for kind in ("slack/", "size/")}


@pytest.mark.slow
def test_a_run_in_parts_takes_the_steps_of_whole_batches(finished, task_of, experiment):
    folder = finished(experiment).runs["constrained"]
    task = task_of(experiment, **MANY | {"remat": "none"})
    state, step, rows = init_state(task), jit_step(task), []
    for number, batch in zip(range(task.config.steps), task.batches(0, None), strict=False):
        state, metrics = step(state, batch)
        rows.append(describe_step(task, number + 1, jax.device_get(metrics))[0])
    train_rows = [row for row in read_metrics(folder / "metrics.jsonl") if row["kind"] == "train"]
    close([figures(row) for row in train_rows], [figures(row) for row in rows], 1e-4)
    close(newest_state(folder, task).moving.multipliers, state.moving.multipliers, 1e-4)
    assert np.max(state.moving.multipliers) > 0.01, "no multiplier moved"
    assert np.max(figures(rows[-1])["slack/"]) > 0.0, "no slack moved"


BAD = {
    "unrolled, recomputed": ({"unroll": 2, "remat": "dots"}, "unroll must be 1 or None with remat, got 2"),
    "multipliers": ({"dual": DualConfig(start=(0.1, 0.2))}, "dual.start must be one number, or one for each of 3"),
    "layers of an encoder": ({"model": EncoderOptions(pretrained="x", num_layers=2)}, "model.num_layers=2 has no"),
    "words of an encoder": ({"model": EncoderOptions(pretrained="x"), "min_count": 5}, "min_count=5 has no effect"),
    "nowhere": ({"model": EncoderOptions(pretrained="no/such/place")}, "pretrained no/such/place is neither"),
    "texts": ({"train_examples": 10**6}, "train_examples does not fit the data: train must keep between"),
    "validation": ({"validation_examples": 1}, "validation_examples must be at least 2, .* got 1"),
    "words": ({"min_count": 10**6}, "min_count=1000000 leaves no word"),
    "rank": ({"model": UnrolledConfig(dim=8, rank=9)}, "model.rank must be between 1 and the token width 8, got 9"),
    "epoch": ({"dual": DualConfig(every="epoch")}, "dual.every=epoch moves no multiplier: an epoch has 6 steps"),
}


@pytest.mark.parametrize(("fields", "message"), BAD.values(), ids=BAD)
def test_a_bad_option_is_one_line(task_of, fields, message):
    with one_line(message):
        task_of("text-encoder" if isinstance(fields.get("model"), EncoderOptions) else "text-ut", **fields)


def test_texts_longer_than_an_encoder_reads_are_one_line(task_of, write_folder):
    with one_line(r"max_length=64 does not fit the tokenizer: max_length must be in \[3, 16\]"):
        task_of("text-encoder", model=EncoderOptions(pretrained=str(write_folder())), max_length=64)
