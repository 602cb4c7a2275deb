"""metrics.jsonl and JSON files."""

import json
import math
from pathlib import Path

import pytest

from unroll_jax.train.config.errors import StorageError, UserError
from unroll_jax.train.metrics import MetricsWriter, read_metrics
from unroll_jax.train.system.files import write_json


def _write(folder, steps, *, after_step):
    with MetricsWriter(folder, after_step=after_step) as writer:
        for step in steps:
            writer.write({"kind": "train", "step": step, "loss": 1 / step, "violations": [None, 0.1 * step]})
        writer.flush()


def _killed(*_):
    raise KeyboardInterrupt


def test_reopening_forgets_what_came_after_the_step_and_goes_on(tmp_path):
    _write(tmp_path, range(1, 9), after_step=0)
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    _write(tmp_path, range(6, 9), after_step=5)
    assert (tmp_path / "metrics.jsonl").read_bytes() == whole
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == list(range(1, 9))


def test_a_kill_while_the_file_is_reopened_loses_nothing(tmp_path, monkeypatch):
    _write(tmp_path, range(1, 9), after_step=0)
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", _killed)
        with pytest.raises(KeyboardInterrupt):
            MetricsWriter(tmp_path, after_step=5)
    assert path.read_bytes() == whole
    _write(tmp_path, range(6, 9), after_step=5)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_a_last_line_cut_short_by_a_kill_is_forgotten(tmp_path, cut):
    _write(tmp_path, range(1, 6), after_step=0)
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3, 4]
    _write(tmp_path, [5], after_step=4)
    assert path.read_bytes() == whole


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    _write(tmp_path, range(1, 6), after_step=0)
    path = tmp_path / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")
    for damage in (b'{"kind": "tr', b"\xff\xfe"):
        path.write_bytes(b"\n".join([*lines[:2], damage, *lines[3:]]))
        with pytest.raises(UserError, match=r"metrics\.jsonl is damaged in line 3"):
            read_metrics(path)


def test_rows_that_are_no_json_are_never_written(tmp_path):
    with MetricsWriter(tmp_path, after_step=0) as writer, pytest.raises(ValueError, match="JSON"):
        writer.write({"kind": "train", "step": 1, "loss": math.nan})


@pytest.mark.parametrize("row", ["[]", '{"kind": "train"}', '{"kind": "a", "step": 1, "b": NaN}', "[" * 10**5])
def test_a_row_of_something_else_is_damage(tmp_path, row):
    (tmp_path / "metrics.jsonl").write_text(f"{row}\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl is damaged in line 1; restore it"):
        read_metrics(tmp_path / "metrics.jsonl")


def test_a_full_disk_under_the_metrics_is_told_once(tmp_path):
    """/dev/full takes what is buffered, and refuses it when it is handed on."""
    writer = MetricsWriter(tmp_path, after_step=0)
    writer._file.close()
    writer._file = Path("/dev/full").open("a", encoding="utf-8")  # noqa: SIM115 (the writer closes it)

    def fill():
        with writer:
            writer.write({"kind": "train", "step": 1})
            writer.flush()

    with pytest.raises(OSError, match="No space") as caught:
        fill()
    assert caught.value.__context__ is None


def test_a_run_that_is_deleted_under_its_process_ends(tmp_path):
    with MetricsWriter(tmp_path, after_step=0) as writer:
        (tmp_path / "metrics.jsonl").unlink()
        with pytest.raises(StorageError, match="was deleted under the run"):
            writer.flush()


def test_write_json_leaves_the_old_file_or_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    write_json(path, {"state": "running"})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"state": math.inf})
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", _killed)
        with pytest.raises(KeyboardInterrupt):
            write_json(path, {"state": "finished"})
    assert json.loads(path.read_text()) == {"state": "running"}
    write_json(path, {"state": "finished"})
    assert json.loads(path.read_text()) == {"state": "finished"}
