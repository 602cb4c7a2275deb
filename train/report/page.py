"""The files of a report: one HTML page from one escaped template, figures as PNG, and a strict-JSON summary."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..system.files import to_bytes, write_all, writing
from ..system.terminal import Table

# 9 inches shown at 900 px: one point of type is 1.4 px.
WIDTH, DPI = 9.0, 160
GUIDE = "#222222"  # the colour of lines that guide the eye
TEMPLATE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{{ report.title }}</title>
<style>
body { margin: 0 auto; padding: 1.5rem 1rem; max-width: 60rem; font: 16px/1.5 system-ui, sans-serif; }
h2 { margin-top: 2.2rem; border-bottom: 1px solid #8888; }
div { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; white-space: nowrap; font-weight: 600; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: pre-line; }
p, figcaption { opacity: .75; font-size: .875rem; margin: .2rem 0 0; }
img { width: 100%; max-width: 900px; border-radius: 6px; }
</style></head>
<body>
<h1>{{ report.title }}</h1>
<ul>{% for line in report.verdict %}<li>{{ line }}</li>{% endfor %}</ul>
{% for line in report.warnings %}<p>Warning: {{ line }}</p>{% endfor %}
{% for heading, blocks in report.sections %}
{% if heading %}<h2>{{ heading }}</h2>{% endif %}
{% for block in blocks %}
{% if block.caption is defined %}
<figure><img src="data:image/png;base64,{{ encoded[block.name] }}" alt="{{ block.caption }}">
<figcaption>{{ block.caption }}</figcaption></figure>
{% else %}
<div><table><caption>{{ block.title }}</caption>
<thead><tr>{% for cell in block.header %}<th scope="col">{{ cell }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in block.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody>
</table>{% if block.note %}<p>{{ block.note }}</p>{% endif %}</div>
{% endif %}
{% endfor %}
{% endfor %}
</body></html>
"""


class Picture(NamedTuple):
    """A figure, which is also written as a file of that name, and its caption."""

    name: str
    caption: str
    figure: Figure


class Report(NamedTuple):
    """The content of a report, on its page, in JSON, and as ``tables`` and ``verdict`` on the terminal.

    ``floor`` is the score without a model, for model cards. A section has a heading, pictures and tables.
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
    drawn = {picture.name: _png(picture.figure) for picture in pictures}
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    encoded = {name: base64.b64encode(content).decode() for name, content in drawn.items()}
    page = environment.from_string(TEMPLATE).render(report=report, encoded=encoded)
    files = {f"{name}.png": content for name, content in drawn.items()}
    with writing(f"the folder of the report {out}", "choose another"):
        write_all(out, files | {"index.html": page.encode(), "summary.json": to_bytes(report.summary)})


def tidy(axes: Axes, title: str) -> None:
    """Gives axes a faint grid, no box, and a title."""
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize="medium")


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    # Tight: a layout makes too little room for legends below panels where these are wider than their panels.
    figure.savefig(buffer, format="png", dpi=DPI, facecolor="white", bbox_inches="tight", pad_inches=0.05)
    return buffer.getvalue()
