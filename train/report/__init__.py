"""Reports on evaluated run folders: pictures, one page, a strict-JSON summary, and tables and words for the terminal.

What a report on one kind of experiment says is in `constrained` (video, text, and tasks of your own with figures of
layers), `supervised` (images, scenes) and `plain` (any other task of your own).
"""

import base64
import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from matplotlib.figure import Figure

from ..config.errors import StorageError
from ..system.files import write_all
from ..system.terminal import Table, as_text
from .panels import png


@dataclass(frozen=True)
class Picture:
    """A figure, which is also written as a file of that name, and the words under it."""

    name: str
    caption: str
    figure: Figure

    @functools.cached_property
    def data(self) -> bytes:
        """The figure as PNG, drawn on first use."""
        return png(self.figure)

    @property
    def base64(self) -> str:
        """The picture as the page holds it."""
        return base64.b64encode(self.data).decode()


class Fold(NamedTuple):
    """A fold of the page, with what it shows once its summary is opened: paragraphs and tables, or text as it is."""

    summary: str
    blocks: Sequence[str | Table] = ()
    text: str = ""


Block = str | Picture | Table | Fold  # a string is a paragraph
Sections = Sequence[tuple[str, Sequence[Block]]]  # headings, "" for none, and what stands below each


class Report(NamedTuple):
    """All that a report says: on its page, in JSON, and as ``tables`` and ``sentences`` on the terminal.

    ``floor`` says what the figures are without a model, for model cards.
    """

    title: str
    sections: Sections
    summary: dict[str, Any]
    tables: Sequence[Table]
    sentences: Sequence[str] = ()
    opening: str = ""
    verdicts: Sequence[str] = ()
    warnings: Sequence[str] | None = None  # None where none are looked for
    floor: str = ""


def write(
    kind: Callable[[Sequence[Path]], Report], folders: Sequence[Path], out: Path, *, log: Callable[[str], None] = print
) -> dict[str, Any]:
    """Writes a kind's report as ``index.html``, ``NAME.png`` and ``summary.json`` into ``out``; returns the summary."""
    report = kind([Path(folder) for folder in folders])
    write_files(out, report)
    for words in (*(as_text(table) + "\n" for table in report.tables), *report.sentences):
        log(words)
    log(f"report: {out / 'index.html'}")
    return report.summary


def write_files(out: Path, report: Report) -> None:
    """Writes the files of a report, all or none."""
    pictures = [block for _, blocks in report.sections for block in blocks if isinstance(block, Picture)]
    summary = json.dumps(report.summary, indent=2, allow_nan=False) + "\n"
    files = {f"{picture.name}.png": picture.data for picture in pictures}
    try:
        write_all(out, files | {"index.html": page(report).encode(), "summary.json": summary.encode()})
    except OSError as error:
        raise StorageError(f"cannot write the report to {out} ({error.strerror}); choose another folder") from None


def page(report: Report) -> str:
    """One HTML file with its pictures inside, no script, nothing loaded from elsewhere."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    strict = jinja2.StrictUndefined
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=strict, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html").render(report=report)
