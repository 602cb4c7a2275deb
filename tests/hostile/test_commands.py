"""Every hostile command is handled, or ends in one line: no traceback, no hang, nothing left half done."""

import pytest

from tests.hostile import data, folders, options
from tests.hostile.command import assert_handled

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
