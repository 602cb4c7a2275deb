"""Damage to a finished run: what commands make of it, in one line, or with the way that they went on said."""

import contextlib
import shutil

import pytest

from tests.hostile import runs
from tests.hostile.command import assert_handled
from tests.train.conftest import clips_in_memory
from unroll_jax.train.__main__ import main

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("hostile-runs")]


COMMANDS = [pytest.param(command, id=f"{number}: {command.line[:60]}") for number, command in enumerate(runs.COMMANDS)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of six steps with checkpoints of 4 and 6, evaluated."""
    folder = tmp_path_factory.mktemp("trained")
    with clips_in_memory(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(runs.RUN.split()) == 0
    return folder / "run"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_damaged_run_is_handled_or_refused_in_one_line(command, trained, tmp_path, monkeypatch, capsys):
    shutil.copytree(trained, tmp_path / "run")
    reads_data = not command.line.startswith("report")
    with clips_in_memory() if reads_data else contextlib.nullcontext():
        assert_handled(command, tmp_path, monkeypatch, capsys)
