"""Small images and scenes in memory, and runs on them that take a second."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from tests.tasks import InMemory
from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.core.step import first_state, jit_step
from unroll_jax.train.core.task import Plan, Task
from unroll_jax.train.data.pictures import NOT_COUNTED, ImageSpec, PictureBatch
from unroll_jax.train.main import fit
from unroll_jax.train.registry import EXPERIMENTS
from unroll_jax.train.tasks.images.options import (
    ImageConfig,
    SceneConfig,
    SceneTaskConfig,
    SupervisedConfig,
)
from unroll_jax.train.tasks.images.task import make

SIZES = {"train": 48, "validation": 12, "test": 10}
SMALL = {
    "OptEqConfig": {
        "convolutional": False,
        "channels": 4,
        "widths": (4, 4),
        "features": 4,
    },
    "SegmenterConfig": {"channels": 4, "widths": (4,), "stem": (4,)},
    "MonConfig": {"convolutional": False, "channels": 4},
    "OdeConfig": {"convolutional": False, "widths": (4,), "features": 4},
    "FeedForwardConfig": {"convolutional": False, "widths": (4, 4), "features": 4},
    "FcnConfig": {"widths": (4,), "stem": (4,)},
}


class Stripes(InMemory):
    """Replaces `PictureData`: 4 x 4 images of two kinds, bright on the left or on
    the right."""

    shape, num_classes, class_names = (4, 4, 1), 2, ("left", "right")
    mean, std = np.array([0.5]), np.array([0.3])

    def __init__(self, seed: int = 0):
        rng = np.random.default_rng(seed)
        self.splits = {split: self.draw(rng, count) for split, count in SIZES.items()}

    @property
    def spec(self) -> ImageSpec:
        return ImageSpec(self.shape, self.class_names, self.mean, self.std)

    def draw(self, rng: np.random.Generator, count: int) -> Any:
        labels = rng.integers(0, 2, count).astype(np.int32)
        bright = np.arange(4)[None, None, :, None] // 2 == labels[:, None, None, None]
        return PictureBatch(
            (rng.integers(0, 156, (count, 4, 4, 1)) + 100 * bright).astype(np.uint8),
            labels,
        )


class Fields(Stripes):
    """Replaces `PictureData`: 8 x 8 scenes, bright or dark by quarters. A row does
    not count."""

    shape = (8, 8, 3)
    class_names = ("dark", "bright")
    mean, std = np.full(3, 0.5), np.full(3, 0.3)

    def draw(self, rng: np.random.Generator, count: int) -> Any:
        labels = (
            rng.integers(0, 2, (count, 2, 2))
            .repeat(4, axis=1)
            .repeat(4, axis=2)
            .astype(np.uint8)
        )
        images = rng.integers(0, 156, (count, 8, 8, 3)) + 100 * labels[..., None]
        labels[:, 0] = NOT_COUNTED
        return PictureBatch(images.astype(np.uint8), labels)


def small(experiment: str, **options: Any) -> SupervisedConfig:
    config = EXPERIMENTS[experiment].config
    assert isinstance(config, SupervisedConfig)
    network = dataclasses.replace(
        config.network, **SMALL[type(config.network).__name__]
    )
    rates = dataclasses.replace(config.optimizer, learning_rate=0.03)
    usual = {"epochs": 4, "batch_size": 8, "validate_every": 2, "augment": False}
    return dataclasses.replace(
        config, network=network, optimizer=rates, **usual | options
    )


class Traced(NamedTuple):
    task: Task
    plan: Plan
    init: Callable[[], Any]
    step: Callable[..., Any]


@functools.cache
def traced(config: SupervisedConfig) -> Traced:
    data = Fields() if isinstance(config, SceneTaskConfig) else Stripes()
    task = make(config, data)
    plan = make_plan(task)
    init = jax.jit(lambda: first_state(task, plan, config.seed))
    return Traced(task, plan, init, jit_step(task, plan))


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., list[str]]:
    def go(config: Any, experiment: str, name: str = "run") -> list[str]:
        log: list[str] = []
        fit(config, out=tmp_path / name, experiment=experiment, log=log.append)
        return log

    return go


DATA: dict[Any, Stripes] = {ImageConfig: Stripes(), SceneConfig: Fields()}


def give(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "unroll_jax.train.tasks.images.data.load",
        lambda config, *, log: DATA[type(config)],
    )


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch)


@pytest.fixture
def stripes(in_memory: None) -> Stripes:
    return DATA[ImageConfig]


@pytest.fixture(scope="session")
def trained(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[Path, list[str]]]:
    root = tmp_path_factory.mktemp("trained")

    @functools.cache
    def go(experiment: str) -> tuple[Path, list[str]]:
        folder, log = root / experiment, list[str]()
        with pytest.MonkeyPatch.context() as patch:
            give(patch)
            fit(small(experiment), out=folder, experiment=experiment, log=log.append)
        return folder, log

    return go
