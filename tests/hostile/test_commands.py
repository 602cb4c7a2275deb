"""Every hostile command is handled, or ends in one line: no traceback, no hang, nothing left half done."""

import contextlib
import json
import shutil

import pytest

from tests.fuzz import READERS, Reader, fuzzed
from tests.hostile import data, folders, options, runs
from tests.hostile.command import assert_handled
from tests.train.conftest import clips_in_memory
from unroll_jax.train.__main__ import main
from unroll_jax.train.report import figures

TABLES = {"options": options.COMMANDS, "folders": folders.COMMANDS, "data": data.COMMANDS}
QUICK = ("options", "folders")  # make test runs these; data are read by the others
COMMANDS = [
    pytest.param(command, id=f"{name}: {command.line}", marks=[] if name in QUICK else [pytest.mark.slow])
    for name, table in TABLES.items()
    for command in table
]


@pytest.fixture(autouse=True)
def _prepared(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("UNROLL_PREPARED", str(tmp_path_factory.mktemp("prepared")))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_hostile_command_is_handled_or_ends_in_one_line(command, tmp_path, monkeypatch, capsys):
    assert_handled(command, tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    with clips_in_memory(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(runs.RUN.split()) == 0
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(runs.COMMANDS)), ids=lambda n: f"{n}: {runs.COMMANDS[n].line[:60]}")
def test_a_damaged_run_is_handled_or_refused_in_one_line(number, trained, tmp_path, monkeypatch, capsys):
    command = runs.COMMANDS[number]
    shutil.copytree(trained, tmp_path / "run")
    with clips_in_memory() if not command.line.startswith("report") else contextlib.nullcontext():
        assert_handled(command, tmp_path, monkeypatch, capsys)


DRAWN = ("curves", "evaluation", "status")  # reports: slower


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in DRAWN else []) for name in READERS]
)
@pytest.mark.filterwarnings("ignore")  # of numbers that overflow
def test_a_changed_file_is_accepted_or_refused(name, monkeypatch):
    monkeypatch.setattr(figures, "pictures", lambda *_: [])
    assert fuzzed(READERS[name], 60.0, most=100 if name in DRAWN else 20).broken == []


def test_a_reader_that_raises_another_error_is_reported():
    def read(folder):
        return json.loads((folder / "a.json").read_bytes())

    reader = Reader("a.json", lambda folder: (folder / "a.json").write_text('{"a": 1}'), read)
    assert any("JSONDecodeError" in words for words in fuzzed(reader, 60.0, most=20).broken)
