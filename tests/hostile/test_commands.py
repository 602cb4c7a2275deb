"""Every hostile command is handled, or ends in one line: no traceback, no hang,
nothing left half done."""

import contextlib
import shutil
import signal

import pytest
from hypothesis import HealthCheck, given, settings

from tests.hostile import data, folders, options, runs
from tests.hostile.command import assert_handled
from tests.hostile.readers import READERS, changed
from tests.train.conftest import clips_in_memory
from unroll_jax.train.__main__ import main
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.report import figures

TABLES = {
    "options": options.COMMANDS,
    "folders": folders.COMMANDS,
    "data": data.COMMANDS,
}
QUICK = ("options", "folders")  # make test runs these. Data are read by the others
COMMANDS = [
    pytest.param(
        command,
        id=f"{name}: {command.line}",
        marks=[] if name in QUICK else [pytest.mark.slow],
    )
    for name, table in TABLES.items()
    for command in table
]


@pytest.fixture(autouse=True)
def _prepared(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("UNROLL_PREPARED", str(tmp_path_factory.mktemp("prepared")))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_hostile_command_is_handled_or_ends_in_one_line(
    command, tmp_path, monkeypatch, capsys
):
    assert_handled(command, tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    with clips_in_memory(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(runs.RUN.split()) == 0
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    range(len(runs.COMMANDS)),
    ids=lambda n: f"{n}: {runs.COMMANDS[n].line[:60]}",
)
def test_a_damaged_run_is_handled_or_refused_in_one_line(
    number, trained, tmp_path, monkeypatch, capsys
):
    command = runs.COMMANDS[number]
    shutil.copytree(trained, tmp_path / "run")
    with (
        clips_in_memory()
        if not command.line.startswith("report")
        else contextlib.nullcontext()
    ):
        assert_handled(command, tmp_path, monkeypatch, capsys)


DRAWN = ("curves", "evaluation", "status")  # reports: slower


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in DRAWN else [])
        for name in READERS
    ],
)
@pytest.mark.filterwarnings("ignore")  # of numbers that overflow
def test_a_changed_file_is_accepted_or_refused(name, tmp_path, monkeypatch):
    """Within 30 seconds. `make fuzz` tries 200 times as many."""
    monkeypatch.setattr(figures, "pictures", lambda *_: [])
    _, prepare, read = READERS[name]
    prepare(tmp_path)
    file = tmp_path / READERS[name].name
    read(tmp_path)  # the valid file

    @settings(
        max_examples=settings.default.max_examples // 5,
        suppress_health_check=list(HealthCheck),
    )
    @given(changed(file.read_bytes()))
    def attempt(content):
        file.write_bytes(content)
        signal.alarm(30)
        with contextlib.suppress(UserError):
            read(tmp_path)

    original = signal.signal(
        signal.SIGALRM, lambda *_: pytest.fail("still reading after 30 seconds")
    )
    try:
        attempt()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, original)
