"""Small clips in memory in place of a data set, and runs on them that take a second."""

import contextlib
import dataclasses
import functools
import gc
import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.hostile import runs
from tests.started import environment
from tests.tasks import InMemory, without_report
from tests.train.commands import quiet, read
from tests.train.own import linear
from unroll_jax.train.config.constrained import ConstraintConfig
from unroll_jax.train.config.options import with_value
from unroll_jax.train.core.step import init_state, state_like
from unroll_jax.train.core.task import Plan, Task
from unroll_jax.train.data.clips import FRAME_SIZE, NUM_FRAMES
from unroll_jax.train.data.generated import photo_clips
from unroll_jax.train.exporting import export
from unroll_jax.train.main import evaluate_again, fit
from unroll_jax.train.tasks.video import task as video
from unroll_jax.train.tasks.video.data import VideoSpec
from unroll_jax.train.tasks.video.options import ModelConfig, VideoConfig

RUN = runs.RUN.split()
# The run of started processes: multipliers that move, by a stateful optimiser, a bound
# not linear in the batch, slack.
OF_PROCESSES = {
    "steps": 120,
    "batch-size": 8,
    "validate-every": 20,
    "test-gammas": 0.15,
    "model.num-layers": 2,
    "model.rank": 8,
    "accumulate": 2,
    "dual.optimizer": "adam",
    "constraints.alpha": 0.6,
    "constraints.form": "ratio_of_means",
    "constraints.resilience": 5.0,
}
SIZES = {"train": 64, "validation": 12, "test": 10}


class Clips(InMemory):
    """Replaces `VideoData`: sequences of 4 frames of 4 x 4 pixels that drift over a
    gradient."""

    def __init__(self, seed: int = 0):
        generator = np.random.default_rng(seed)
        self.splits = {
            split: _sequences(generator, count) for split, count in SIZES.items()
        }
        self.spec = VideoSpec(
            float(np.std(self.splits["train"] / 255.0)),
            num_tokens=4,
            token_dim=16,
            frame_side=4,
        )

    def num_examples(self, split: str) -> int:
        return len(self.splits[split])

    def read(self, split: str, numbers: Any) -> np.ndarray:
        return self.splits[split][numbers]


def _sequences(generator: np.random.Generator, count: int) -> np.ndarray:
    place, slope = (
        generator.uniform(0, 1, (2, count, 1, 1)),
        generator.uniform(-0.3, 0.3, (count, 1, 1)),
    )
    time, pixel = np.arange(4)[None, :, None] / 4, np.arange(16)[None, None, :] / 16
    return np.clip(
        255 * (place[0] + slope * time + (place[1] - 0.5) * pixel), 0, 255
    ).astype(np.uint8)


@pytest.fixture(autouse=True, scope="module")
def _frozen() -> None:
    """Freezes the objects of earlier tests: a run that fails collects garbage, which
    takes seconds with all of them."""
    gc.freeze()


@pytest.fixture(scope="session")
def few_clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("clips")
    for number, clip in enumerate(
        itertools.islice(
            photo_clips("train", num_frames=NUM_FRAMES, frame_size=FRAME_SIZE), 10
        )
    ):
        (root / f"clip{number}").mkdir()
        for index, frame in enumerate(clip):
            Image.fromarray(frame).save(root / f"clip{number}" / f"{index:03d}.png")
    return root


@pytest.fixture(scope="session")
def of_processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment(UNROLL_PREPARED=str(tmp_path_factory.mktemp("prepared")))


def words_of(options: Mapping[str, object]) -> list[str]:
    return [
        part for name, value in options.items() for part in (f"--{name}", str(value))
    ]


@pytest.fixture(scope="session")
def launched(
    of_processes: dict[str, str], few_clips: Path
) -> Callable[..., subprocess.Popen]:
    data = {"data.source": "video", "data.root": few_clips}

    def start(
        folder: Path, *before: str, launcher: Sequence[str] = (), **options: object
    ) -> subprocess.Popen:
        folder.parent.mkdir(exist_ok=True)
        words = words_of(OF_PROCESSES | data | options | {"out": folder})
        command = [
            *launcher,
            sys.executable,
            "-m",
            "unroll_jax.train",
            *before,
            "run",
            "video-ut",
            *words,
        ]
        with folder.with_suffix(".log").open("ab") as output:
            return subprocess.Popen(
                command, env=of_processes, stdout=output, stderr=subprocess.STDOUT
            )

    return start


@pytest.fixture(scope="session")
def alone(
    launched: Callable[..., subprocess.Popen], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("alone") / "run"
    assert launched(folder).wait(timeout=300) == 0, folder.with_suffix(
        ".log"
    ).read_text()
    return folder


CLIPS = Clips()


@pytest.fixture
def clips() -> Clips:
    """Only ``monkeypatch`` may change them."""
    return CLIPS


@pytest.fixture
def at_batch(clips: Clips, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``at_batch(number, change)``: the batch of this number is ``change(batch)``,
    or itself after an act (None)."""
    ordinary = clips.batches

    def set_to(
        number: int | None, change: Callable[[np.ndarray], np.ndarray | None]
    ) -> None:
        def batches(split: str, **options: Any) -> Iterator[np.ndarray]:
            for step, batch in enumerate(
                ordinary(split, **options), start=options["start_step"] + 1
            ):
                changed = change(batch) if step == number else None
                yield batch if changed is None else changed

        monkeypatch.setattr(clips, "batches", batches)

    return set_to


@pytest.fixture(scope="session")
def config() -> VideoConfig:
    return VideoConfig(
        steps=6,
        batch_size=4,
        validate_every=2,
        test_gammas=(0.0, 0.3),
        model=ModelConfig(num_layers=2, rank=4),
        # the default is in proportion to the data
        constraints=ConstraintConfig(reference=7.9),
    )


@pytest.fixture(scope="session")
def changed(config: VideoConfig) -> Callable[..., VideoConfig]:
    def change(**fields: Any) -> VideoConfig:
        new = config
        for name, value in fields.items():
            new = with_value(new, name, value)
        return new

    return change


# Half of a small run is tracing: a configuration's task, its first state and its
# state's shapes are made once.
traced_task = functools.cache(video.make)
_STATES: dict[Any, Any] = {}


def _once(make: Callable[..., Any]) -> Callable[..., Any]:
    def kept(task: Task, plan: Plan, *seed: int) -> Any:
        key = (make, task.init, task.options, plan.mesh, *seed)
        if key not in _STATES:
            _STATES[key] = make(task, plan, *seed)
        return _STATES[key]

    return kept


traced_state = _once(state_like)
first = _once(init_state)


@contextlib.contextmanager
def clips_in_memory() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        _keep_in_memory(patch)
        yield


def _keep_in_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "unroll_jax.train.tasks.video.task.load", lambda config, *, log: CLIPS
    )
    patch.setattr(video, "make", traced_task)
    patch.setattr(
        "unroll_jax.train.core.loop.init_state",
        lambda *run: jax.tree.map(jnp.copy, first(*run)),
    )
    for module in ("core.loop", "core.step", "core.evaluate"):
        patch.setattr(f"unroll_jax.train.{module}.state_like", traced_state)
    without_report(patch)


def logged(config: VideoConfig, folder: Path) -> list[str]:
    log: list[str] = []
    fit(
        dataclasses.replace(config, out=str(folder)),
        experiment="video-ut",
        log=log.append,
    )
    return log


def evaluated_again(folder: Path) -> dict[str, Any]:
    evaluate_again([str(folder)])
    return read(folder / "evaluation.json")


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    # by the test's own patches: two that end in another order leave clips behind
    _keep_in_memory(monkeypatch)


@pytest.fixture
def start(in_memory: None, tmp_path: Path) -> Callable[..., list[str]]:
    return lambda config, name="run": logged(config, tmp_path / name)


@pytest.fixture
def without_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    without_report(monkeypatch)


@pytest.fixture(scope="session")
def own_both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "run"
    fit(linear(method="both"), out=folder, log=quiet)
    return folder


@pytest.fixture(scope="session")
def both(config: VideoConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("both")
    with clips_in_memory():
        logged(dataclasses.replace(config, method="both"), folder)
    return folder


@pytest.fixture(scope="session")
def exported(both: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with clips_in_memory():
        return export(
            both / "constrained", tmp_path_factory.mktemp("export") / "model", log=quiet
        )


@pytest.fixture(scope="session")
def infeasible(
    changed: Callable[..., VideoConfig], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("infeasible") / "run"
    folder.mkdir()
    # as a kill leaves it before the configuration is written
    (folder / "left.partial").write_text("{")
    with clips_in_memory():
        return folder, logged(changed(**{"constraints.alpha": (0.99,)}), folder)


@pytest.fixture
def finished(both: Path, tmp_path: Path) -> Path:
    return shutil.copytree(both / "constrained", tmp_path / "run")


@pytest.fixture
def trained(in_memory: None, finished: Path) -> Path:
    return finished
