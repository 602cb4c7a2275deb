"""Commands in tests: what their options mean, what they are refused with, and the files that they leave."""

import dataclasses
import json

from unroll_jax.train.__main__ import main
from unroll_jax.train.cli import configured
from unroll_jax.train.config.fields import differences, to_json
from unroll_jax.train.experiments import EXPERIMENTS


def meant(*options, of="video-ut"):
    """What a command's options change of an experiment, in the words of `differences`."""
    name, config = configured("run", [of, *options])
    assert name == of
    return [line for line in differences(to_json(EXPERIMENTS[of].config), to_json(config)) if "config was" not in line]


def named(out):
    """The configuration of an experiment whose run is in a folder."""
    return dataclasses.replace(EXPERIMENTS["video-ut"].config, out=out)


def refused(capsys, *arguments):
    """The one line of a command that must fail."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def quiet(line):
    """Takes the lines of a log, and drops them."""


def read(path):
    """The values of a JSON file."""
    return json.loads(path.read_text())


def status_of(folder):
    """The status of a run."""
    return read(folder / "status.json")


def files_of(folder):
    """The contents of the files of a folder by their paths, but for its lock."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
