"""The files of a report: one HTML page from one escaped template, figures as PNG,
and a strict-JSON summary."""

import base64
import dataclasses
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..system.files import to_bytes, without_folders, write_all
from ..system.terminal import Table
from .records import Run

# A panel is 4.8 inches wide. Two fit side by side. On a phone of 390 px (75 px an inch)
# letters are 10 px high.
PANEL, WIDTH, DPI = (4.8, 4.2), 9.0, 160
RANGE = re.compile(r"(\[[^][,]+,) ")  # whose ends stay on one line
GUIDE = "#222222"  # the colour of lines that guide the eye
SUMMARY = "summary.json"
TEMPLATE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{{ report.title }}</title>
<style>
body { margin: 0 auto; padding: 1rem; max-width: 76rem; overflow-wrap: break-word; }
h1, p, ul, figcaption { max-width: 60rem; }
body { font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { margin-top: 2.2rem; border-bottom: 1px solid #8888; }
figure { margin: 1rem 0; }
figure.panel { display: inline-block; vertical-align: top; margin-right: .8rem; }
figure.panel { width: calc(50% - 1rem); min-width: min(28.3rem, 100%); }
figure div { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; }
table { font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #8884; }
th, td { text-align: right; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; }
th:first-child, td:first-child { background: Canvas; min-width: 5rem; }
.note, figcaption { opacity: .75; font-size: .875rem; margin: .2rem 0 0; }
figcaption.title { opacity: 1; font-weight: 600; }
img { width: 100%; border-radius: 6px; }
</style></head>
<body>
<h1>{{ report.title }}</h1>
{% if report.introduction %}<p>{{ report.introduction }}</p>{% endif %}
<ul>{% for line in report.verdict %}<li>{{ line }}</li>{% endfor %}</ul>
{% for line in report.warnings %}<p class="note">Warning: {{ line }}</p>{% endfor %}
{% for heading, blocks in report.sections %}
{% if heading %}<h2>{{ heading }}</h2>{% endif %}
{% for block in blocks %}
{% if block.caption is defined %}
<figure{% if not block.wide %} class="panel"{% endif %}>
<img src="data:image/png;base64,{{ encoded[block.name ~ ".png"] }}"
 alt="{{ block.caption }}">
<figcaption>{{ block.caption }}</figcaption></figure>
{% else %}
<figure><figcaption class="title">{{ block.title }}</figcaption>
<div tabindex="0"><table aria-label="{{ block.title }}">
<thead><tr>{% for cell in block.header %}<th scope="col">{{ cell }}</th>{% endfor %}
</tr></thead>
<tbody>{% for row in block.rows %}
<tr>{% for cell in row %}<td>{{ cell | whole_ranges }}</td>{% endfor %}</tr>{% endfor %}
</tbody></table></div>
{% if block.note %}<p class="note">{{ block.note }}</p>{% endif %}</figure>
{% endif %}
{% endfor %}
{% endfor %}
</body></html>
"""


class Picture(NamedTuple):
    """A figure, which is also written as a file of that name, and its caption.
    ``wide`` ones take the whole page."""

    name: str
    caption: str
    figure: Figure
    wide: bool = False


class Report(NamedTuple):
    """The content of a report, on its page, in JSON, and on the terminal.
    ``introduction`` describes training and score in plain words. A section has a
    heading, pictures and tables. ``runs`` have a row each in summary.json.
    """

    title: str
    sections: Sequence[tuple[str, Sequence[Picture | Table]]]
    runs: Sequence[Run] = ()
    verdict: Sequence[str] = ()
    warnings: Sequence[str] = ()
    introduction: str = ""

    def blocks(self, kind: type) -> list[Any]:
        """Returns the pictures or the tables of all sections."""
        every = [block for _, blocks in self.sections for block in blocks]
        return [block for block in every if isinstance(block, kind)]


def write_files(out: Path, report: Report) -> dict[str, Any]:
    """Writes the files of a report, all or none. Returns the summary, which is strict
    JSON: a number that is not finite is None."""
    pictures = {f"{one.name}.png": _png(one.figure) for one in report.blocks(Picture)}
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters["whole_ranges"] = lambda cell: RANGE.sub("\\1\u00a0", cell)
    encoded = {name: base64.b64encode(file).decode() for name, file in pictures.items()}
    page = environment.from_string(TEMPLATE).render(report=report, encoded=encoded)
    summary = {
        "title": report.title,
        "verdict": report.verdict,
        "warnings": report.warnings,
        "tables": [dataclasses.asdict(table) for table in report.blocks(Table)],
        "runs": [run.summary() for run in report.runs],
    }
    summary = without_folders(json.loads(json.dumps(summary)))  # lists for tuples
    # the summary is first: a folder that has it is a report's, if this is killed
    files = {SUMMARY: to_bytes(summary), **pictures, "index.html": page.encode()}
    write_all(out, files)
    return summary


def tidy(axes: Axes, title: str) -> None:
    """Gives axes a faint grid, no box, and a title."""
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize="medium")


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, facecolor="white")
    return buffer.getvalue()
