"""Small images with codes in memory, and runs on them that take a second."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Lasso

from tests.tasks import InMemory
from unroll_jax.train.config.constrained import ConstraintConfig
from unroll_jax.train.core.task import Task
from unroll_jax.train.main import fit
from unroll_jax.train.tasks.sparse_coding.data import CodeBatch, CodeSpec
from unroll_jax.train.tasks.sparse_coding.options import (
    CodeConfig,
    ListaConfig,
    SparseCodingConfig,
)
from unroll_jax.train.tasks.sparse_coding.task import make

SIZES = {"train": 48, "validation": 12, "test": 20}
SIDE, ATOMS, SPARSITY = 4, 20, 0.1


def lasso(signals: np.ndarray, dictionary: np.ndarray, sparsity: float) -> np.ndarray:
    """The Lasso's solutions by scikit-learn, to the digits of float32."""
    model = Lasso(
        alpha=sparsity / dictionary.shape[1],
        fit_intercept=False,
        tol=1e-12,
        max_iter=10**6,
    )
    return model.fit(np.float64(dictionary).T, np.float64(signals).T).coef_


class Blobs(InMemory):
    """Replaces `CodeData`: 4 x 4 images that are bright about one place, and a
    random dictionary."""

    shape = (SIDE, SIDE, 1)

    def __init__(self, seed: int = 0):
        rng = np.random.default_rng(seed)
        self.dictionary = rng.normal(size=(ATOMS, SIDE**2)).astype(np.float32)
        self.dictionary /= np.linalg.norm(self.dictionary, axis=1, keepdims=True)
        self.splits = {split: self.draw(rng, count) for split, count in SIZES.items()}
        self.pixel_std = float(np.std(self.splits["train"].images / 255.0))
        self.spec = CodeSpec(self.shape, self.dictionary, self.pixel_std)
        norms = {
            split: np.sum(np.float64(whole.codes) ** 2, axis=1)
            for split, whole in self.splits.items()
        }
        self.square_norms = {
            split: float(np.mean(values)) for split, values in norms.items()
        }

    def draw(self, rng: np.random.Generator, count: int) -> CodeBatch:
        place = rng.uniform(0, SIDE, (2, count, 1, 1))
        row, column = np.arange(SIDE)[:, None], np.arange(SIDE)[None]
        bright = np.exp(-0.5 * ((row - place[0]) ** 2 + (column - place[1]) ** 2))
        images = (255 * bright).astype(np.uint8).reshape(count, -1)
        return CodeBatch(
            images, lasso(images / 255.0, self.dictionary, SPARSITY).astype(np.float32)
        )


BLOBS = Blobs()
SMALL = SparseCodingConfig(
    steps=4,
    batch_size=8,
    validate_every=2,
    test_gammas=(0.0, 0.5),
    test_layer_noises=(0.1,),
    data=CodeConfig(sparsity=SPARSITY),
    model=ListaConfig(num_layers=3),
    constraints=ConstraintConfig(alpha=(0.2,)),
)
NOISY = {"method": "both", "test_layer_noises": (0.2, 0.1)}


def small(**fields: Any) -> SparseCodingConfig:
    config = dataclasses.replace(SMALL, **fields)
    config.check()
    return config


@functools.cache
def task_of(config: SparseCodingConfig) -> Task:
    return make(config, BLOBS)


def give(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "unroll_jax.train.tasks.sparse_coding.task.load", lambda config, *, log: BLOBS
    )


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[str]]:
    root, log = tmp_path_factory.mktemp("runs"), list[str]()
    with pytest.MonkeyPatch.context() as patch:
        give(patch)
        return fit(
            small(**NOISY), out=root, experiment="sparse-coding", log=log.append
        ), log
