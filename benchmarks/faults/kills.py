"""Runs killed by SIGKILL at random moments, and what they are like in the end."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.faults.pair import PROCESSES
from benchmarks.timing import table

__all__ = ["arguments", "figures_without_times", "kills_at_random", "newest", "outcome", "surroundings"]

STEPS, EVERY = 240, 20
OPTIONS = {
    "steps": STEPS,
    "batch-size": 8,
    "validate-every": EVERY,
    "test-gammas": 0.15,
    "model.num-layers": 2,
    "model.rank": 8,
    # Multipliers that move, and an optimiser of theirs with a state of its own.
    "constraints.alpha": 0.6,
    "dual.optimizer": "adam",
}
LATEST = {"restore": 0.3, "step": 2.0, "save": 0.2}  # seconds after a phase began; a kill is drawn in (0, latest)


class Fleet(NamedTuple):
    """Runs that are killed.

    Attributes:
      processes: of each run; one of them is killed, at random.
      runs: how many.
      kills: of each run, before it is let end.
    """

    processes: int
    runs: int
    kills: int


FLEETS = (Fleet(processes=1, runs=8, kills=6), Fleet(processes=PROCESSES, runs=2, kills=6))


class Kill(NamedTuple):
    """One kill.

    Attributes:
      phase: it was aimed at.
      done: steps the process had done.
      before: step of the newest whole checkpoint when the process began, 0 without one.
      after: the same after the kill.
    """

    phase: str
    done: int
    before: int
    after: int


def kills_at_random() -> dict[str, Any]:
    """Prints a table of kills by phase, and whether every run ended as the one that was left alone."""
    print(f"runs of {STEPS} steps that save every {EVERY}, killed by SIGKILL and started again")
    draw, rows, kills, same = random.Random(0), [], [], []
    for fleet in FLEETS:
        fleet_kills, equal = _killed(fleet, draw)
        kills, same = [*kills, *fleet_kills], [*same, *equal]
        rows += [
            [str(fleet.processes), phase, *_figures([kill for kill in fleet_kills if kill.phase == phase])]
            for phase in LATEST
        ]
    titles = [
        "processes",
        "killed during",
        "kills",
        "checkpoints lost",
        "steps lost, mean",
        "most",
        "above an interval",
    ]
    print(table(titles, rows))
    print(f"runs that ended bit for bit as the one left alone: {sum(same)} of {len(same)}")
    lost = [kill.done - kill.after for kill in kills]
    print(
        f"steps lost at most: {max(lost)}; more than the {EVERY} between saves where training had gone on "
        "while a save was being written, which it does for one interval at most"
    )
    return {
        "kills": len(kills),
        "checkpoints_lost": sum(kill.after < kill.before for kill in kills),
        "most_steps_lost": max(lost),
        "above_an_interval": sum(steps > EVERY for steps in lost),
        "same_results": sum(same) / len(same),
        "other_results": len(same) - sum(same),
    }


def _killed(fleet: Fleet, draw: random.Random) -> tuple[list[Kill], list[bool]]:
    """Every kill of a fleet, and of each run whether it ended as the one left alone."""
    kills, same = [], []
    with tempfile.TemporaryDirectory() as folder:
        work = _Work(Path(folder), fleet.processes)
        expected = outcome(work.end("alone"))
        for number in range(fleet.runs):
            name = f"run{number}"
            for phase in draw.choices(list(LATEST), k=fleet.kills):
                victim, seconds = draw.randrange(fleet.processes), draw.uniform(0.0, LATEST[phase])
                if kill := work.kill(name, victim, phase, seconds):
                    kills.append(kill)
            same.append(outcome(work.end(name)) == expected)
            verdict = "the same result" if same[-1] else "ANOTHER RESULT"
            print(f"  {fleet.processes} process(es), {name}: {verdict}", flush=True)
    return kills, same


def _figures(kills: list[Kill]) -> list[str]:
    if not kills:
        return ["0", "-", "-", "-", "-"]
    lost = [kill.done - kill.after for kill in kills]
    return [
        str(len(kills)),
        str(sum(kill.after < kill.before for kill in kills)),
        f"{sum(lost) / len(lost):.1f}",
        str(max(lost)),
        str(sum(steps > EVERY for steps in lost)),
    ]


class _Work:
    """Starts runs, each of so many processes, in folders below one folder."""

    def __init__(self, root: Path, processes: int):
        self._root, self._processes = root, processes
        self._environment = surroundings(root)

    def end(self, name: str) -> Path:
        """Lets a run end."""
        folder = self._root / name
        launched = [] if self._processes == 1 else ["launch", "--processes", str(self._processes), "--"]
        code = self._run(["train", *launched, *arguments(folder)])
        if code != 0:
            raise RuntimeError(f"a run that was not killed ended with exit code {code}")
        return folder

    def kill(self, name: str, victim: int, phase: str, seconds: float) -> Kill | None:
        """Starts or goes on with a run, to be killed; None if it had ended before, or ended first."""
        folder, file = self._root / name, self._root / "done"
        before = newest(folder)
        file.write_text(str(before), encoding="utf-8")
        module = ["benchmarks.faults.process"] if self._processes == 1 else ["benchmarks.faults.pair", str(victim)]
        code = self._run([*module, phase, "SIGKILL", str(seconds), str(file), *arguments(folder)])
        if code not in (0, -signal.SIGKILL, 128 + signal.SIGKILL):
            raise RuntimeError(f"a process to be killed during {phase} ended with exit code {code}")
        done = max(int(file.read_text(encoding="utf-8")), before)
        return Kill(phase, done, before, newest(folder)) if code else None

    def _run(self, module: list[str]) -> int:
        return subprocess.run(
            [sys.executable, "-m", *module],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        ).returncode


def surroundings(root: Path) -> dict[str, str]:
    """The environment of processes that share what is prepared and compiled below a folder."""
    return {
        **os.environ,
        "UNROLL_PREPARED": str(root / "prepared"),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(root / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def outcome(folder: Path) -> dict[str, Any]:
    """Returns the results that must not depend on faults: checksums of the checkpoints, all metrics, the evaluation."""
    evaluation = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    notes = {}
    for step in sorted(path.name for path in (folder / "checkpoints").iterdir() if path.name.isdigit()):
        metadata = json.loads((folder / "checkpoints" / step / "notes" / "metadata").read_text(encoding="utf-8"))
        notes[step] = [metadata["score"], metadata["digest"][0]]  # the second checksum is of notes, which hold times
    metrics = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    return {"checkpoints": notes, "metrics": metrics, "evaluation": figures_without_times(evaluation)}


def arguments(folder: Path, **others: Any) -> list[str]:
    """The words of the command that trains there, with other options."""
    options = [part for name, value in (OPTIONS | others).items() for part in (f"--{name}", str(value))]
    return ["run", "video-ut", *options, "--out", str(folder)]


def newest(folder: Path) -> int:
    """Step of the newest whole checkpoint: one still being written has another name."""
    steps = (folder / "checkpoints").glob("*")
    return max((int(path.name) for path in steps if path.name.isdigit()), default=0)


def figures_without_times(evaluation: dict[str, Any]) -> dict[str, Any]:
    """The figures of an evaluation that every machine would find."""
    return {name: value for name, value in evaluation.items() if "seconds" not in name}
