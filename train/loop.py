"""The training loop of one run: resumable at any moment, metrics one step late, verified before every save."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from train.checkpoint import Checkpoints
from train.config import VideoConfig
from train.data import VideoData
from train.environment import environment
from train.errors import UserError
from train.evaluate import make_split_losses
from train.health import describe_collapse
from train.metrics import MetricsWriter, numbers, write_json
from train.state import Metrics, TrainState, init_state, make_step
from train.video import Task

__all__ = ["train"]

Log = Callable[[str], None]

# Below any score of a feasible checkpoint: -validation loss.
INFEASIBLE = -1e6


class Validation(NamedTuple):
    """What one validation found: the row for metrics.jsonl, the score of its checkpoint, and a collapse in words."""

    row: dict[str, Any]
    score: float
    collapse: str | None


class Notes(NamedTuple):
    """What a checkpoint says beside the state."""

    train_seconds: float = 0.0
    collapses: int = 0
    messages: tuple[str, ...] = ()


def train(config: VideoConfig, task: Task, data: VideoData, folder: Path, *, log: Log) -> None:
    """Trains, or goes on with, the run in ``folder``, until its last step or a collapse; writes status.json.

    Raises:
      UserError: if the loss, a gradient or a validation loss is not finite; the last good checkpoint stays.
    """
    state = init_state(config, task)
    with Checkpoints(folder / "checkpoints", log=log) as checkpoints:
        newest = checkpoints.newest(state)
        notes = Notes()
        if newest is not None:
            step, state, found = newest
            notes = Notes(found["train_seconds"], found["collapses"], tuple(found["messages"]))
            if step < config.steps:
                log(f"going on from the checkpoint of step {step}")
        with MetricsWriter(folder, after_step=int(state.step)) as writer:
            _Loop(config, task, data, folder, checkpoints, writer).run(state, notes)


class _Loop:
    """The moving parts of one call of `train`."""

    def __init__(
        self,
        config: VideoConfig,
        task: Task,
        data: VideoData,
        folder: Path,
        checkpoints: Checkpoints,
        writer: MetricsWriter,
    ):
        self._config, self._task, self._data, self._folder = config, task, data, folder
        self._checkpoints, self._writer = checkpoints, writer
        self._split_losses = make_split_losses(task, data)
        # As of the last checkpoint.
        self._saved_step, self._notes, self._compile_seconds = 0, Notes(), 0.0

    def run(self, state: TrainState, notes: Notes) -> None:
        self._saved_step, self._notes = int(state.step), notes
        try:
            if self._goes_on():
                self._steps(state)
        except UserError as error:
            self._notes = self._notes._replace(messages=(*self._notes.messages, str(error)))
            self._write_status("failed")
            raise
        self._write_status("stopped" if self._gave_up() else "finished")

    def _steps(self, state: TrainState) -> None:
        config, done, pending = self._config, self._saved_step, None
        batches = self._data.batches("train", batch_size=config.batch_size, seed=config.seed, start_step=done)
        batch = next(batches)
        step = self._compile(state, batch)
        self._write_status("running")
        began = time.perf_counter() - self._notes.train_seconds
        with tqdm(total=config.steps, initial=done, unit="step", desc=config.method, mininterval=0.5) as bar:
            while self._goes_on():
                state, metrics = step(state, batch)
                done += 1
                if pending is not None:
                    self._record(*pending, bar)
                pending = (done, metrics)
                if done < config.steps:
                    batch = next(batches)
                bar.update()
                if done % config.validate_every == 0 or done == config.steps:
                    self._record(*pending, bar)
                    pending = None
                    self._checkpoint(state, time.perf_counter() - began, bar)

    def _compile(self, state: TrainState, batch: Any) -> Callable[[TrainState, Any], tuple[TrainState, Metrics]]:
        began = time.perf_counter()
        step = make_step(self._config, self._task).lower(state, batch).compile()
        self._compile_seconds = time.perf_counter() - began
        return step

    def _record(self, step: int, metrics: Metrics, bar: tqdm) -> None:
        values = jax.device_get(metrics)
        _require_finite(step, values)
        self._writer.write({
            "kind": "train",
            "step": step,
            "loss": float(values.layer_losses[-1]),
            "lagrangian": float(values.lagrangian),
            "layer_losses": values.layer_losses.tolist(),
            "violations": numbers(values.violations, length=values.layer_losses.size),
            "multipliers": numbers(values.multipliers, length=values.layer_losses.size),
            "grad_norm": float(values.grad_norm),
        })  # fmt: skip
        bar.set_postfix(
            loss=f"{values.layer_losses[-1]:.3f}", worst_violation=f"{values.violations.max():+.3f}", refresh=False
        )

    def _checkpoint(self, state: TrainState, train_seconds: float, bar: tqdm) -> None:
        validation, step = self._validate(state), int(state.step)
        self._writer.write(validation.row)
        self._writer.flush()
        messages, collapses = self._notes.messages, 0
        if validation.collapse is not None:
            messages = (*messages, f"step {step}: {validation.collapse}")
            collapses = self._notes.collapses + 1
            bar.write(messages[-1])
        self._saved_step, self._notes = step, Notes(train_seconds, collapses, messages)
        self._checkpoints.save(step, state, self._notes._asdict(), score=validation.score)

    def _validate(self, state: TrainState) -> Validation:
        config, step = self._config, int(state.step)
        found = self._split_losses(state.params, "validation", config.train_gamma)
        losses = found.sample_losses.mean(axis=0)
        _require_finite_layers(step, losses, "validation loss")
        violations = np.asarray(self._task.constraints(jnp.asarray(losses)))
        bounds = losses[losses.size - violations.size :] - violations
        # Without noise the input has no loss, and the bound on layer 1 is 0.
        excess = float(np.max(violations / np.maximum(bounds, 1e-9)))
        feasible = excess <= config.constraints.tolerance
        score = -float(losses[-1]) if feasible or config.method == "erm" else INFEASIBLE - excess
        row = {
            "kind": "validation",
            "step": step,
            "layer_losses": losses.tolist(),
            "violations": numbers(violations, length=losses.size),
            "worst_excess": excess,
            "feasible": feasible,
            "dead_share": found.dead.tolist(),
            "spread": found.spread.tolist(),
        }
        multipliers = np.asarray(state.dual.multipliers)
        return Validation(row, score, describe_collapse(found.dead, found.spread, losses, multipliers))

    def _goes_on(self) -> bool:
        return self._saved_step < self._config.steps and not self._gave_up()

    def _gave_up(self) -> bool:
        return self._config.on_collapse == "stop" and self._notes.collapses >= 2

    def _write_status(self, state: str) -> None:
        status = {
            "state": state,
            "steps": self._saved_step,
            "train_seconds": self._notes.train_seconds,
            "compile_seconds": self._compile_seconds,
            "messages": list(self._notes.messages),
            "environment": environment(),
        }
        write_json(self._folder / "status.json", status)


def _require_finite(step: int, metrics: Metrics) -> None:
    _require_finite_layers(step, np.asarray(metrics.layer_losses), "loss")
    if not np.isfinite(metrics.grad_norm):
        raise UserError(f"the gradient is not finite at step {step}; {_WAY_OUT}")


def _require_finite_layers(step: int, losses: np.ndarray, what: str) -> None:
    broken = np.flatnonzero(~np.isfinite(losses))
    if broken.size:
        raise UserError(f"the {what} is not finite at step {step}, first at layer {broken[0]}; {_WAY_OUT}")


_WAY_OUT = (
    "the last good checkpoint is kept; lower --primal.learning-rate or --primal.clip-norm and train into another --out"
)
