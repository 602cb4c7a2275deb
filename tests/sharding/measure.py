"""What eight devices do, found in a process of their own: ``python -m tests.sharding.measure OUT``."""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.video import FRAMES
from tests.sharding.encoder import BATCH, encoder_batches, encoder_task
from train.plan import make_plan
from train.recipe import Recipe
from train.sharding import make_mesh, path_name, place
from train.video.config import ModelConfig, VideoConfig
from train.video.state import init_state, make_step
from train.video.task import video_task

MESHES = {"one": "data=1", "data": "data=8", "fsdp": "fsdp=8", "mixed": "data=2,fsdp=2,tensor=2"}
STEPS = 5


def video(mesh: str, dtype: Any = "float32") -> Recipe:
    """The experiment video-ut on frames like those of its data."""
    config = VideoConfig(mesh=mesh, steps=STEPS, model=ModelConfig(dtype=dtype))
    return _recipe(config, video_task(config, FRAMES), _frames)


def encoder(mesh: str, dtype: Any = "float32") -> Recipe:
    """The encoder of the tests, trained as the experiment is."""
    config = VideoConfig(mesh=mesh, steps=STEPS, batch_size=BATCH)
    return _recipe(config, encoder_task(dtype), encoder_batches)


MODELS = {"video": video, "encoder": encoder}


def _recipe(config: VideoConfig, task: Any, batches: Any) -> Recipe:
    def unused(*_: Any) -> Any:
        raise AssertionError

    return Recipe(
        title="test",
        mesh=make_mesh(config.mesh, batch_size=config.batch_size),
        num_steps=STEPS,
        validate_every=STEPS,
        stop_on_collapse=False,
        init=lambda: init_state(config, task),
        step=make_step(config, task),
        batches=lambda start: batches(),
        describe=unused,
        validate=unused,
    )


def _frames() -> Any:
    """Sequences that drift over a gradient, which a model can learn to denoise; the same at every call."""
    rng = np.random.default_rng(0)
    while True:
        place, slope, light = rng.uniform(0, 1, (3, 64, 1, 1))
        time, pixel = np.arange(FRAMES.num_tokens)[:, None] / 20, np.arange(FRAMES.token_dim) / 256
        yield (255 * np.clip(light * (place + slope * time + (1 - place) * pixel), 0, 1)).astype(np.uint8)


def trained(recipe: Recipe) -> tuple[dict[str, np.ndarray], dict[str, list[int]]]:
    """The state and the metrics after five steps, and the shape of one device's part of every array of the state."""
    placed = place(recipe)
    state, batches, found = placed.init(), recipe.batches(0), {}
    for step in range(STEPS):
        state, metrics = placed.step(state, placed.put(next(batches)))
        found |= {f"{step}/{path_name(path)}": np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(metrics)}
    leaves = jax.tree.leaves_with_path(state)
    parts = {path_name(path): list(leaf.addressable_shards[0].data.shape) for path, leaf in leaves}
    return found | {path_name(path): np.asarray(leaf) for path, leaf in leaves}, parts


def main(out: Path) -> None:
    """Writes arrays.npz and found.json."""
    arrays, parts, plans = {}, {}, {}
    for name, model in MODELS.items():
        for key, mesh in MESHES.items():
            recipe = model(mesh)
            wide, parts[f"{name}/{key}"] = trained(recipe)
            arrays |= {f"{name}/{key}/float32/{path}": leaf for path, leaf in wide.items()}
            plans[f"{name}/{key}"] = make_plan(recipe)._asdict()
            with jax.enable_x64(True):
                double, _ = trained(model(mesh, "float64"))
            arrays |= {f"{name}/{key}/float64/{path}": leaf for path, leaf in double.items()}
    np.savez(out / "arrays.npz", allow_pickle=False, **arrays)
    (out / "found.json").write_text(json.dumps({"parts": parts, "plans": plans}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
