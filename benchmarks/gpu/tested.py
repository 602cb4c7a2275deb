"""The tests marked ``gpu``, by pytest in a new process."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.record import Record

__all__ = ["measure"]

ROOT = Path(__file__).parents[2]


def measure(folder: Path) -> Record:
    """Counts the tests marked ``gpu`` that passed, failed and were skipped."""
    paths = sorted(folder.rglob("test_*.py"))
    files = [path for path in paths if "mark.gpu" in path.read_text(encoding="utf-8")]
    if not files:
        raise ValueError(
            f"no file below {folder.name}/ has a test marked gpu; run this in a clone"
            " with its tests"
        )
    with tempfile.TemporaryDirectory() as name:
        report = Path(name) / "report.xml"
        # the plugin for notebooks may be missing
        plain = "addopts=--strict-markers --import-mode=importlib"
        options = ["-c", str(ROOT / "pyproject.toml"), "-o", plain]
        options += [f"--junitxml={report}", "-m", "gpu", "-q", "-p", "no:cacheprovider"]
        # XLA's default flags, not those by which tests on CPUs compile quickly
        environment = {**os.environ, "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
        command = [sys.executable, "-m", "pytest", *options, *map(str, files)]
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True
        )
        if not report.is_file():
            output = (ended.stderr or ended.stdout)[-500:]
            raise RuntimeError(f"pytest ended with {ended.returncode}: {output}")
        cases = ElementTree.parse(report).getroot().iter("testcase")
        return _count(
            [(case.get("name") or "", {part.tag for part in case}) for case in cases]
        )


def _count(cases: list[tuple[str, set[str]]]) -> Record:
    failed = [name for name, tags in cases if tags & {"failure", "error"}]
    skipped = sum("skipped" in tags for _, tags in cases)
    figures: dict[str, float] = {
        "passed": len(cases) - len(failed) - skipped,
        "failed": len(failed),
        "skipped": skipped,
    }
    return Record(figures, notes=[f"failed: {name}" for name in failed])
