"""The files of a report: one HTML page from one escaped template, figures as PNG, and a strict-JSON summary."""

import base64
import functools
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..config.errors import StorageError
from ..system.files import write_all
from ..system.terminal import Table

# 9 inches shown at 900 px: one point of type is 1.4 px.
WIDTH, DPI = 9.0, 160
GUIDE = "#222222"  # the colour of lines that guide the eye


@dataclass(frozen=True)
class Picture:
    """A figure, which is also written as a file of that name, and its caption."""

    name: str
    caption: str
    figure: Figure

    @functools.cached_property
    def data(self) -> bytes:
        """The figure as PNG, drawn on first use."""
        buffer = io.BytesIO()
        # Tight: a layout makes too little room for legends below panels where these are wider than their panels.
        self.figure.savefig(buffer, format="png", dpi=DPI, facecolor="white", bbox_inches="tight", pad_inches=0.05)
        return buffer.getvalue()

    @property
    def base64(self) -> str:
        """The picture as the page holds it."""
        return base64.b64encode(self.data).decode()


class Report(NamedTuple):
    """The content of a report, on its page, in JSON, and as ``tables`` and ``verdict`` on the terminal.

    ``floor`` is the score without a model, for model cards.
    """

    title: str
    sections: Sequence[tuple[str, Sequence[Picture | Table]]]
    summary: dict[str, Any]
    tables: Sequence[Table]
    verdict: Sequence[str] = ()
    warnings: Sequence[str] = ()
    floor: str = ""


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
    """Returns one HTML file with its pictures inside, no script, nothing loaded from elsewhere."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(report=report)


def tidy(axes: Axes, title: str) -> None:
    """Gives axes a faint grid, no box, and a title."""
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize="medium")
