"""Measures runs on 8 devices: ``python -m tests.sharding.measure OUT [COORDINATOR NUMBER, of two that run PAIRS]``."""

import dataclasses
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

from tests.sharding.collectives import collectives
from tests.sharding.encoder import encoder_task
from tests.train.conftest import Clips
from unroll_jax.train.checkpoint import Checkpoints
from unroll_jax.train.config.commands import Membership
from unroll_jax.train.config.constraints import ConstraintConfig, DualConfig
from unroll_jax.train.config.video import ModelConfig, VideoConfig, VideoPrimalConfig
from unroll_jax.train.data.video import VideoSpec
from unroll_jax.train.evaluate import evaluate
from unroll_jax.train.loading import open_run
from unroll_jax.train.main import fit
from unroll_jax.train.plan import compile_step, memory_of
from unroll_jax.train.sharding.mesh import describe_mesh, local_rows, make_mesh, put
from unroll_jax.train.sharding.rules import path_name
from unroll_jax.train.step import init_state, jit_step, state_like
from unroll_jax.train.system.distributed import fetch, is_first, join
from unroll_jax.train.system.machine import order_collectives
from unroll_jax.train.task import Task
from unroll_jax.train.tasks.video import VideoTask

MESHES = {"one": "data=1", "data": "data=8", "fsdp": "fsdp=8", "mixed": "data=2,fsdp=2,tensor=2"}
STEPS, VIDEO_BATCH = 5, 16


class Drifting:
    """Sequences that drift over a gradient, which a model can learn to denoise; the same at every call."""

    spec = VideoSpec(pixel_std=0.25)

    def num_examples(self, split: str) -> int:
        return 1 << 20

    def batches(
        self, split: str, *, batch_size: int, seed: int, start_step: int = 0, rows: np.ndarray | None = None
    ) -> Iterator[np.ndarray]:
        rng = np.random.default_rng(0)
        while True:
            place, slope, light = rng.uniform(0, 1, (3, batch_size, 1, 1))
            time, pixel = np.arange(self.spec.num_tokens)[:, None] / 20, np.arange(self.spec.token_dim) / 256
            batch = (255 * np.clip(light * (place + slope * time + (1 - place) * pixel), 0, 1)).astype(np.uint8)
            yield batch if rows is None else batch[rows]


def video(mesh: str, dtype: Any = "float32") -> Task:
    """The experiment video-ut on frames like its data, in a loop over layers. In float64 the optimiser works in the
    cosine basis, and gathers the turned arrays; in float32, where messages are counted, in pixels."""
    primal = VideoPrimalConfig(learning_rate=5e-4, basis="cosine" if dtype == "float64" else "pixels")
    config = VideoConfig(mesh=mesh, steps=STEPS, batch_size=VIDEO_BATCH, model=ModelConfig(dtype=dtype), primal=primal)
    task = VideoTask(config, Drifting())
    task.model = task.model._replace(module=task.model.module.clone(unroll=1))
    return task


def encoder(mesh: str, dtype: Any = "float32") -> Task:
    return encoder_task(dtype, mesh=mesh, steps=STEPS)


def options(mesh: str, dtype: Any = "float32") -> Task:
    """The encoder with all options of a step and its state; ratios of means are not means over parts or devices."""
    constraints = ConstraintConfig(form="ratio_of_means", resilience=5.0)
    dual = DualConfig(learning_rate=0.1, every=2)
    return encoder_task(dtype, constraints, mesh=mesh, dual=dual, steps=STEPS, accumulate=2)


MODELS = {"video": video, "encoder": encoder}
# In float64: the encoder with its options is the encoder, and two processes have the video's copies.
DOUBLE = {"video": [key for key in MESHES if key != "data"], "options": list(MESHES)}
PAIRS = {("options", "two data"): (options, "data=2"), ("video", "two fsdp"): (video, "fsdp=2")}


def trained(task: Task, advance: Callable | None = None) -> tuple[dict[str, np.ndarray], dict[str, list[int]]]:
    mesh, state, advance, arrays = task.training.mesh, init_state(task), advance or jit_step(task), {}
    batches = task.batches(0, local_rows(mesh, task.config.batch_size))
    for step in range(STEPS):
        state, metrics = advance(state, put(next(batches), mesh))
        arrays |= {f"{step}/{path}": leaf for path, leaf in _named(metrics).items()}
    return arrays | _named(state), _parts(state)


def _named(tree: Any) -> dict[str, np.ndarray]:
    return {path_name(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(fetch(tree))}


def _parts(state: Any) -> dict[str, list[int]]:
    return {
        path_name(path): list(leaf.addressable_shards[0].data.shape) for path, leaf in jax.tree.leaves_with_path(state)
    }


def moved(folder: Path) -> dict[str, Any]:
    state = init_state(video(MESHES["mixed"]))
    expected = _named(state)
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(0, state, {}, score=0.0)
    outcomes = {}
    for key, mesh in MESHES.items():
        with Checkpoints(folder, read_only=True, log=_fail) as checkpoints:
            _, restored, _ = checkpoints.best(state_like(video(mesh)))
        same = all(np.array_equal(leaf, expected[path]) for path, leaf in _named(restored).items())
        outcomes[key] = {"same": same, "parts": _parts(restored)}
    return outcomes


def runs(folder: Path) -> dict[str, list[str]]:
    config = VideoConfig(steps=6, batch_size=8, validate_every=2, test_gammas=(0.3,), model=ModelConfig(num_layers=2))
    log: dict[str, list[str]] = {}

    def go(name: str, mesh: str) -> None:
        lines = log.setdefault(name, [])
        fit(dataclasses.replace(config, mesh=mesh), out=folder / name, experiment="video-ut", log=lines.append)

    with (
        mock.patch("unroll_jax.train.tasks.video.load", return_value=Clips()),
        mock.patch("unroll_jax.train.report.write_report"),
    ):
        for name, mesh in (("one", MESHES["one"]), ("mesh", MESHES["mixed"])):
            go(name, mesh)
        shutil.copytree(folder / "mesh", folder / "moved-run")
        shutil.rmtree(folder / "moved-run" / "checkpoints" / "6")
        for name in ("status.json", "evaluation.json"):
            (folder / "moved-run" / name).unlink()
        go("moved-run", MESHES["one"])
        experiment, task = open_run(folder / "one", mesh=MESHES["data"], log=log["one"].append)
        evaluate(task, folder / "one", experiment=experiment, log=log["one"].append)
    return log


def _fail(message: str) -> None:
    raise AssertionError(message)


def main(out: Path) -> None:
    arrays, parts, plans, communication = {}, {}, {}, {}
    for name, model in MODELS.items():
        for key, mesh in MESHES.items():
            task = model(mesh)
            compiled, *shapes = compile_step(task)
            wide, parts[f"{name}/{key}"] = trained(task, compiled)
            arrays |= {f"{name}/{key}/float32/{path}": leaf for path, leaf in wide.items()}
            taken = {"arguments": compiled.memory_analysis().argument_size_in_bytes}
            plans[f"{name}/{key}"] = memory_of(compiled, *shapes) | taken
            communication[f"{name}/{key}"] = [one._asdict() for one in collectives(compiled.as_text() or "")]
    for name, keys in DOUBLE.items():
        for key in keys:
            with jax.enable_x64(True):
                double, parts[f"{name}/{key}"] = trained({**MODELS, "options": options}[name](MESHES[key], "float64"))
            arrays |= {f"{name}/{key}/float64/{path}": leaf for path, leaf in double.items()}
    np.savez(out / "arrays.npz", allow_pickle=False, **arrays)
    measurements = {
        "parts": parts,
        "plans": plans,
        "communication": communication,
        "moved": moved(out / "moved"),
        "log": runs(out),
        "default": [describe_mesh(make_mesh(None, batch_size=size)) for size in (64, 12, 5)],
    }
    (out / "measurements.json").write_text(json.dumps(measurements))


def pair(out: Path, coordinator: str, number: int) -> None:
    join(Membership(coordinator, 2, number))
    jax.config.update("jax_enable_x64", True)
    arrays = {}
    for (name, key), (model, mesh) in PAIRS.items():
        leaves, _ = trained(model(mesh, "float64"))
        arrays |= {f"{name}/{key}/float64/{path}": leaf for path, leaf in leaves.items()}
    if is_first():
        np.savez(out / "pair.npz", allow_pickle=False, **arrays)


if __name__ == "__main__":
    folder, *process = sys.argv[1:]
    if process:
        pair(Path(folder), process[0], int(process[1]))
    else:
        order_collectives()
        main(Path(folder))
