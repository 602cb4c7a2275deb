"""Run folders meant to break the commands that read them before anything is computed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hostile.command import Command
from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.runs import identity

Given = Callable[[Path], None]
FINGERPRINT = {"pixel_std": 0.25}
STATUS = {"state": "finished", "steps": 6, "train_seconds": 1.0, "messages": []}


def run(folder: Path, experiment: str = "video-ut", name: str = "run") -> None:
    """A finished run of an experiment with its default options, without arrays."""
    root = folder / name
    (root / "checkpoints" / "6").mkdir(parents=True)
    (root / "config.json").write_text(json.dumps(identity(experiment, EXPERIMENTS[experiment].config, FINGERPRINT)))
    (root / "status.json").write_text(json.dumps(STATUS | {"experiment": experiment}))
    (root / "metrics.jsonl").write_text("")


def config(text: str | bytes | None = None, **fields: Any) -> Given:
    """A run whose config.json has another text, or other fields; of a dotted name with "__" for the dot."""

    def given(folder: Path) -> None:
        run(folder)
        path = folder / "run" / "config.json"
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
        content = json.dumps(values) if text is None else text
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return given


def written(files: dict[str, str | bytes | None], experiment: str = "video-ut") -> Given:
    """A run with other contents of files beside or in it; None makes a folder in place of a file."""

    def given(folder: Path) -> None:
        run(folder, experiment)
        for name, content in files.items():
            path = folder / name
            path.unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.mkdir()
            else:
                path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return given


def checkpoints(content: str) -> Given:
    """A run with something in place of its checkpoints."""

    def given(folder: Path) -> None:
        run(folder)
        place = folder / "run" / "checkpoints"
        (place / "6").rmdir()
        if content == "file":
            place.rmdir()
            place.write_text("")
        elif content == "unfinished":
            (place / "6.orbax-checkpoint-tmp").mkdir()

    return given


def parent(folder: Path) -> None:
    for name in ("a", "b"):
        run(folder, name=f"{name}/run")


def loop(folder: Path) -> None:
    (folder / "run").symlink_to(folder / "run")


READERS = [
    ("here", "here", None),
    ("run", "run", loop),
    ("run", "run", written({"run/config.json": None})),
    ("run/config.json", "run/config.json", run),
    ("a", "a/run", parent),
    ("run", "run/config.json", config("")),
    ("run", "run/config.json", config('{"experiment": "video-ut"')),
    ("run", "run", config(json.dumps({"format": "unroll_jax 1"}))),
    ("run", "'steps'", config(steps="gone")),
    ("run", "checkpoints", checkpoints("file")),
    ("run", "checkpoints", checkpoints("empty")),
    ("run", "checkpoints", checkpoints("unfinished")),
]
CONFIGS = {
    "config.json": [
        b"\xff\xfe{}",
        bytes(4096),
        "[]",
        "null",
        "[" * 100_000,
        '{"steps": NaN}',
        '{"steps": -Infinity}',
        '{"steps": 1e999}',
        *(f'{{"steps": 1{"0" * digits}}}' for digits in (400, 5000)),
        '{"steps": 1, "steps": 2}',
    ],
    "version 9": [{"version": "9"}],
    "version 0.1": ["{}", f'{{"steps": 1{"0" * 30}}}'],
    "'task'": [{"task": "video-2030"}, {"task": ["video"]}, {"task": "gone"}],
    "'experiment'": [{"experiment": "gone"}, {"experiment": ["video-ut"]}, {"experiment": None}],
    "experiment was video-ut, is now ucsd-ut": [{"experiment": "ucsd-ut"}],
    "'found'": [{"found": {}}, {"found": "x"}, {"found": None}, {"found": "gone"}],
    "'momentum'": [{"momentum": 0.9}],
    "'rank'": [{"model__rank": "gone"}],
    "num_layers": [{"model": None}, {"model": [1, 2]}],
    "steps": [{"steps": value} for value in (6.5, True, None, "6", -4)],
    "test_gammas": [{"test_gammas": 0.5}, {"test_gammas": ["a"]}],
    "learning_rate": [{"primal__learning_rate": "1e-3"}],
    "method": [{"method": "sgd"}],
    "seed": [{"seed": {}}, {"seed": 2**40}],
}
LINES = [
    ("export run --out out", "--out out", written({"out": ""})),
    ("export run --out out", "--out out", written({"out/thesis.tex": ""})),
    ("export run --out run", "--out run", run),
    ("export run --out /proc/out", "--out /proc/out", run),
    ("report run --out /proc/out", "run", run),
    ("report run", "evaluation.json", written({"run/evaluation.json": "{}"})),
    ("report run", "evaluation.json", written({"run/evaluation.json": None})),
    ("report run", "is not a finite number", written({"run/evaluation.json": f'{{"num_layers": 1{"0" * 400}}}'})),
    ("report nowhere run", "nowhere", run),
    ("predict run --text good", "video-ut", run),
    ("predict run --text good --gamma nan", "--gamma", written({}, "text-ut")),
    ("predict run --file /dev/zero", "--file /dev/zero", written({}, "text-ut")),
    ("predict run --file texts", "--file texts", written({}, "text-ut")),
    ("predict run --file texts", "--file texts", written({"texts": b"\xff\xfe\x00"}, "text-ut")),
    ("predict run --file texts", "--file texts", written({"texts": ""}, "text-ut")),
]
COMMANDS = [
    *(
        Command(f"{command} {rest}", (named,), given=given)
        for command in ("evaluate", "export")
        for rest, named, given in READERS
    ),
    *(
        Command("evaluate run", (named,), given=config(**value) if isinstance(value, dict) else config(value))
        for named, values in CONFIGS.items()
        for value in values
    ),
    *(Command(line, (named,), given=given) for line, named, given in LINES),
    Command("export nowhere --out out", ("nowhere",), gone=("out",)),
    Command("export run --out out", ("checkpoints",), given=checkpoints("empty"), gone=("out",)),
]
