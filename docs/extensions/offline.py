"""Fails the build where a page would ask another host for a script, style, font or
picture, or links to no file."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# What a browser fetches as it shows a page; a link that the reader may follow is none
# of these.
FETCHED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
}
FETCHES = re.compile(r"""(?:url\(|@import)\s*['"]?(?:https?:)?//""")
STYLES = (
    "stylesheet",
    "preload",
    "modulepreload",
    "icon",
    "preconnect",
    "dns-prefetch",
    "prefetch",
)


class Page(HTMLParser):
    """The addresses that a page fetches and links to, and the places in it that
    links may name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: set[str] = set()
        self.linked: set[str] = set()
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Is called by the parser."""
        values = {name: value or "" for name, value in attrs}
        if tag in FETCHED:
            self.fetched.add(values.get(FETCHED[tag], ""))
        elif tag == "link" and any(kind in values.get("rel", "") for kind in STYLES):
            self.fetched.add(values.get("href", ""))
        elif tag == "a":
            self.linked.add(values.get("href", ""))
        self.places |= {values[name] for name in ("id", "name") if name in values}


def setup(app: "Sphinx") -> dict[str, Any]:
    """Is called by Sphinx."""
    app.connect("build-finished", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _check(app: "Sphinx", failure: Exception | None) -> None:
    from sphinx.util import logging  # here, so that tests of the rest need no Sphinx

    logger = logging.getLogger(__name__)
    if failure is None and app.builder.format == "html":
        for fault in faults(Path(app.outdir)):
            logger.warning(fault)


def faults(folder: Path) -> list[str]:
    """Returns the faults of the pages and style sheets in a folder, a line each."""
    lines = []
    pages = {
        path.resolve(): Page(path.read_text(encoding="utf-8"))
        for path in folder.rglob("*.html")
    }
    for path, page in pages.items():
        where = path.relative_to(folder.resolve())
        lines += [
            f"{where} fetches {url} from another host"
            for url in sorted(page.fetched)
            if _is_elsewhere(url)
        ]
        lines += [
            f"{where} links to {url}, which is not there"
            for url in sorted(page.linked)
            if _leads_nowhere(path, url, pages)
        ]
    for path in folder.rglob("*.css"):
        if FETCHES.search(path.read_text(encoding="utf-8")):
            lines.append(f"{path.relative_to(folder)} fetches from another host")
    return lines


def _is_elsewhere(url: str) -> bool:
    return bool(urlsplit(url).netloc)


def _leads_nowhere(path: Path, url: str, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(url)
    if not url or parts.scheme or parts.netloc:
        return False
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.exists():
        return True
    return (
        bool(parts.fragment)
        and target in pages
        and unquote(parts.fragment) not in pages[target].places
    )
