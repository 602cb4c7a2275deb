"""Damage to a finished run, of `tests.train.conftest.Clips`, for the commands that read it or go on with it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.hostile.command import Command

__all__ = ["COMMANDS", "OPTIONS"]

# Those of the run.
OPTIONS = {
    "steps": 6,
    "batch-size": 4,
    "validate-every": 2,
    "test-gammas": 0.3,
    "model.num-layers": 2,
    "model.rank": 4,
}
RUN = " ".join(["run video-ut --out run", *(f"--{name} {value}" for name, value in OPTIONS.items())])
EVALUATED = ("RMSE", "feasible")
Given = Callable[[Path], None]


def _gone(*names: str) -> Given:
    def given(folder: Path) -> None:
        for name in names:
            for path in (folder / "run").glob(name):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    return given


def _text(name: str, text: str | bytes) -> Given:
    def given(folder: Path) -> None:
        for path in (folder / "run").glob(name):
            path.write_bytes(text if isinstance(text, bytes) else text.encode())

    return given


def _halved(name: str) -> Given:
    def given(folder: Path) -> None:
        for path in (folder / "run").glob(name):
            os.truncate(path, path.stat().st_size // 2)

    return given


def _values(name: str, **fields: object) -> Given:
    def given(folder: Path) -> None:
        path = folder / "run" / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return given


def _folder(name: str) -> Given:
    """A folder in place of a file."""

    def given(folder: Path) -> None:
        path = folder / "run" / name
        path.unlink(missing_ok=True)
        path.mkdir()

    return given


def _file(name: str) -> Given:
    """A file in place of a folder."""

    def given(folder: Path) -> None:
        path = folder / "run" / name
        shutil.rmtree(path, ignore_errors=True)
        path.write_text("")

    return given


def _lines(change: Callable[[list[bytes]], list[bytes]]) -> Given:
    def given(folder: Path) -> None:
        path = folder / "run" / "metrics.jsonl"
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return given


def _all(*givens: Given) -> Given:
    def given(folder: Path) -> None:
        for one in givens:
            one(folder)

    return given


def _moved(folder: Path) -> None:
    (folder / "run").rename(folder / "elsewhere")


def _copied_step(folder: Path) -> None:
    """Somebody copied a checkpoint under another name; its contents are of step 6."""
    shutil.copytree(folder / "run" / "checkpoints" / "6", folder / "run" / "checkpoints" / "8")


def _other_files(folder: Path) -> None:
    for name in ("notes.txt", "checkpoints/README", "checkpoints/.hidden", "left.partial"):
        (folder / "run" / name).write_text("mine")


# Trained to step 4, as a kill leaves it.
CUT = _all(_gone("checkpoints/6", "evaluation.json"), _values("status.json", state="running", steps=4))
ON = "going on from the checkpoint of step 4"
READS = [
    Command("evaluate elsewhere", EVALUATED, given=_moved, code=0),
    Command("export elsewhere", ("parameters in",), given=_moved, code=0),
    Command("evaluate run", EVALUATED, given=_other_files, code=0),
    Command("evaluate run", EVALUATED, given=_gone("status.json", "metrics.jsonl", ".lock"), code=0),
    Command("evaluate run", EVALUATED, given=_text("status.json", "{"), code=0),
    Command("evaluate run", EVALUATED, given=_text("metrics.jsonl", "{"), code=0),
    Command("evaluate run", EVALUATED, given=_text("evaluation.json", "{"), code=0),
    Command("evaluate run", EVALUATED, given=_gone("evaluation.json"), code=0),
    Command("evaluate run", ("cannot write to run folder run (Is a directory)",), given=_folder("evaluation.json")),
    Command("evaluate run", ("seed was 0, is now",), given=_values("config.json", found={"seed": 0})),
    Command("evaluate run", ("with another configuration", "pixel_std"), given=_values("config.json", found=3)),
    Command("evaluate run", ("was trained with another configuration",), given=_values("config.json", found=None)),
    Command("evaluate run --mesh data=3,fsdp=5", ("mesh",)),
    Command("export run --mesh rows=1", ("mesh",)),
    Command("evaluate run", ("cannot be read", "falling back", *EVALUATED), given=_gone("checkpoints/6/notes"), code=0),
    Command("evaluate run", ("cannot be read", "falling back", *EVALUATED), given=_gone("checkpoints/6/state"), code=0),
    Command("evaluate run", ("falling back", *EVALUATED), given=_text("checkpoints/6/notes/metadata", "[]"), code=0),
    Command("evaluate run", ("falling back", *EVALUATED), given=_text("checkpoints/6/notes/metadata", "{}"), code=0),
    Command("evaluate run", ("falling back", *EVALUATED), given=_file("checkpoints/6/state"), code=0),
    Command("evaluate run", ("falling back", *EVALUATED), given=_folder("checkpoints/6/notes/metadata"), code=0),
    Command("evaluate run", EVALUATED, given=_gone("checkpoints/6/_CHECKPOINT_METADATA"), code=0),
    Command("evaluate run", EVALUATED, given=_text("checkpoints/6/_CHECKPOINT_METADATA", "{"), code=0),
    Command("evaluate run", EVALUATED, given=_copied_step, code=0),
    Command("evaluate run", ("holds no checkpoint that can be read",), given=_gone("checkpoints/*/notes")),
    Command("evaluate run", ("holds no checkpoint that can be read",), given=_halved("checkpoints/*/state/*/d/*")),
    Command("export run", ("holds no checkpoint that can be read",), given=_gone("checkpoints/*/state")),
    Command("export run", ("parameters in", "feasible is not known"), given=_gone("metrics.jsonl"), code=0),
    Command("export run", ("metrics.jsonl is damaged in line 1",), given=_text("metrics.jsonl", "{\n")),
    Command("export run", ("metrics.jsonl is damaged in line 1",), given=_lines(lambda rows: [b"[]\n", *rows])),
    Command("report run", ("run has no metrics.jsonl; restore it",), given=_gone("metrics.jsonl")),
    Command("report run", ("status.json is damaged", "delete it"), given=_text("status.json", "{")),
    Command("report run", ("evaluation.json is damaged", "evaluate run` again"), given=_halved("evaluation.json")),
    Command("report run", ("method 'sgd' is unknown",), given=_values("evaluation.json", method="sgd")),
    Command("report run", ("num_layers must be a positive integer",), given=_values("evaluation.json", num_layers="2")),
    Command("report run", ("evaluation.json is damaged",), given=_values("evaluation.json", rmse={"0.15": "low"})),
    Command("report run", ("evaluation.json is damaged",), given=_values("evaluation.json", rmse=3)),
    Command("report run", ("metrics.jsonl is damaged in line",), given=_text("metrics.jsonl", '{"kind": "train"}\n')),
    Command("report run", ("missing 'loss'",), given=_text("metrics.jsonl", '{"kind": "train", "step": 1}\n')),
]  # fmt: skip
RESUMED = [
    Command(RUN, ("finished already after 6 steps",), code=0),
    Command(RUN, ("finished already after 6 steps", *EVALUATED), given=_gone("evaluation.json"), code=0),
    Command(RUN, ("run has no checkpoints; they are gone: restore them, or train into another folder",),
            given=_all(_gone("evaluation.json"), _gone("checkpoints"))),
    Command(RUN, (ON, *EVALUATED), given=CUT, code=0),
    Command(RUN, (ON, *EVALUATED), given=_all(CUT, _gone("status.json")), code=0),
    Command(RUN, (ON, *EVALUATED), given=_all(CUT, _other_files), code=0),
    Command(RUN, (ON, *EVALUATED), given=_all(CUT, _text(".lock", "99999")), code=0),
    Command(RUN, (ON, *EVALUATED), given=_all(CUT, _gone("tensorboard")), code=0),
    Command(RUN, ("status.json is damaged", "delete it"), given=_all(CUT, _text("status.json", ""))),
    Command(RUN, ("status.json is damaged", "delete it"), given=_values("status.json", state=3)),
    Command(RUN, ("status.json is damaged", "delete it"), given=_values("status.json", steps=None)),
    Command(RUN, ("status.json is damaged", "delete it"), given=_folder("status.json")),
    Command(RUN, ("cannot write to run/.lock (Is a directory)",), given=_folder(".lock")),
    Command(RUN, ("metrics.jsonl lacks 4 of the rows", ON), given=_all(CUT, _gone("metrics.jsonl")), code=0),
    Command(RUN, ("metrics.jsonl lacks 4 of the rows",), given=_all(CUT, _text("metrics.jsonl", "")), code=0),
    Command(RUN, ("metrics.jsonl lacks", ON), given=_all(CUT, _lines(lambda rows: rows[:2])), code=0),
    Command(RUN, ("metrics.jsonl lacks 1 of the rows",), given=_all(CUT, _lines(lambda rows: rows[1:])), code=0),
    Command(RUN, ("metrics.jsonl is damaged in line 1", "a run goes on without it"),
            given=_all(CUT, _lines(lambda rows: [rows[0][:9] + b"\n", *rows[1:]]))),
    Command(RUN, ("metrics.jsonl is damaged in line 2",), given=_all(CUT, _lines(lambda rows: [rows[0], b"null\n"]))),
    Command(RUN, ("run/metrics.jsonl",), given=_all(CUT, _folder("metrics.jsonl"))),
    Command(RUN, ("checkpoints is a file",), given=_all(CUT, _file("checkpoints"))),
    Command(RUN, ("run/tensorboard",), given=_all(CUT, _file("tensorboard"))),
    Command(RUN, ("no checkpoint", *EVALUATED), given=_all(CUT, _gone("checkpoints/*/notes")), code=0),
    Command(RUN, EVALUATED, given=_all(CUT, _gone("checkpoints")), code=0),
    Command(RUN, ("config.json is damaged",), given=_all(CUT, _text("config.json", "{"))),
    Command(RUN, ("holds files but no config.json", "--out run"), given=_gone("config.json")),
    Command(RUN, ("steps was 7, is now 6",), given=_values("config.json", steps=7)),
    Command(RUN, ("run was trained with another configuration", "pixel_std"), given=_values("config.json", found={})),
    Command(RUN + " --seed 1", ("seed was 0, is now 1; pass another --out",)),
    Command(RUN.replace("--out run", "--out run/config.json"), ("cannot write to --out run/config.json",)),
    Command(RUN.replace("--out run", "--out /proc/run"), ("cannot write to --out /proc/run",)),
]  # fmt: skip
SWEEP = " ".join(["sweep video-ut --out sweep --over.alpha 0.1,0.2", *RUN.split()[4:]])


def _a_file(folder: Path) -> None:
    (folder / "sweep").write_text("")


SWEPT = [
    Command(SWEEP, ("cannot write to --out sweep",), given=_a_file),
    Command(SWEEP.replace("out sweep", "out run"), ("run holds files but no sweep.json",)),
    Command(SWEEP.replace("out sweep", "out /proc/sweep"), ("cannot write to --out /proc/sweep",)),
]
COMMANDS = [*READS, *RESUMED, *SWEPT]
