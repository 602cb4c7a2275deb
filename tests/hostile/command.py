"""A command line meant to break the application, and what must come of it."""

import dataclasses
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from unroll_jax.train.__main__ import main

CONTROLS = re.compile(
    r"[^\S\n\t\r ]|[\x00-\x08\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)
LONGEST = 120  # seconds. A command that takes longer hangs


@dataclasses.dataclass(frozen=True)
class Command:
    line: str  # the arguments behind `unroll-jax`, split at spaces
    words: tuple[str, ...]  # of its one-line error, or of its output if it succeeds
    # writes files into the folder beforehand
    given: Callable[[Path], None] | None = None
    code: int = 2  # of an error, 0 for any valid command, however odd
    # paths that must not exist afterwards: outputs that a failed command may not begin
    gone: tuple[str, ...] = ()


def assert_handled(
    command: Command,
    folder: Path,
    patch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
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
    assert not CONTROLS.findall(output.out + output.err), (
        "a name must not steer the terminal"
    )
    for word in command.words:
        assert word in printed, printed
    if command.code:
        last = output.err.splitlines()
        assert len(last) == 1, output.err
        assert last[0].startswith("error: ")
    for path in command.gone:
        assert not (folder / path).exists(), f"{path} was left behind"


def _hang(*_: object) -> None:
    raise TimeoutError(f"still running after {LONGEST} s")
