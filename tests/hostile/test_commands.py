"""Every hostile command is handled rightly or refused in one line: no traceback, no hang, nothing left half done."""

import pytest

from tests.hostile import choices, data, data_encoders, data_images, data_texts, folders, options, places
from tests.hostile.command import assert_handled

TABLES = {
    "options": options.COMMANDS,
    "choices": choices.COMMANDS,
    "places": places.COMMANDS,
    "data": data.COMMANDS,
    "data_encoders": data_encoders.COMMANDS,
    "data_images": data_images.COMMANDS,
    "data_texts": data_texts.COMMANDS,
    "folders": folders.COMMANDS,
}
QUICK = ("options", "choices", "places", "folders")  # make test runs these; data are read by the others
COMMANDS = [
    pytest.param(command, id=f"{name}: {command.line}", marks=[] if name in QUICK else [pytest.mark.slow])
    for name, table in TABLES.items()
    for command in table
]


@pytest.fixture(autouse=True)
def _prepared(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("UNROLL_PREPARED", str(tmp_path_factory.mktemp("prepared")))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_hostile_command_is_handled_or_refused_in_one_line(command, tmp_path, monkeypatch, capsys):
    assert_handled(command, tmp_path, monkeypatch, capsys)
