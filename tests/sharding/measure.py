"""Measures runs on 8 devices:
``python -m tests.sharding.measure OUT [COORDINATOR NUMBER, of two that run PAIRS]``."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

from tests.sharding.collectives import collectives
from tests.sharding.decoder import decoder_task
from unroll_jax.train.config.constrained import ConstraintConfig, DualConfig
from unroll_jax.train.config.run import Membership
from unroll_jax.train.core.checkpoint import Checkpoints
from unroll_jax.train.core.plan import compile_step, make_plan, memory_of
from unroll_jax.train.core.step import init_state, jit_step, state_like
from unroll_jax.train.core.task import Task
from unroll_jax.train.sharding import (
    describe_mesh,
    local_rows,
    make_mesh,
    path_name,
    put,
)
from unroll_jax.train.system.distributed import fetch, is_first, join
from unroll_jax.train.system.machine import order_collectives
from unroll_jax.train.tasks.video import task as video_tasks
from unroll_jax.train.tasks.video.data import VideoSpec
from unroll_jax.train.tasks.video.options import (
    ModelConfig,
    VideoConfig,
    VideoPrimalConfig,
)

MESHES = {
    "one": "data=1",
    "data": "data=8",
    "fsdp": "fsdp=8",
    "mixed": "data=2,fsdp=2,tensor=2",
}
STEPS, VIDEO_BATCH = 5, 16


class Drifting:
    """Sequences that drift over a gradient, which a model can learn to denoise, the
    same at every call."""

    spec = VideoSpec(pixel_std=0.25)

    def num_examples(self, split: str) -> int:
        return 1 << 20

    def batches(
        self,
        split: str,
        *,
        batch_size: int,
        seed: int,
        start_step: int = 0,
        rows: np.ndarray | None = None,
    ) -> Iterator[np.ndarray]:
        rng = np.random.default_rng(0)
        while True:
            place, slope, light = rng.uniform(0, 1, (3, batch_size, 1, 1))
            time, pixel = (
                np.arange(self.spec.num_tokens)[:, None] / 20,
                np.arange(self.spec.token_dim) / 256,
            )
            batch = (
                255
                * np.clip(light * (place + slope * time + (1 - place) * pixel), 0, 1)
            ).astype(np.uint8)
            yield batch if rows is None else batch[rows]


def video(mesh: str, dtype: Any = "float32") -> Task:
    """The experiment video-ut on frames like its data, in a loop over layers. In
    float64 the optimiser works in the cosine basis, and gathers the turned arrays; in
    float32, where messages are counted, in pixels.
    """
    primal = VideoPrimalConfig(
        learning_rate=5e-4, basis="cosine" if dtype == "float64" else "pixels"
    )
    config = VideoConfig(
        mesh=mesh,
        steps=STEPS,
        batch_size=VIDEO_BATCH,
        model=ModelConfig(dtype=dtype),
        primal=primal,
    )
    build = video_tasks.build_video_model

    def looped(*arguments: Any) -> Any:
        model = build(*arguments)
        return model._replace(module=model.module.clone(unroll=1))

    with mock.patch.object(video_tasks, "build_video_model", looped):
        return video_tasks.make(config, Drifting())


def decoder(mesh: str, dtype: Any) -> Task:
    """With all options of a step and its state. Ratios of means are not means over
    parts or devices."""
    constraints = ConstraintConfig(form="ratio_of_means", resilience=5.0)
    dual = DualConfig(learning_rate=0.1, every=2)
    return decoder_task(
        dtype, constraints, mesh=mesh, dual=dual, steps=STEPS, accumulate=2
    )


# In float64. Two processes have the meshes of one axis.
MODELS = {"video": video, "decoder": decoder}
PAIRS = {
    ("decoder", "two data"): (decoder, "data=2"),
    ("video", "two fsdp"): (video, "fsdp=2"),
}


def trained(
    task: Task, advance: Callable | None = None
) -> tuple[dict[str, np.ndarray], Any]:
    plan, seed, arrays = make_plan(task), task.options.seed, {}
    mesh, state = plan.mesh, init_state(task, plan, seed)
    advance = advance or jit_step(task, plan)
    batches = task.batches(seed, 0, local_rows(mesh, task.options.batch_size))
    for step in range(STEPS):
        state, metrics = advance(state, put(next(batches), mesh))
        arrays |= _below(str(step), _named(metrics))
    return arrays | _named(state), state


def _below(place: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{place}/{path}": leaf for path, leaf in arrays.items()}


def _named(tree: Any) -> dict[str, np.ndarray]:
    return {
        path_name(path): np.asarray(leaf)
        for path, leaf in jax.tree.leaves_with_path(fetch(tree))
    }


def _parts(state: Any) -> dict[str, list[int]]:
    return {
        path_name(path): list(leaf.addressable_shards[0].data.shape)
        for path, leaf in jax.tree.leaves_with_path(state)
    }


def moved(folder: Path, state: Any, tasks: dict[str, Task]) -> dict[str, Any]:
    """A checkpoint of a trained state, read onto the mesh of each task."""
    expected, outcomes = _named(state), {}
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(STEPS, state, {}, score=0.0)
    for key, task in tasks.items():
        with Checkpoints(folder, read_only=True, log=_fail) as checkpoints:
            _, restored, _ = checkpoints.best(state_like(task, make_plan(task)))
        same = all(
            np.array_equal(leaf, expected[path])
            for path, leaf in _named(restored).items()
        )
        outcomes[key] = {"same": same, "parts": _parts(restored)}
    return outcomes


def _fail(message: str) -> None:
    raise AssertionError(message)


def main(out: Path) -> None:
    arrays, parts, plans, communication = {}, {}, {}, {}
    tasks = {key: video(mesh) for key, mesh in MESHES.items()}
    for key, task in tasks.items():
        compiled, *shapes = compile_step(task, make_plan(task))
        leaves, state = trained(task, compiled)
        arrays |= _below(f"video/{key}/float32", leaves)
        parts[f"video/{key}"] = _parts(state)
        plans[key] = memory_of(compiled, *shapes) | {
            "arguments": compiled.memory_analysis().argument_size_in_bytes
        }
        communication[key] = [
            one._asdict() for one in collectives(compiled.as_text() or "")
        ]
        if key == "mixed":
            outcomes = moved(out / "moved", state, tasks)
    # of LLVM: what follows reads no program
    jax.config.update("jax_disable_most_optimizations", True)
    for name, model in MODELS.items():
        for key in ("one", "mixed"):
            with jax.enable_x64(True):
                leaves, state = trained(model(MESHES[key], "float64"))
            arrays |= _below(f"{name}/{key}/float64", leaves)
            parts[f"{name}/{key}"] = _parts(state)
    np.savez(out / "arrays.npz", allow_pickle=False, **arrays)
    measurements = {
        "parts": parts,
        "plans": plans,
        "communication": communication,
        "moved": outcomes,
        "default": [
            describe_mesh(make_mesh(None, batch_size=size)) for size in (64, 12, 5)
        ],
        "in parts": describe_mesh(make_mesh(None, batch_size=8, accumulate=4)),
    }
    (out / "measurements.json").write_text(json.dumps(measurements))


def pair(out: Path, coordinator: str, number: int) -> None:
    join(Membership(coordinator, 2, number))
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    arrays = {}
    for (name, key), (model, mesh) in PAIRS.items():
        leaves, _ = trained(model(mesh, "float64"))
        arrays |= _below(f"{name}/{key}/float64", leaves)
    if is_first():
        np.savez(out / "pair.npz", allow_pickle=False, **arrays)


if __name__ == "__main__":
    folder, *process = sys.argv[1:]
    if process:
        pair(Path(folder), process[0], int(process[1]))
    else:
        order_collectives()
        main(Path(folder))
