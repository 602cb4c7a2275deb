"""Runs resume bit for bit, each in its folder. Evaluations read the best checkpoint."""

import shutil

import pytest

from tests.tasks import assert_same_end
from tests.train.commands import files_of, read
from tests.train.conftest import Clips, evaluated_again
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.core.metrics import read_metrics
from unroll_jax.train.system.files import locked
from unroll_jax.train.tasks.video import task as video
from unroll_jax.train.tasks.video.task import make

pytestmark = pytest.mark.xdist_group("video-runs")


def _cut_back(folder):
    """Leaves a run as a kill does: the metrics cut short, no status, and the
    evaluation of an earlier checkpoint."""
    content = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(content[: int(0.95 * len(content))])
    (folder / "status.json").unlink()
    (folder / "evaluation.json").write_text("{}")


def _damage_newest(folder):
    arrays = (
        folder / "checkpoints" / "6" / "state" / "ocdbt.process_0" / "d"
    ).iterdir()
    largest = max(arrays, key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_run_cut_back_ends_like_the_whole_one(
    finished, both, start, config, is_damaged
):
    folder = finished
    _cut_back(folder)
    if is_damaged:
        _damage_newest(folder)
    else:
        for path in (folder / "checkpoints").iterdir():
            shutil.rmtree(path)
    log = start(config)
    if is_damaged:
        assert any(
            "checkpoint 6 is damaged" in line and "falling back" in line for line in log
        )
        assert "going on from the checkpoint of step 4" in log
        assert (folder / "damaged" / "6").is_dir()
    assert_same_end(both / "constrained", folder, step=6)


def test_a_finished_run_and_a_second_process_are_refused(finished, start, config):
    def times():
        return {path: path.stat().st_mtime_ns for path in files_of(finished)}

    before = times()
    line = next(line for line in start(config) if "finished already" in line)
    assert "after 6 steps; no more steps can follow, as its schedule" in line
    (finished / "model.json").unlink()
    with (
        locked(finished),
        pytest.raises(UserError, match="another process is training"),
    ):
        start(config)
    del before[finished / "model.json"]
    assert times() == before, "nothing is written beside the other"
    start(config)


def test_changed_options_and_changed_data_are_refused(
    finished, start, changed, config, clips, monkeypatch
):
    stored = (finished / "config.json").read_bytes()
    for options, words in (
        ({"steps": 7}, "depend on the end of a run"),
        ({"dual.optimizer": "sgd"}, "was pi, is now sgd"),
    ):
        with pytest.raises(UserError, match=f"{words}.*another --out"):
            start(changed(**options))
    assert (finished / "config.json").read_bytes() == stored
    before, other = (finished / "evaluation.json").read_bytes(), Clips(seed=1)
    monkeypatch.setattr(video, "make", make)  # not the task that was kept
    for name in ("splits", "spec"):
        # what `load` gives from here on
        monkeypatch.setattr(clips, name, getattr(other, name))
    for again in (lambda: start(config), lambda: evaluated_again(finished)):
        with pytest.raises(UserError, match=r"found\.pixel_std was .* is now"):
            again()
    assert (finished / "evaluation.json").read_bytes() == before


def test_the_best_checkpoint_is_the_least_infeasible(
    infeasible,
):
    folder, log = infeasible
    assert any(
        "the least infeasible one on the validation split" in line for line in log
    )
    words = "NOT feasible on the validation and test splits, violated: "
    assert any(words in line for line in log)
    rows = read_metrics(folder / "metrics.jsonl")
    excess = {
        row["step"]: row["worst_excess"] for row in rows if row["kind"] == "validation"
    }
    evaluation = read(folder / "evaluation.json")
    assert evaluation["best_step"] == min(excess, key=excess.__getitem__)
    assert evaluation["feasible"] is evaluation["feasible_on_validation"] is False
