"""Small clips in memory in place of a data set, and runs on them that take a second."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from PIL import Image

from tests.started import environment
from train.data.clips import FRAME_SIZE, NUM_FRAMES
from train.data.photos import photo_clips
from train.runs import run
from train.video.config import ModelConfig, VideoConfig

SIZES = {"train": 64, "validation": 12, "test": 10}


class Clips:
    """Stands in for `train.data.VideoData`: sequences of 4 frames of 4 x 4 pixels that drift over a gradient."""

    num_tokens, token_dim = 4, 16

    def __init__(self, seed: int = 0):
        generator = np.random.default_rng(seed)
        self.splits = {split: _sequences(generator, count) for split, count in SIZES.items()}
        self.pixel_std = float(np.std(self.splits["train"] / 255.0))

    def num_sequences(self, split: str) -> int:
        return len(self.splits[split])

    def batches(
        self, split: str, *, batch_size: int, seed: int, start_step: int = 0, rows: np.ndarray | None = None
    ) -> Iterator[np.ndarray]:
        step = start_step
        while True:
            numbers = np.random.default_rng((seed, step)).integers(0, len(self.splits[split]), batch_size)
            yield self.splits[split][numbers if rows is None else numbers[rows]]
            step += 1

    def examples(self, split: str, *, batch_size: int) -> Iterator[np.ndarray]:
        for start in range(0, len(self.splits[split]), batch_size):
            yield self.splits[split][start : start + batch_size]


def _sequences(generator: np.random.Generator, count: int) -> np.ndarray:
    place, slope = generator.uniform(0, 1, (2, count, 1, 1)), generator.uniform(-0.3, 0.3, (count, 1, 1))
    time, pixel = np.arange(4)[None, :, None] / 4, np.arange(16)[None, None, :] / 16
    return np.clip(255 * (place[0] + slope * time + (place[1] - 0.5) * pixel), 0, 255).astype(np.uint8)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where compiled programs are kept for the session."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="session")
def few_clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten of the built-in clips as a folder of frames: a tenth of the validation, a twentieth of the test."""
    root = tmp_path_factory.mktemp("clips")
    for number, clip in enumerate(islice(photo_clips("train", num_frames=NUM_FRAMES, frame_size=FRAME_SIZE), 10)):
        (root / f"clip{number}").mkdir()
        for index, frame in enumerate(clip):
            Image.fromarray(frame).save(root / f"clip{number}" / f"{index:03d}.png")
    return root


@pytest.fixture(scope="session")
def of_processes(compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of started processes: they share what is prepared and compiled."""
    return environment(
        UNROLL_PREPARED=str(tmp_path_factory.mktemp("prepared")),
        JAX_COMPILATION_CACHE_DIR=str(compiled),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
    )


@pytest.fixture(autouse=True, scope="module")
def compile_once(compiled: Path) -> Iterator[None]:
    """Many tests run the same small training: its programs are compiled once, then read back."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    for name, value in zip(names, (str(compiled), 0.0), strict=True):
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture
def clips() -> Clips:
    return Clips()


@pytest.fixture(scope="session")
def config() -> VideoConfig:
    return VideoConfig(
        steps=6, batch_size=4, validate_every=2, test_gammas=(0.0, 0.3), model=ModelConfig(num_layers=2, rank=4)
    )


@pytest.fixture(scope="session")
def changed(config: VideoConfig) -> Callable[..., VideoConfig]:
    """The small configuration with fields replaced: ``changed(steps=3, **{"dual.optimizer": "sgd"})``."""

    def change(**fields: Any) -> VideoConfig:
        new = config
        for name, value in fields.items():
            group, _, field = name.rpartition(".")
            inner = dataclasses.replace(getattr(new, group), **{field: value}) if group else value
            new = dataclasses.replace(new, **{group or field: inner})
        return new

    return change


@pytest.fixture
def start(clips: Clips, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[str]]:
    """Runs a configuration in ``tmp_path / "run"`` as the command line does, without the report; returns its log."""
    monkeypatch.setattr("train.video.kind.load", lambda config, *, log: clips)
    monkeypatch.setattr("train.video.kind.write_report", lambda *arguments, **options: None)

    def go(config: VideoConfig, name: str = "run") -> list[str]:
        log: list[str] = []
        run(dataclasses.replace(config, out=str(tmp_path / name)), experiment="video-ut", log=log.append)
        return log

    return go


@pytest.fixture
def real_data() -> Path:
    """The folder of real data files."""
    if "UNROLL_DATA" not in os.environ:
        pytest.skip("UNROLL_DATA does not name the folder of real data")
    return Path(os.environ["UNROLL_DATA"])
