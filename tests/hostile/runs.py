"""Damage to a finished run, of `tests.train.conftest.Clips`, for the commands that
read it or go on with it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.hostile.command import Command
from tests.hostile.given import Given, both, files

# With the options of `tests.train.conftest.config`.
RUN = (
    "run video-ut --out run --steps 6 --batch-size 4 --validate-every 2 --test-gammas"
    " 0 0.3"
)
RUN += " --model.num-layers 2 --model.rank 4"
EVALUATED = ("RMSE", "feasible")


def each(pattern: str, act: Callable[[Path], object]) -> Given:
    return lambda folder: (
        [act(path) for path in (folder / "run").glob(pattern)] and None
    )


def delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def gone(*patterns: str) -> Given:
    return both(*(each(pattern, delete) for pattern in patterns))


def text(pattern: str, content: str) -> Given:
    return each(pattern, lambda path: path.write_text(content))


def edited(name: str, change: Callable[[dict], object]) -> Given:
    def edit(path: Path) -> None:
        rows = json.loads(path.read_text())
        change(rows)
        path.write_text(json.dumps(rows))

    return each(name, edit)


def values(name: str, **fields: object) -> Given:
    return edited(name, lambda rows: rows.update(fields))


def as_folder(name: str) -> Given:
    return both(gone(name), lambda folder: (folder / "run" / name).mkdir())


def as_file(name: str) -> Given:
    return both(gone(name), lambda folder: (folder / "run" / name).touch())


def lines(change: Callable[[list[bytes]], list[bytes]]) -> Given:
    return each(
        "metrics.jsonl",
        lambda path: path.write_bytes(
            b"".join(change(path.read_bytes().splitlines(True)))
        ),
    )


OTHERS = ("notes.txt", "checkpoints/README", "checkpoints/.hidden", "left.partial")
OTHER_FILES = files({f"run/{name}": "mine" for name in OTHERS})
# Trained to step 4, as a kill leaves it.
CUT = both(
    gone("checkpoints/6", "evaluation.json"),
    values("status.json", state="running", steps=4),
)
ON = "checkpoint of step 4"
HANDLED = [  # commands that succeed, and words that they print
    ("evaluate run", EVALUATED, OTHER_FILES),
    (
        "evaluate run",
        EVALUATED,
        gone("status.json", "metrics.jsonl", ".lock", "evaluation.json"),
    ),
    ("evaluate run", EVALUATED, text("evaluation.json", "{")),
    (
        "report run",
        ("metrics.jsonl has 3 of 6 steps",),
        lines(lambda rows: [*rows[:4], rows[4][:9]]),
    ),
    (RUN, ("finished already after 6 steps", *EVALUATED), gone("evaluation.json")),
    (RUN, (ON, *EVALUATED), both(CUT, gone("status.json"), text(".lock", "99999"))),
    (RUN, EVALUATED, both(CUT, gone("checkpoints"))),
]
REFUSED = [  # commands that end in a one-line error, and the word that it names
    ("evaluate run", "run", as_folder("evaluation.json")),
    ("export run", "run", gone("checkpoints/*/state")),
    (RUN, "checkpoints", both(gone("evaluation.json"), gone("checkpoints"))),
    (RUN, "status.json", both(CUT, text("status.json", ""))),
    (RUN, "run/metrics.jsonl", both(CUT, as_folder("metrics.jsonl"))),
    (RUN.replace("--out run", "--out run/config.json"), "run/config.json", OTHER_FILES),
]
COMMANDS = [
    *(Command(line, words, given=given, code=0) for line, words, given in HANDLED),
    *(Command(line, (named,), given=given) for line, named, given in REFUSED),
]
