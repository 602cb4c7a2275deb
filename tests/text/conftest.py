"""Few of the built-in sentences, models that compile in a second, and runs on them."""

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from tests.data.pretrained.conftest import write_folder
from tests.train.commands import quiet
from unroll_jax.train.config.constrained import ConstraintConfig, DualConfig
from unroll_jax.train.core.task import Task
from unroll_jax.train.main import fit
from unroll_jax.train.registry import EXPERIMENTS
from unroll_jax.train.tasks.text.model import TextInputs, load_inputs
from unroll_jax.train.tasks.text.options import (
    EncoderOptions,
    TextConfig,
    UnrolledConfig,
)
from unroll_jax.train.tasks.text.task import make

__all__ = ["write_folder"]
MODELS = {
    "text-encoder": EncoderOptions(dim=8, num_layers=2, num_heads=2, hidden_dim=12),
    "text-ut": UnrolledConfig(num_layers=2, dim=8, positions=True),
}
# Options of the finished runs. With margins of 0 the violations of training are of the
# stated bounds.
BOUNDS = ConstraintConfig(
    alpha=(0.1,), reference=0.7, form="ratio", resilience=2.0, margin=0.0, first_margin=0.0,
)  # fmt: skip
DUALS = DualConfig(learning_rate=0.3, every=3)
MANY = {"remat": "dots", "constraints": BOUNDS, "dual": DUALS}
PARTS = {"text-encoder": 4, "text-ut": 2}
ALL_TEXTS = dict.fromkeys(("train_examples", "validation_examples", "test_examples"))


class Finished(NamedTuple):
    runs: dict[str, Path]
    report: Path


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prepared")


@pytest.fixture(scope="session")
def small(prepared: Path) -> Callable[..., Any]:
    def make(experiment: str, **fields: Any) -> Any:
        sizes = {"train_examples": 48, "validation_examples": 20, "test_examples": 20}
        usual = {
            "steps": 4,
            "batch_size": 8,
            "validate_every": 2,
            "test_gammas": (0.0, 2.0),
            "max_length": 8,
            **sizes,
        }
        usual |= {
            "model": MODELS.get(experiment),
            "data": TextConfig(prepared=str(prepared)),
        }
        default = EXPERIMENTS[experiment].config
        usual["constraints"] = dataclasses.replace(default.constraints, warmup_steps=0)
        config = dataclasses.replace(default, **{**usual, **fields})
        config.check()
        return config

    return make


@pytest.fixture(scope="session")
def finished(
    small: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Finished]:
    @functools.cache
    def train(experiment: str) -> Finished:
        folder = tmp_path_factory.mktemp(experiment) / "run"
        method = "both" if experiment == "text-ut" else "constrained"
        config = small(experiment, method=method, accumulate=PARTS[experiment], **MANY)
        runs = fit(config, out=folder, experiment=experiment, log=quiet)
        methods = [one.method for _, one in config.variants()]
        return Finished(dict(zip(methods, runs, strict=True)), folder / "report")

    return train


@pytest.fixture(params=MODELS)
def experiment(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def write_table(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def write(
        train: list[Any],
        held_out: list[Any] | None = None,
        test: list[Any] | None = None,
    ) -> dict[str, Any]:
        root = tmp_path / "table"
        root.mkdir(exist_ok=True)
        held_out = held_out or train[:4]
        splits = {"train": train, "validation": held_out, "test": test or held_out}
        for name, rows in splits.items():
            lines = map("\t".join, [("text", "label"), *rows])
            (root / f"{name}.tsv").write_text("\n".join(lines) + "\n")
        return {
            "data": TextConfig("table", str(root), str(tmp_path / "prepared")),
            **ALL_TEXTS,
        }

    return write


@pytest.fixture
def write_pairs(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def write(rows: list[tuple[str, str, str]]) -> dict[str, Any]:
        root, names = tmp_path / "table", ("sentence1", "sentence2", "gold_label")
        root.mkdir()
        for part in ("train", "dev_matched"):
            lines = (json.dumps(dict(zip(names, row, strict=True))) for row in rows)
            (root / f"multinli_1.0_{part}.jsonl").write_text("\n".join(lines))
        return {
            "data": TextConfig(
                "mnli", str(root), str(tmp_path / "prepared"), validation_share=0.25
            ),
            **ALL_TEXTS,
        }

    return write


@pytest.fixture(scope="session")
def data_of(small: Callable[..., Any]) -> Callable[..., TextInputs]:
    return functools.cache(
        lambda experiment, **fields: load_inputs(small(experiment, **fields), quiet)
    )


@pytest.fixture(scope="session")
def task_of(
    small: Callable[..., Any], data_of: Callable[..., TextInputs]
) -> Callable[..., Task]:
    return functools.cache(
        lambda experiment, **fields: make(
            small(experiment, **fields), data_of(experiment, **fields)
        )
    )


@pytest.fixture(scope="session")
def built(task_of: Callable[..., Task]) -> Callable[..., tuple[Task, Any]]:
    @functools.cache
    def drawn(experiment: str, **fields: Any) -> Any:
        init = task_of(experiment, **fields).init
        return jax.device_get(jax.jit(init)(jax.random.key(3)))

    def build(experiment: str, **fields: Any) -> tuple[Task, Any]:
        params = jax.device_put(jax.tree.map(np.array, drawn(experiment, **fields)))
        return task_of(experiment, **fields), params

    return build
