"""metrics.jsonl and JSON files, and what is shown of a run."""

import io
import math
import sys

import pytest

from tests.errors import one_line
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.core.metrics import MetricsWriter, read_metrics
from unroll_jax.train.system.files import write_json
from unroll_jax.train.system.terminal import progress, safe_output

ROW = {
    "kind": "train",
    "loss": 0.5,
    "violations": [None, 0.25],
    "violation/layer 1": 0.25,
    "norm (L2)": None,
}


def write(folder, steps, *, after_step=0):
    with MetricsWriter(folder, after_step=after_step) as writer:
        for step in steps:
            writer.write({**ROW, "step": step})
        writer.flush()
    return (folder / "metrics.jsonl").read_bytes()


def steps_of(folder):
    return [row["step"] for row in read_metrics(folder / "metrics.jsonl")]


def test_reopening_forgets_later_rows_and_a_kill_loses_none(tmp_path, monkeypatch):
    def kill(*_):
        raise KeyboardInterrupt

    whole = write(tmp_path, range(1, 9))
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", kill)
        with pytest.raises(KeyboardInterrupt):
            MetricsWriter(tmp_path, after_step=5)
    assert (tmp_path / "metrics.jsonl").read_bytes() == whole
    assert write(tmp_path, range(6, 9), after_step=5) == whole
    assert steps_of(tmp_path) == list(range(1, 9))


@pytest.mark.parametrize("cut", [1, 30])
def test_a_last_line_cut_short_by_a_kill_is_forgotten(tmp_path, cut):
    whole = write(tmp_path, range(1, 6))
    (tmp_path / "metrics.jsonl").write_bytes(whole[:-cut])
    assert steps_of(tmp_path) == [1, 2, 3, 4]
    assert write(tmp_path, [5], after_step=4) == whole


@pytest.mark.parametrize("row", [b"[]", b'{"kind": "a", "step": 1, "b": NaN}'])
def test_a_line_that_is_no_row_is_damage_and_named(tmp_path, row):
    lines = write(tmp_path, range(1, 6)).split(b"\n")
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([*lines[:2], row, *lines[3:]]))
    with one_line(r"metrics\.jsonl is damaged in line 3; restore it"):
        steps_of(tmp_path)


def test_what_is_no_json_is_never_written(
    tmp_path,
):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "status.json", {"state": math.inf})
    assert list(tmp_path.iterdir()) == []
    with MetricsWriter(tmp_path, after_step=0) as writer:
        with pytest.raises(ValueError, match="JSON"):
            writer.write({"kind": "train", "step": 1, "loss": math.nan})
        (tmp_path / "metrics.jsonl").unlink()
        with pytest.raises(UserError, match="was deleted under the run"):
            writer.flush()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_output_and_bars_escape_what_would_steer_a_terminal(
    monkeypatch,
):
    content = io.BytesIO()
    monkeypatch.setattr(
        sys, "stdout", io.TextIOWrapper(content, encoding="ascii", write_through=True)
    )
    monkeypatch.setattr(sys, "stderr", Terminal())
    with safe_output(), progress("a\x1bb", total=1) as bar:
        print("a\x1b[2J\tb\x00\x9b\u202e\udcff é")
        bar.update()
    assert (
        content.getvalue()
        == rb"a\x1b[2J" + b"\t" + rb"b\x00\x9b\u202e\udcff \xe9" + b"\n"
    )
    assert "\ra\\x1bb: " in sys.stderr.getvalue()
