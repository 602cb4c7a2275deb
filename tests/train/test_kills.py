"""Runs killed by SIGKILL at random moments end bit for bit as the run that was left alone."""

import json
import os
import random
import signal
import subprocess
import sys

import pytest

STEPS, EVERY, RUNS, KILLS = 240, 20, 2, 4
OPTIONS = {
    "steps": STEPS,
    "batch-size": 8,
    "validate-every": EVERY,
    "test-gammas": 0.15,
    "model.num-layers": 2,
    "model.rank": 8,
    # Multipliers that move, and an optimiser with a state for them.
    "constraints.alpha": 0.6,
    "dual.optimizer": "adam",
}
# The method at whose first call the clock of a kill starts, and the latest kill behind it in seconds.
PHASES = {"restore": ("Checkpoints.newest", 0.3), "step": ("Stop.at", 2.0), "save": ("Checkpoints.save", 0.2)}
# Writes the number of steps to a file before it dies: python -c VICTIM METHOD SECONDS FILE ARGUMENTS
VICTIM = """
import os, pathlib, signal, sys, threading
from unroll_jax.train import __main__ as train
from unroll_jax.train.checkpoint import Checkpoints
from unroll_jax.train.system.distributed import Stop

done, (method, seconds, file) = [0], sys.argv[1:4]

def die():
    pathlib.Path(file).write_text(str(done[0]))
    os.kill(os.getpid(), signal.SIGKILL)

clock = threading.Timer(float(seconds), die)
clock.daemon = True

def before(owner, name, do):
    original = getattr(owner, name)
    def both(self, *arguments, **options):
        do(*arguments)
        return original(self, *arguments, **options)
    setattr(owner, name, both)

owner, name = method.split(".")
before({"Checkpoints": Checkpoints, "Stop": Stop}[owner], name, lambda *_: clock.ident or clock.start())
before(Stop, "at", lambda step, *_: done.__setitem__(0, step))
sys.exit(train.main(sys.argv[4:]))
"""


def started(root, words):
    """The exit code of a process; all share what is prepared and compiled."""
    places = {"UNROLL_PREPARED": str(root / "prepared"), "JAX_COMPILATION_CACHE_DIR": str(root / "compiled")}
    fixed = {"JAX_PLATFORMS": "cpu", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    done = subprocess.run([sys.executable, *words], env=os.environ | places | fixed, check=False, **pipes)
    assert "Traceback" not in done.stderr
    return done.returncode


def arguments(folder):
    options = [part for name, value in OPTIONS.items() for part in (f"--{name}", str(value))]
    return ["run", "video-ut", *options, "--out", str(folder)]


def ended(root, name):
    """Lets a run end; returns the figures that must not depend on kills."""
    folder = root / name
    assert started(root, ["-m", "unroll_jax.train", *arguments(folder)]) == 0
    assert not list((folder / "checkpoints").glob("*tmp*")), "nothing half written is left"
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert max(evaluation["multipliers"]) > 0.0
    checkpoints = {}
    for step in (path for path in (folder / "checkpoints").iterdir() if path.name.isdigit()):
        notes = json.loads((step / "notes" / "metadata").read_text())
        checkpoints[step.name] = notes["score"], notes["digest"][0]  # the second checksum is of times too
    figures = {name: value for name, value in evaluation.items() if "seconds" not in name}
    return checkpoints, (folder / "metrics.jsonl").read_text(), figures


def newest(folder):
    """Step of the newest whole checkpoint: one still being written has another name."""
    return max((int(path.name) for path in (folder / "checkpoints").glob("*") if path.name.isdigit()), default=0)


@pytest.mark.slow
def test_kills_lose_no_checkpoint_and_change_no_result(tmp_path):
    draw, file, lost = random.Random(0), tmp_path / "done", []
    expected = ended(tmp_path, "alone")
    assert len(expected[0]) >= 1
    for number in range(RUNS):
        folder = tmp_path / f"run{number}"
        for phase in draw.choices(list(PHASES), k=KILLS):
            (method, latest), before = PHASES[phase], newest(folder)
            file.write_text(str(before))
            words = ["-c", VICTIM, method, str(draw.uniform(0.0, latest)), str(file), *arguments(folder)]
            if (code := started(tmp_path, words)) == 0:
                continue  # it ended first
            assert code == -signal.SIGKILL
            assert newest(folder) >= before, "a checkpoint is lost"
            lost.append(max(int(file.read_text()), before) - newest(folder))
        assert ended(tmp_path, folder.name) == expected
    print(f"{len(lost)} kills, steps lost: {lost}")
    assert len(lost) > RUNS * KILLS // 2
    # Training goes on while a save is being written, for one interval at most.
    assert max(lost) <= 2 * EVERY
