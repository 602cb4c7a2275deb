"""Run folders meant to break the commands that read them before anything is
computed."""

import json
from functools import partial
from pathlib import Path

from tests.hostile.command import Command
from tests.hostile.given import Given, both, files, folders, link
from tests.hostile.runs import as_file, edited, gone, text, values
from unroll_jax.train.core.folder import identity
from unroll_jax.train.registry import EXPERIMENTS


def run(folder: Path, experiment: str = "video-ut", name: str = "run") -> None:
    config = identity(experiment, EXPERIMENTS[experiment].config, {"pixel_std": 0.25})
    status = {
        "state": "finished",
        "steps": 6,
        "train_seconds": 1.0,
        "messages": [],
        "experiment": experiment,
    }
    contents = {
        "config.json": json.dumps(config),
        "status.json": json.dumps(status),
        "metrics.jsonl": "",
    }
    files({f"{name}/{file}": content for file, content in contents.items()})(folder)
    folders(f"{name}/checkpoints/6")(folder)


def beside(contents: dict[str, str | bytes], experiment: str = "video-ut") -> Given:
    return both(partial(run, experiment=experiment), files(contents))


EMPTY = both(run, gone("checkpoints/6"))
READERS = [
    ("here", "here", None),
    ("run", "run", link("run", "run")),
    ("run/config.json", "run/config.json", run),
    ("a", "a/run", both(partial(run, name="a/run"), partial(run, name="b/run"))),
    (
        "run",
        "run",
        both(run, text("config.json", json.dumps({"format": "unroll_jax 1"}))),
    ),
    ("run", "checkpoints", both(run, as_file("checkpoints"))),
    ("run", "checkpoints", EMPTY),
]
CONFIGS = {
    "config.json": [
        b"\xff\xfe{}",
        bytes(4096),
        "[]",
        "[" * 100_000,
        '{"steps": NaN}',
        f'{{"steps": 1{"0" * 5000}}}',
    ],
    "'task'": [
        {"task": "video-2030"},
        {"task": ["video"]},
        lambda row: row.pop("task"),
    ],
    "'experiment'": [lambda row: row.pop("experiment"), {"experiment": ["video-ut"]}],
    "'found'": [{"found": "x"}, lambda row: row.pop("found")],
    "steps was None": [lambda row: row.pop("steps")],
    "model must be an object": [{"model": None}],
    "steps": [{"steps": value} for value in (6.5, True, None, "6", -4)],
    "test_gammas": [{"test_gammas": 0.5}, {"test_gammas": ["a"]}],
}
LINES = [
    ("export run --out out", "--out out", beside({"out/thesis.tex": ""})),
    ("export run --out run", "--out run", run),
    ("export run --out /proc/out", "/proc/out: ", run),
    ("report run --out /proc/out", "run", run),
    ("report run", "evaluation.json", beside({"run/evaluation.json": "{}"})),
    (
        "report run",
        "is not a finite number",
        beside({"run/evaluation.json": f'{{"num_layers": 1{"0" * 400}}}'}),
    ),
    ("report nowhere run", "nowhere", run),
    ("predict run --file /dev/zero", "--file /dev/zero", beside({}, "text-ut")),
    ("predict run --file texts", "--file texts", beside({"texts": ""}, "text-ut")),
]


def with_config(change: object) -> Given:
    if isinstance(change, str | bytes):
        return beside({"run/config.json": change})
    return both(
        run,
        values("config.json", **change)
        if isinstance(change, dict)
        else edited("config.json", change),
    )


COMMANDS = [
    *(
        Command(f"{command} {rest}", (named,), given=given)
        for command in ("evaluate", "export")
        for rest, named, given in READERS
    ),
    *(
        Command("evaluate run", (named,), given=with_config(change))
        for named, changes in CONFIGS.items()
        for change in changes
    ),
    *(Command(line, (named,), given=given) for line, named, given in LINES),
    Command("export run --out out", ("checkpoints",), given=EMPTY, gone=("out",)),
]
