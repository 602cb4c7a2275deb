"""XLA's flags: an unknown one cannot end a run silently. Every run checks its own flags as it starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .xla_flags import flags

UNKNOWN = "--xla_no_such_flag=1"


@pytest.mark.parametrize(("version", "expected"), [("0.10.2", True), ("0.12.0.1", False)])
def test_a_flag_is_set_only_where_it_is_known(version, expected):
    assert ("fusion_emitters" in flags(version)) == expected


def test_a_run_with_an_unknown_flag_ends_with_a_message():
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", __file__]
    environment = {**os.environ, "XLA_FLAGS": UNKNOWN}
    root = Path(__file__).resolve().parents[1]
    process = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    output = process.stdout + process.stderr
    assert process.returncode == pytest.ExitCode.USAGE_ERROR
    assert UNKNOWN in output
    assert "change XLA_FLAGS" in output
