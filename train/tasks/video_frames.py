"""Test frames as video models clean them: the same clip, with the same noise, for all of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..checkpoint import Checkpoints, way_back
from ..config.errors import UserError
from ..data.video import frames_from
from ..runs import read_config, read_recorded, require_checkpoints
from ..step import state_like
from ..task import Log, Params, Row, Task
from .common import on_batches
from .noise import NOISE_SEED, add_noise, to_unit
from .video import WEIGHTS, open_video

__all__ = ["has_frames", "show_frames"]

LOOKED_AT = 20  # windows
Shown = dict[float, dict[str, np.ndarray]]


def has_frames(folder: Path) -> bool:
    """Returns whether a run is of video."""
    return read_recorded(folder).task.startswith("video")


def show_frames(
    runs: Mapping[str, Path], *, gammas: Sequence[float] | None = None, window: int | None = None, log: Log = print
) -> Shown:
    """The frames of a window of the test split, clean, noisy, and as the best checkpoint of every run cleans them.

    Args:
      runs: run folders by what they are called; all on the same data.
      gammas: test noise, one draw scaled to each; None takes that of the first run's training, the middle one of those
        it is tested at above it, and the largest.
      window: which one, from 0; None takes that of most contrast among the first ones.
      log: where messages go.

    Returns:
      By gamma, float (frames, height, width) in grey levels, not clipped: "clean", "noisy", and by the names of runs.

    Raises:
      UserError: if a run is not of video, has no checkpoint, or is on other data, or there is no such window.
    """
    for folder in runs.values():
        if not has_frames(folder):
            raise UserError(
                f"{folder} is a run of {read_recorded(folder).experiment}, which has no frames; leave it out"
            )
    opened = {name: _opened(folder, log) for name, folder in runs.items()}
    (name, first), *others = opened.items()
    for other, task in others:
        if figures_of_data(task) != figures_of_data(first):
            raise UserError(f"{runs[name]} and {runs[other]} are on different data; show them apart")
    task: Any = first  # of video, whose data are clips
    side = math.isqrt(task.spec.token_dim)
    clean = to_unit(jax.numpy.asarray(_window(task, window)))
    size = (task.spec.frame_side, task.spec.frame_side)
    key = jax.random.key(NOISE_SEED)
    models = {name: _model(task, runs[name], log) for name, task in opened.items()}
    shown: Shown = {}
    for gamma in gammas if gammas is not None else _usual(task.config):
        noisy = add_noise(clean, gamma * task.spec.pixel_std, key)
        patches = {"clean": clean, "noisy": noisy, **{name: clean_up(noisy) for name, clean_up in models.items()}}
        shown[gamma] = {
            name: 255.0 * frames_from(np.asarray(each, np.float32), size, side=side) for name, each in patches.items()
        }
    return shown


def figures_of_data(task: Task) -> Row:
    """Returns figures that tell data from other data, whatever weights a run on them started with."""
    return {name: value for name, value in task.data_fingerprint().items() if name != WEIGHTS}


def _opened(folder: Path, log: Log) -> Task:
    experiment, config = read_config(folder)
    require_checkpoints(folder, experiment)
    return open_video(config, log)  # pyright: ignore (of video)


def _window(task: Any, window: int | None) -> np.ndarray:
    """The sequences of all patch positions of a window of the test split."""
    data, positions = task.data, task.samples.positions
    count = data.num_sequences("test") // positions
    windows = data.examples("test", batch_size=positions)
    if window is None:
        return max(islice(windows, min(count, LOOKED_AT)), key=np.std)
    if not 0 <= window < count:
        raise UserError(f"the test split has {count} windows of frames, got window {window}; count from 0")
    return next(islice(windows, window, None))


def _model(task: Any, folder: Path, log: Log) -> Callable[[Any], np.ndarray]:
    """The last layer's output of a run's best checkpoint."""
    with Checkpoints(folder / "checkpoints", read_only=True, mend=way_back(task.config), log=log) as checkpoints:
        _, state, _ = checkpoints.best(state_like(task))

    def last(params: Params, noisy: Any) -> Any:
        return task.outputs(params, noisy, lambda y: y)[-1]

    cleaned, samples = on_batches(last), task.samples
    return lambda noisy: samples.to_windows(cleaned(state.evaluated, samples.of_windows(noisy)))


def _usual(config: Any) -> list[float]:
    """The noise of training, and of stronger test noise the middle and the largest."""
    stronger = [gamma for gamma in config.noise_levels if gamma > config.train_gamma]
    return sorted({float(config.train_gamma), *stronger[len(stronger) // 2 :][:1], *stronger[-1:]})
