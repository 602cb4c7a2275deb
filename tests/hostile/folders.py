"""Run folders, checkpoints and files of runs meant to break the commands that read them."""

import json
from pathlib import Path

from tests.hostile.command import Command
from tests.hostile.run_folders import config, content, deep, run, together

CONFIG, METRICS = "config.json", "metrics.jsonl"
NO_RUN = "is no run folder: it has no config.json"


def _parent(folder: Path) -> None:
    for name in ("a", "b"):
        run(folder / name)


def _parent_of_many(folder: Path) -> None:
    for number in range(9):
        run(folder / f"seed{number}")


def _export(folder: Path) -> None:
    (folder / "export").mkdir()
    (folder / "export" / "config.json").write_text(json.dumps({"format": "unroll_jax 1", "experiment": "video-ut"}))


def _file(folder: Path) -> None:
    (folder / "run").write_text("a file")


def _moved_link(folder: Path) -> None:
    (folder / "run").symlink_to(folder / "elsewhere")


def _loop(folder: Path) -> None:
    (folder / "run").symlink_to(folder / "run")


def _checkpoints(make: str):
    """A run with something in place of its folder of checkpoints."""

    def given(folder: Path) -> None:
        run(folder)
        checkpoints = folder / "run" / "checkpoints"
        (checkpoints / "6").rmdir()
        checkpoints.rmdir()
        if make == "file":
            checkpoints.write_text("")
        elif make == "empty":
            checkpoints.mkdir()
        elif make == "link":
            checkpoints.symlink_to(folder / "nowhere")
        elif make == "unfinished":
            (checkpoints / "6.orbax-checkpoint-tmp").mkdir(parents=True)
        elif make == "files":
            checkpoints.mkdir()
            (checkpoints / "6").write_text("")
        elif make == "names":
            (checkpoints / "best").mkdir(parents=True)

    return given


def _out(make: str):
    """A run, and something where its export or report is to go."""

    def given(folder: Path) -> None:
        run(folder)
        out = folder / "out"
        if make == "file":
            out.write_text("")
        elif make == "full":
            out.symlink_to("/dev/full")
        elif make == "mine":
            out.mkdir()
            (out / "thesis.tex").write_text("")
        elif make == "config":
            out.mkdir()
            (out / "config.json").write_text('{"experiment": "video-ut"}')

    return given


def _text(content: bytes | None):
    """A text run, and a file of texts."""

    def given(folder: Path) -> None:
        run(folder, "text-ut")
        if content is not None:
            (folder / "texts").write_bytes(content)

    return given


def _evaluated(**fields: object):
    def given(folder: Path) -> None:
        run(folder)
        (folder / "run" / "evaluation.json").write_text(json.dumps(fields))

    return given


READERS = [
    Command(f"{command} {rest}", words, given=given)
    for command in ("evaluate", "export")
    for rest, words, given in [
        ("here", ("here is no run folder",), None),
        ("run", ("run is a file, not a run folder",), _file),
        ("run/config.json", ("run/config.json is a file, not a run folder; give a folder",), run),
        ("run", (NO_RUN,), _moved_link),
        ("run", (NO_RUN,), content(CONFIG, None)),
        ("run", (NO_RUN,), content(CONFIG, "/")),
        (".", (". is no run folder", "it holds the run folders a/run, b/run"), _parent),
        ("export", ("export is an export, not a run folder",), _export),
        ("run", ("run/config.json is damaged",), content(CONFIG, "")),
        ("run", ("run/config.json is damaged", "restore it"), content(CONFIG, '{"experiment": "video-ut"')),
        ("run", ("field 'steps' is unknown or missing",), config(steps="gone")),
        ("run", ("steps is '6', which is of the wrong type",), config(steps="6")),
        ("run", ("checkpoints is a file, not a folder of checkpoints",), _checkpoints("file")),
        ("run", ("run has no checkpoints; they are gone: restore them",), _checkpoints("gone")),
        ("run", ("run has no checkpoints",), _checkpoints("unfinished")),
    ]
]
CONFIGS = [
    Command("evaluate run", words, given=given)
    for words, given in [
        (("config.json is damaged", "utf-8"), content(CONFIG, b"\xff\xfe{}")),
        (("config.json is damaged",), content(CONFIG, bytes(4096))),
        (("config.json is damaged (not a JSON object)",), content(CONFIG, "[]")),
        (("config.json is damaged (not a JSON object)",), content(CONFIG, "null")),
        (("config.json is damaged (nested too deeply)",), content(CONFIG, deep())),
        (("NaN is no JSON",), content(CONFIG, '{"experiment": "video-ut", "steps": NaN}')),
        (("Infinity is no JSON",), content(CONFIG, '{"experiment": "video-ut", "steps": -Infinity}')),
        (("run was written by version 0.1 of unroll_jax, this is 0.2; use that one",), content(CONFIG, "{}")),
        (("run was written by version 9 of unroll_jax",), config(version="9")),
        (("run was written by version ['0.2'] of unroll_jax",), config(version=["0.2"])),
        (("field 'task' is unknown or missing", "got 'video-2030'"), config(task="video-2030")),
        (("field 'task' is unknown or missing", "got ['video']"), config(task=["video"])),
        (("field 'task' is unknown or missing", "got None"), config(task="gone")),
        (("field 'experiment' is unknown or missing", "got None"), config(experiment="gone")),
        (("field 'experiment' is unknown or missing", "got ['video-ut']"), config(experiment=["video-ut"])),
        (("field 'experiment' is unknown or missing", "got None"), config(experiment=None)),
        (("field 'momentum' is unknown or missing; train again",), config(momentum=0.9)),
        (("field 'rank' is unknown or missing",), config(model__rank="gone")),
        (("is of the wrong type in place of",), config(model=None)),
        (("is of the wrong type in place of",), config(model=[1, 2])),
        (("is of the wrong type in place of",), config(data="photos")),
        (("steps is 6.5, which is of the wrong type",), config(steps=6.5)),
        (("steps is True, which is of the wrong type",), config(steps=True)),
        (("steps is None, which is of the wrong type",), config(steps=None)),
        (("steps must be a whole number from 1 to",), config(steps=-4)),
        (("test_gammas is 0.5, which is of the wrong type",), config(test_gammas=0.5)),
        (("test_gammas is ['a'], which is of the wrong type",), config(test_gammas=["a"])),
        (("learning_rate is '1e-3', which is of the wrong type",), config(primal__learning_rate="1e-3")),
        (("method is 'sgd', which is of the wrong type",), config(method="sgd")),
        (("seed is {}, which is of the wrong type",), config(seed={})),
        (("seed",), config(seed=2**40)),
        (("run has no checkpoints",), _checkpoints("empty")),
        (("run has no checkpoints",), _checkpoints("link")),
        (("run has no checkpoints",), _checkpoints("files")),
        (("run has no checkpoints",), _checkpoints("names")),
    ]
]
PARENTS = [
    Command("evaluate .", ("run folders seed0/run, seed1/run", "and 4 more"), given=_parent_of_many),
    Command("report .", (". is no run folder", "it holds the run folders a/run, b/run"), given=_parent),
    Command("predict . --text good", (". is no run folder", "a/run, b/run"), given=_parent),
    Command("evaluate run", ("run",), given=_loop),
]
OUTS = [
    Command("export run --out out", ("cannot write to --out out: it is no folder",), given=_out("file")),
    Command("export run --out out/a/b", ("cannot write to --out out/a/b",), given=_out("file")),
    Command("export run --out out", ("cannot write to --out out",), given=_out("full")),
    Command("export run --out out", ("--out out holds files that are no export",), given=_out("mine")),
    Command("export run --out out", ("--out out holds files that are no export",), given=_out("config")),
    Command("export run --out run", ("--out run holds files that are no export",), given=run),
    Command("report run --out run", ("--out run holds files that are no report",), given=run, gone=("run/index.html",)),
    Command("report run --out /proc/out", ("cannot write to --out /proc/out",), given=run),
    Command("export run --out /proc/out", ("cannot write to --out /proc/out",), given=run),
    Command("export nowhere --out out", ("nowhere is no run folder",), gone=("out",)),
    Command("export run --out out", ("run has no checkpoints",), given=_checkpoints("empty"), gone=("out",)),
]
PREDICTS = [
    Command("predict run --text good", ("run is a run of video-ut, which classifies no text",), given=run),
    Command("predict nowhere --text good", ("nowhere is no run folder",)),
    Command("predict run --text good --seed -1", ("--seed must be a whole number", "got -1"), given=_text(None)),
    Command(f"predict run --text good --seed {2**32}", ("--seed must be a whole number",), given=_text(None)),
    Command("predict run --text good --gamma nan", ("--gamma must be finite",), given=_text(None)),
    Command("predict run --file /dev/zero", ("--file /dev/zero is not a regular file",), given=_text(None)),
    Command("predict run --file .", ("--file . cannot be read (Is a directory)",), given=_text(None)),
    Command("predict run --file texts", ("--file texts cannot be read",), given=_text(None)),
    Command("predict run --file texts", ("--file texts is not UTF-8",), given=_text(b"\xff\xfe\x00")),
    Command("predict run --file texts", ("--file texts has empty lines",), given=_text(b"")),
    Command("predict run --file texts", ("run has no checkpoints",), given=together(
        _text(b"good"), lambda folder: (folder / "run" / "checkpoints" / "6").rmdir())),
    Command("predict run --file texts --text good", ("--file takes the place of",), given=_text(b"good")),
    Command("predict run --text good", ("steps is 'x', which is of",), given=config("text-ut", steps="x")),
]  # fmt: skip
REPORTS = [
    Command("report", ("at least one run folder",)),
    Command("report run nowhere", ("nowhere is no run folder",), given=run),
    Command("report run", ("run has no evaluation.json; run `unroll-jax evaluate run` first",), given=run),
    Command("report run", ("evaluation.json lacks 'experiment'",), given=_evaluated()),
    Command("report run", ("evaluation.json is damaged",), given=together(
        run, lambda folder: (folder / "run" / "evaluation.json").write_text("{") and None)),
    Command("report run", ("run has no evaluation.json",), given=together(
        run, lambda folder: (folder / "run" / "evaluation.json").mkdir())),
    Command("report run run/../run", ("given twice",), given=_evaluated()),
]  # fmt: skip
COMMANDS = [*READERS, *CONFIGS, *PARENTS, *OUTS, *PREDICTS, *REPORTS]
