"""Extras: a command whose packages are missing names the extra that installs them."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.started import environment
from unroll_jax.train.__main__ import main
from unroll_jax.train.config.errors import EXTRAS, UserError, require_extra

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """\
import sys
sys.modules[sys.argv[1]] = None
from unroll_jax.train.__main__ import main
raise SystemExit(main(["run", "video-ut", "--steps", "1"]))
"""


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_packages_of_an_extra_are_those_of_pyproject(extra):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    listed = {re.split(r"[^\w-]", requirement)[0] for requirement in extras[extra]}
    distributions = importlib.metadata.packages_distributions()
    assert {distributions[package][0] for package in EXTRAS[extra]} == listed - {"unroll_jax"}


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage", None)
    with pytest.raises(UserError, match=re.escape("skimage must be installed first: pip install 'unroll_jax[video]'")):
        require_extra("video")


@pytest.mark.parametrize(("package", "extra"), [("tyro", "train")])
def test_a_command_without_its_extra_ends_in_one_line(package, extra, tmp_path):
    command = [sys.executable, "-c", PROGRAM, package]
    process = subprocess.run(
        command, cwd=tmp_path, env=environment(PYTHONPATH=str(ROOT)), capture_output=True, text=True
    )
    assert process.returncode == 2, process.stderr
    assert process.stderr.count("\n") == 1
    assert f"{package} must be installed first: pip install 'unroll_jax[{extra}]'" in process.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_version_is_that_of_pyproject_and_of_the_citation(capsys):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"unroll_jax {version}\n"
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
