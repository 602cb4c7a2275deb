"""Images of three classes as files, and small configurations on them."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unroll_jax.train.config.constrained import ConstraintConfig
from unroll_jax.train.core.task import Task
from unroll_jax.train.tasks.image_sets import data as image_sets
from unroll_jax.train.tasks.image_sets import task as task_module
from unroll_jax.train.tasks.image_sets.data import SetData
from unroll_jax.train.tasks.image_sets.options import ImageSetConfig, SetConfig
from unroll_jax.train.tasks.image_sets.task import make
from unroll_jax.train.tasks.video.options import ModelConfig

CLASSES, COUNT = ("bars", "dots", "plain"), 20


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for place, name in enumerate(CLASSES):
        (root / name).mkdir()
        for number in range(COUNT):
            pixels = rng.integers(0, 60, (12 + number % 3, 12, 3)).astype(np.uint8)
            pixels[:, 4 * place : 4 * place + 4] += 150
            Image.fromarray(pixels).save(root / name / f"{number:02d}.png")
    return root


@pytest.fixture(scope="session")
def options(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> SetConfig:
    return SetConfig(
        root=str(folders),
        size=4,
        set_size=4,
        prepared=str(tmp_path_factory.mktemp("prepared")),
    )


@pytest.fixture(scope="session")
def data(options: SetConfig) -> SetData:
    return image_sets.load(options, log=lambda line: None)


@pytest.fixture(scope="session")
def config(options: SetConfig) -> ImageSetConfig:
    return ImageSetConfig(
        steps=4,
        batch_size=8,
        validate_every=2,
        train_gamma=0.2,
        test_gammas=(0.0, 0.4),
        test_layer_noises=(0.1,),
        data=options,
        model=ModelConfig(num_layers=2),
        constraints=ConstraintConfig(bounds="cumulative", reference=2.0, alpha=(0.2,)),
    )


@pytest.fixture(scope="session")
def task(config: ImageSetConfig, data: SetData) -> Task:
    return make(config, data)


@pytest.fixture(autouse=True)
def _batches_of_150_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations of 300 and of 400 sets share a program, and the last batch of 400
    is smaller."""
    monkeypatch.setattr(task_module, "READ_TOGETHER", 150)


def changed(config: ImageSetConfig, **fields: Any) -> ImageSetConfig:
    config = dataclasses.replace(config, **fields)
    config.check()
    return config
