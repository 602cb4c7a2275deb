"""The terminal: safe output, progress of a run, a bar or in a log file lines; and
tables of text."""

import contextlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO, cast

from ..config.errors import UNSHOWN

if TYPE_CHECKING:
    from tqdm import tqdm

LINE = (
    "{desc}: step {n_fmt} of {total_fmt} ({percentage:.0f}%), {remaining} left{postfix}"
)
SILENCE = 30.0  # seconds between the lines of a log file


def progress(title: str, *, total: int, done: int = 0, shown: bool = True) -> "tqdm":
    """Returns tqdm's bar over the steps of a run, on a terminal, and elsewhere its
    lines, at most one every half minute."""
    from tqdm import tqdm  # imported here: `safe_output` is for every command

    lines = not sys.stderr.isatty()
    options = {
        "file": _Lines(sys.stderr),
        "mininterval": SILENCE,
        "maxinterval": SILENCE,
        "bar_format": LINE,
    }
    return tqdm(
        total=total,
        initial=done,
        unit="step",
        desc=title,
        disable=not shown,
        **options if lines else {},
    )


@contextlib.contextmanager
def pausing(bar: "tqdm", work: str) -> Iterator[None]:
    """Shows on a terminal the work that is done instead of training. Its time does
    not count for the time left."""
    title = getattr(bar, "desc", "")  # a disabled bar has none
    bar.set_description_str(f"{title}, {work}", refresh=sys.stderr.isatty())
    try:
        yield
    finally:
        bar.set_description_str(title, refresh=False)
        bar.unpause()


@contextlib.contextmanager
def safe_output() -> Iterator[None]:
    """Escapes the control characters of all that is written within the context: names
    of files and values of others. Characters that the terminal cannot encode are
    escaped too.
    """
    output = _Escaped(sys.stdout, "\n\t")
    # a bar begins its line again
    errors = _Errors(sys.stderr, "\n\t\r")
    with (
        contextlib.redirect_stdout(cast(TextIO, output)),
        contextlib.redirect_stderr(cast(TextIO, errors)),
    ):
        yield


class _Escaped:
    """A stream that escapes all control characters but the kept ones."""

    def __init__(self, stream: TextIO, kept: str):
        self._stream = stream
        self._kept = kept
        self._encoding = getattr(stream, "encoding", None) or "utf-8"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        plain = UNSHOWN.sub(self._shown, text)
        return self._stream.write(
            plain.encode(self._encoding, "backslashreplace").decode(self._encoding)
        )

    def _shown(self, match: re.Match[str]) -> str:
        return match[0] if match[0] in self._kept else ascii(match[0])[1:-1]


class _Errors(_Escaped):
    """Standard error, where a full disk loses messages but ends no run."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


class _Lines:
    """A stream on which each state of a bar is a line."""

    def __init__(self, stream: TextIO):
        self._stream, self.flush = stream, stream.flush

    def write(self, text: str) -> None:
        if line := text.strip():
            self._stream.write(f"{line}\n")


@dataclass(frozen=True)
class Table:
    """Rows as long as the header, with a title and a note."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def as_text(table: Table) -> str:
    """Returns the table as text, the first column aligned left and the rest right."""
    cells = (table.header, *table.rows)
    widths = [
        max(len(row[column]) for row in cells) for column in range(len(table.header))
    ]
    lines = [
        "  ".join(
            [f"{row[0]:<{widths[0]}}", *map(str.rjust, row[1:], widths[1:])]
        ).rstrip()
        for row in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(filter(None, [table.title, *lines, table.note]))
