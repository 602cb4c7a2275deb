"""Run folders by hand: what commands look at before they compute anything."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.runs import identity

__all__ = ["STATUS", "changed", "config", "content", "deep", "run", "together"]

Given = Callable[[Path], None]
STATUS = {"state": "finished", "steps": 6, "train_seconds": 1.0, "messages": []}


def run(folder: Path, experiment: str = "video-ut") -> None:
    """A finished run of an experiment with its default options in ``folder / "run"``, but for arrays."""
    root = folder / "run"
    (root / "checkpoints" / "6").mkdir(parents=True)
    (root / "config.json").write_text(json.dumps(identity(experiment, EXPERIMENTS[experiment].config, {})))
    (root / "status.json").write_text(json.dumps(STATUS))
    (root / "metrics.jsonl").write_text("")


def content(name: str, text: str | bytes | None, experiment: str = "video-ut") -> Given:
    """A run with a file of other content; None: without it, "/": a folder in its place."""

    def given(folder: Path) -> None:
        run(folder, experiment)
        path = folder / "run" / name
        if text is None or text == "/":
            path.unlink()
        if text == "/":
            path.mkdir()
        elif text is not None:
            path.write_bytes(text if isinstance(text, bytes) else text.encode())

    return given


def config(of: str = "video-ut", **fields: Any) -> Given:
    """A run whose config.json has other fields; of a dotted name with "__" for the dot; "gone": without the field."""
    return changed("config.json", of, **fields)


def changed(name: str, of: str = "video-ut", **fields: Any) -> Given:
    """A run with another value in fields of a JSON file."""

    def given(folder: Path) -> None:
        run(folder, of)
        path = folder / "run" / name
        values = json.loads(path.read_text())
        for field, value in fields.items():
            *groups, last = field.split("__")
            inner = values
            for group in groups:
                inner = inner[group]
            if value == "gone":
                del inner[last]
            else:
                inner[last] = value
        path.write_text(json.dumps(values))

    return given


def deep(count: int = 100_000) -> str:
    """JSON nested deeper than Python recurses."""
    return "[" * count + "]" * count


def together(*givens: Given) -> Given:
    """All of them, one after the other."""

    def given(folder: Path) -> None:
        for one in givens:
            one(folder)

    return given
