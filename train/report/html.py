"""The frame of a page: one HTML file with its figures inside, no script, nothing loaded from elsewhere."""

import base64
from collections.abc import Iterable
from html import escape
from pathlib import Path
from string import Template

from train.report.tables import Table

__all__ = ["figure_html", "page_html", "table_html"]


def page_html(title: str, parts: Iterable[str]) -> str:
    """The page as text: a title, which is escaped, and parts that are HTML."""
    frame = Template((Path(__file__).parent / "frame.html").read_text(encoding="utf-8"))
    return frame.substitute(title=escape(title), body="\n".join(parts))


def figure_html(data: bytes, caption: str) -> str:
    """A PNG and the words under it."""
    source = "data:image/png;base64," + base64.b64encode(data).decode("ascii")
    caption = escape(caption)
    return f'<figure><img src="{source}" alt="{caption}"><figcaption>{caption}</figcaption></figure>\n'


def table_html(table: Table, *, words: bool = False) -> str:
    """A table that scrolls where it is too wide; with ``words`` its cells are aligned left."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    style = ' class="words"' if words else ""
    return (
        f'<div class="scroll"><table{style}><caption>{escape(table.title)}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>{note}</div>\n"
    )
