"""Progress of a run, a bar on a terminal and lines elsewhere; and tables of text."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TextIO

from tqdm import tqdm

__all__ = ["Progress"]

LINES = 10  # for a run, at most one each
LONGEST_SILENCE = 30.0  # seconds without a line
SHORTEST_SILENCE = 1.0


class Progress:
    """Progress over the steps of a run; rate and time left exclude the time within `pausing`.

    Args:
      title: shown before the steps.
      total: number of steps of the run.
      done: number of steps done by an earlier process.
      shown: True if this process shows them.
      stream: output; stderr by default.
      clock: returns seconds.
    """

    def __init__(
        self,
        title: str,
        *,
        total: int,
        done: int = 0,
        shown: bool = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._stream, self._clock = stream or sys.stderr, clock
        self._title, self._total, self._began_at, self._done, self._words = title, total, done, done, {}
        self._lines = shown and not self._stream.isatty()
        # Without smoothing, the rate is the mean over all steps, so that pauses can be subtracted.
        self._bar = tqdm(
            total=total,
            initial=done,
            unit="step",
            desc=title,
            mininterval=0.5,
            smoothing=0.0,
            file=self._stream,
            disable=not shown or self._lines,
        )
        self._began = self._told = clock()

    def __enter__(self) -> "Progress":
        """Returns itself; leaving the context ends the bar."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves the bar as it is."""
        self._bar.close()

    def step(self) -> None:
        """Counts a step."""
        self._done += 1
        self._bar.update()
        silence = self._clock() - self._told
        new_share = self._done * LINES // self._total > (self._done - 1) * LINES // self._total
        if silence >= LONGEST_SILENCE or (new_share and silence >= SHORTEST_SILENCE) or self._done == self._total:
            self._tell(self._standing())

    def words(self, words: dict[str, str]) -> None:
        """Sets the figures for the next line."""
        self._words = words
        self._bar.set_postfix(words, refresh=False)

    def write(self, line: str) -> None:
        """Shows a line above the bar."""
        if not self._bar.disable:
            self._bar.write(line, file=self._stream)
        self._tell(line)

    @contextlib.contextmanager
    def pausing(self, what: str) -> Iterator[None]:
        """Shows what is done instead of training, within the context."""
        began = self._clock()
        self._bar.set_description(f"{self._title}, {what}")
        if self._clock() - self._told >= LONGEST_SILENCE or self._done == self._began_at:
            self._tell(f"{self._title}: {what}")
        try:
            yield
        finally:
            pause = self._clock() - began
            self._began += pause
            self._bar.set_description(self._title, refresh=False)
            if not self._bar.disable:
                self._bar.start_t += pause

    def _standing(self) -> str:
        seconds, steps = self._clock() - self._began, self._done - self._began_at
        left = tqdm.format_interval(seconds / steps * (self._total - self._done)) if steps else "?"
        share = 100 * self._done // self._total
        figures = "".join(f", {name} {value}" for name, value in self._words.items())
        return f"{self._title}: step {self._done} of {self._total} ({share}%), {left} left{figures}"

    def _tell(self, line: str) -> None:
        if self._lines:
            self._stream.write(f"{line}\n")
            self._stream.flush()
            self._told = self._clock()


@dataclass(frozen=True)
class Table:
    """Rows as long as the header, with a title and a note."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    words: bool = False


def as_text(table: Table) -> str:
    """Returns the table as text, the first column aligned left and the others right."""
    cells = (table.header, *table.rows)
    widths = [max(len(row[column]) for row in cells) for column in range(len(table.header))]
    lines = ["  ".join([f"{row[0]:<{widths[0]}}", *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in cells]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(filter(None, [table.title, *lines, table.note]))
