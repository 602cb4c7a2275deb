"""Two runs side by side: every figure in both, and what changed beyond the spread of its runs."""

import numpy as np
import pytest

from benchmarks import __main__ as benchmarks
from benchmarks.record import Record, write

CONDITIONS = {
    "date": "2026-01-01",
    "quick": False,
    "machine": {"cpu": "a CPU", "cores": 2, "accelerator": "none"},
    "versions": {"jax": "1"},
    "allocator": {"keeps_memory": True},
}


def run(folder, seconds, mebibytes, **conditions):
    record = Record(figures={"step_mebibytes": mebibytes, "count": 0, "power": 1.0 + 0.005 * mebibytes})
    record.time("step_seconds", np.array(seconds))
    write(record, "growth", folder, CONDITIONS | conditions)
    return folder


def test_changes_beyond_the_spread_are_marked(capsys, tmp_path):
    old = run(tmp_path / "old", [0.9, 1.0, 1.1], 10.0)  # a spread of 10%
    new = run(tmp_path / "new", [1.08, 1.2, 1.32], 10.0)
    assert benchmarks.main(["--compare", str(old), str(new / "growth.json")]) == 0
    printed = capsys.readouterr().out
    lines = {line.split()[1]: line.split() for line in printed.splitlines() if line.startswith("growth: ")}
    assert lines["step_seconds"][2:] == ["1", "1.2", "1.200", "20.0%"]  # as much as both spreads
    assert (lines["step_mebibytes"][2:], lines["count"][2:]) == (["10", "10", "1.000"], ["0", "0", "1.000"])
    assert "4 figures in both, 0 changed" in printed
    run(tmp_path / "new", [1.2, 1.3, 1.4], 11.0)
    benchmarks.main(["--compare", str(old), str(new)])
    printed = capsys.readouterr().out
    assert all(line.endswith("*") for line in printed.splitlines() if "step_" in line)
    assert "4 figures in both, 2 changed" in printed  # and the power, by less than 10%


def test_what_else_differs_is_said(capsys, tmp_path):
    old = run(tmp_path / "old", [1.0], 10.0)
    new = run(tmp_path / "new", [1.0], 10.0, quick=True, versions={"jax": "2"})
    benchmarks.main(["--compare", str(old), str(new)])
    printed = capsys.readouterr().out
    assert "one of the two was run with --quick" in printed
    assert "jax differs: 1; 2" in printed


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no records of benchmarks"),
        ("{", "cannot be read"),
        ('{"ratio": 1.2}', "not a record that this version writes"),
        ("3", "cannot be read"),
    ],
)
def test_what_is_no_record_is_one_line_and_exit_code_2(content, words, capsys, tmp_path):
    if content is not None:
        (tmp_path / "growth.json").write_text(content)
    assert benchmarks.main(["--compare", str(tmp_path), str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert words in error
