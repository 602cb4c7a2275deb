"""A command line meant to break the application, what must come of it, and the options that its message may name."""

import contextlib
import dataclasses
import functools
import io
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from unroll_jax.train.__main__ import main
from unroll_jax.train.config.commands import Membership

CONTROLS = re.compile(r"[^\S\n\t\r ]|[\x00-\x08\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
OPTION = re.compile(r"(?<![\w=-])--([a-z][\w.-]*\w)")
QUOTED = re.compile(r"`[^`]*`")  # a command to give, with other options
NAMED = ("run", "plan", "sweep")  # commands whose options depend on the word behind them
OTHERS = ("evaluate", "predict", "generate", "export", "report", "prepare")
MEMBERSHIP = [f"--{field.name}" for field in dataclasses.fields(Membership)]
LONGEST = 120  # seconds; a command that takes longer hangs


@dataclasses.dataclass(frozen=True)
class Command:
    line: str  # the arguments behind `unroll-jax`, split at spaces
    words: tuple[str, ...]  # of its one-line error, or of its output if it succeeds
    given: Callable[[Path], None] | None = None  # writes files into the folder beforehand
    code: int = 2  # of an error; 0 for any valid command, however odd
    gone: tuple[str, ...] = ()  # paths that must not exist afterwards: outputs that a failed command may not begin


def assert_handled(command: Command, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    if command.given:
        command.given(folder)
    patch.chdir(folder)
    before = signal.signal(signal.SIGALRM, _hang)
    signal.alarm(LONGEST)
    try:
        code = main(command.line.split())
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    output = capsys.readouterr()
    printed = output.err if command.code else output.out + output.err
    assert code == command.code, printed
    assert "Traceback" not in output.out + output.err
    assert not CONTROLS.findall(output.out + output.err), "a name must not steer the terminal"
    for word in command.words:
        assert word in printed, printed
    if command.code:
        last = output.err.splitlines()
        assert len(last) == 1, output.err
        assert last[0].startswith("error: ")
        assert not strangers(command.line, last[0]), "the message names options that the command does not have"
    for path in command.gone:
        assert not (folder / path).exists(), f"{path} was left behind"


def _hang(*_: object) -> None:
    raise TimeoutError(f"still running after {LONGEST} s")


def strangers(line: str, message: str) -> set[str]:
    """Options that a message names, which neither the command has that showed it nor its user typed."""
    words, typed = line.split(), set(OPTION.findall(line.replace("=", " ")))
    commands = [word for word in words if word in (*NAMED, *OTHERS)]
    known = {option.removeprefix("--") for option in MEMBERSHIP}
    if commands:
        command = commands[0]  # behind it, words may name folders
        behind = words[words.index(command) + 1 :]
        known |= options_of(command, behind[0] if command in NAMED and behind else "")
    return set(OPTION.findall(QUOTED.sub("", message))) - typed - known - {"help"}


@functools.cache
def options_of(command: str, name: str) -> set[str]:
    words = [command, name, "--help"] if name else [command, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(io.StringIO()):
        main(words)
    return set(OPTION.findall(shown.getvalue()))
