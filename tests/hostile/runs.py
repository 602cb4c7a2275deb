"""Damage to a finished run, of `tests.train.conftest.Clips`, for the commands that read it or go on with it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.hostile.command import Command
from tests.hostile.given import Given, both

__all__ = ["COMMANDS", "OPTIONS"]

# Those of the run.
OPTIONS = {
    "steps": 6,
    "batch-size": 4,
    "validate-every": 2,
    "test-gammas": "0 0.3",  # as of `tests.train.conftest.config`
    "model.num-layers": 2,
    "model.rank": 4,
}
RUN = " ".join(["run video-ut --out run", *(f"--{name} {value}" for name, value in OPTIONS.items())])
EVALUATED = ("RMSE", "feasible")


def _each(pattern: str, act: Callable[[Path], object]) -> Given:
    """Acts on each path of a pattern in the run folder."""
    return lambda folder: [act(path) for path in (folder / "run").glob(pattern)] and None


def _delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _gone(*patterns: str) -> Given:
    return both(*(_each(pattern, _delete) for pattern in patterns))


def _text(pattern: str, text: str) -> Given:
    return _each(pattern, lambda path: path.write_text(text))


def _halved(pattern: str) -> Given:
    return _each(pattern, lambda path: os.truncate(path, path.stat().st_size // 2))


def _values(name: str, **fields: object) -> Given:
    return _each(name, lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), **fields})))


def _folder(name: str) -> Given:
    """A folder in place of a file."""
    return both(_gone(name), lambda folder: (folder / "run" / name).mkdir())


def _file(name: str) -> Given:
    """A file in place of a folder."""
    return both(_gone(name), lambda folder: (folder / "run" / name).touch())


def _pipe(name: str) -> Given:
    """A pipe in place of a file."""
    return both(_gone(name), lambda folder: os.mkfifo(folder / "run" / name))


def _device(name: str) -> Given:
    """A link to a device without end in place of a file."""
    return both(_gone(name), lambda folder: (folder / "run" / name).symlink_to("/dev/zero"))


def _lines(change: Callable[[list[bytes]], list[bytes]]) -> Given:
    return _each("metrics.jsonl", lambda path: path.write_bytes(b"".join(change(path.read_bytes().splitlines(True)))))


def _moved(folder: Path) -> None:
    (folder / "run").rename(folder / "elsewhere")


def _copied_step(folder: Path) -> None:
    """Somebody copied a checkpoint under another name; its contents are of step 6."""
    shutil.copytree(folder / "run" / "checkpoints" / "6", folder / "run" / "checkpoints" / "8")


def _other_files(folder: Path) -> None:
    for name in ("notes.txt", "checkpoints/README", "checkpoints/.hidden", "left.partial"):
        (folder / "run" / name).write_text("mine")


SPECIAL = ("checkpoints/6/notes/metadata", "checkpoints/6/state/manifest.ocdbt")
# Trained to step 4, as a kill leaves it.
CUT = both(_gone("checkpoints/6", "evaluation.json"), _values("status.json", state="running", steps=4))
ON = "checkpoint of step 4"
HANDLED = [  # commands that go on, and what they print
    ("evaluate elsewhere", EVALUATED, _moved),
    ("evaluate run", EVALUATED, _other_files),
    ("evaluate run", EVALUATED, _gone("status.json", "metrics.jsonl", ".lock", "evaluation.json")),
    ("evaluate run", EVALUATED, _text("evaluation.json", "{")),
    ("evaluate run", ("falling back", *EVALUATED), _gone("checkpoints/6/notes")),
    ("evaluate run", ("falling back", *EVALUATED), _gone("checkpoints/6/state")),
    ("evaluate run", ("falling back", *EVALUATED), _text("checkpoints/6/notes/metadata", "[]")),
    ("evaluate run", EVALUATED, _text("checkpoints/6/_CHECKPOINT_METADATA", "{")),
    ("evaluate run", EVALUATED, _copied_step),
    ("export run", ("parameters in",), _gone("metrics.jsonl")),
    ("report run", ("metrics.jsonl has 0 of 6 steps",), _text("metrics.jsonl", "")),
    ("report run", ("metrics.jsonl has 3 of 6 steps",), _lines(lambda rows: [*rows[:4], rows[4][:9]])),
    (RUN, ("finished already after 6 steps",), _other_files),
    (RUN, ("finished already after 6 steps", *EVALUATED), _gone("evaluation.json")),
    (RUN, (ON, *EVALUATED), CUT),
    (RUN, (ON, *EVALUATED), both(CUT, _gone("status.json", "tensorboard"), _text(".lock", "99999"))),
    (RUN, (ON, *EVALUATED), both(CUT, _gone("metrics.jsonl"))),
    (RUN, (ON, *EVALUATED), both(CUT, _lines(lambda rows: rows[:2]))),
    (RUN, EVALUATED, both(CUT, _gone("checkpoints/*/notes"))),
    (RUN, EVALUATED, both(CUT, _gone("checkpoints"))),
]
REFUSED = [  # commands that end in a line, and what it names
    ("evaluate run", "run", _folder("evaluation.json")),
    ("evaluate run", "found", _values("config.json", found=None, sha256_of_the_rest=None)),
    ("evaluate run --mesh data=3,fsdp=5", "mesh", _other_files),
    ("evaluate run", "run", _gone("checkpoints/*/notes")),
    ("evaluate run", "run", _halved("checkpoints/*/state/*/d/*")),
    *(("evaluate run", "regular", act(name)) for act in (_pipe, _device) for name in SPECIAL),
    ("evaluate run", "config.json", _pipe("config.json")),
    ("report run", "evaluation.json", _pipe("evaluation.json")),
    ("report run", "metrics.jsonl", _device("metrics.jsonl")),
    ("export run", "run", _gone("checkpoints/*/state")),
    ("export run", "metrics.jsonl", _text("metrics.jsonl", "{\n")),
    ("report run", "line 1", _lines(lambda rows: [b"\0" * len(rows[0]) + b"\n", *rows[1:]])),
    ("report run", "line 1", _lines(lambda rows: [b'{"step": 1, ' + rows[0][1:], *rows[1:]])),
    ("report run", "evaluation.json", _values("evaluation.json", rmse=3)),
    ("report run", "metrics.jsonl", _text("metrics.jsonl", '{"kind": "train"}\n')),
    (RUN, "checkpoints", both(_gone("evaluation.json"), _gone("checkpoints"))),
    (RUN, "status.json", both(CUT, _text("status.json", ""))),
    (RUN, "status.json", _folder("status.json")),
    (RUN, "run/.lock", _folder(".lock")),
    (RUN, "metrics.jsonl", both(CUT, _lines(lambda rows: [rows[0][:9] + b"\n", *rows[1:]]))),
    (RUN, "run/metrics.jsonl", both(CUT, _folder("metrics.jsonl"))),
    (RUN, "checkpoints", both(CUT, _file("checkpoints"))),
    (RUN, "run/tensorboard", both(CUT, _file("tensorboard"))),
    (RUN, "config.json", both(CUT, _text("config.json", "{"))),
    (RUN, "--out run", _gone("config.json")),
    (RUN + " --seed 1", "seed was 0, is now 1", _other_files),
    (RUN.replace("--out run", "--out run/config.json"), "run/config.json", _other_files),
]
COMMANDS = [
    *(Command(line, words, given=given, code=0) for line, words, given in HANDLED),
    *(Command(line, (named,), given=given) for line, named, given in REFUSED),
]
