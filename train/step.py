"""The training step: plain or constrained, whole or in parts, on one device or many."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, UInt32

from .parts import loss_gradient
from .sharding.mesh import keep_rows, replicated, rows
from .sharding.rules import shardings
from .system.distributed import fetch
from .task import (
    Batch,
    NotFiniteError,
    Params,
    Row,
    SampleLosses,
    Task,
    check_params,
    check_rows,
    json_value,
    require_finite,
)


class TrainState(NamedTuple):
    """State of a run: two runs with equal states continue alike.

    Attributes:
      step: Steps done; the next batch and its noise are functions of it.
      key: (2,) raw key that noise and augmentation are folded from.
      params: Parameters of the model.
      opt_state: State of the optimiser, with the multipliers if it has any.
    """

    step: Int[Array, ""]
    key: UInt32[Array, "2"]
    params: Params
    opt_state: optax.OptState


class Metrics(NamedTuple):
    """Metrics of one step, before its update.

    Attributes:
      value: Value of the objective.
      layer_losses: f_0 to f_L, means over the batch.
      grad_norm: Norm of the gradient in the parameters.
      objective: Figures of the objective, such as violations.
      task: Figures of the task, such as accuracy or iterations.
    """

    value: Float[Array, ""]
    layer_losses: Float[Array, "layers_and_one"]
    grad_norm: Float[Array, ""]
    objective: Any
    task: Mapping[str, Array]


def train_step(
    task: Task, state: TrainState, batch: Batch
) -> tuple[TrainState, Metrics]:
    """Takes one step: the gradient of the objective of all layer losses, and an update.

    Under constraints that is `unroll_jax.primal_dual`. It descends the Lagrangian in
    the parameters, and ascends it in the multipliers by the violations of the same
    batch (Porras-Valenzuela et al., Algorithm 1).
    """
    objective, optimizer = task.training.objective, task.training.optimizer
    batch = task.sample_noise(
        batch, jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
    )
    counts = task.counts(batch)

    def losses(
        params: Params, batch: Batch, probe: Any
    ) -> tuple[SampleLosses, Mapping[str, Array]]:
        samples, figures = task.losses(params, batch, probe)
        check_rows(samples, batch, task.num_layers)
        return samples, figures

    def value_of(samples: SampleLosses) -> tuple[Float[Array, ""], Any]:
        means = _means(samples, counts)
        value, extra = objective.value(samples, means, state.opt_state, state.step)
        return value, (means, extra)

    # The means come out of there already reduced over the devices.
    (value, (means, extra), _, figures), (gradient, probed) = loss_gradient(
        losses,
        value_of,
        state.params,
        batch,
        task.probe,
        parts=task.config.accumulate,
        # a method of this name, as before 0.3, only costs a pass
        affine=objective.is_affine is True,
        place=lambda part, axis: keep_rows(part, axis=axis),
    )
    # optax mixes its counters, int32, with floats
    with jax.numpy_dtype_promotion("standard"):
        updates, opt_state = optimizer.update(
            gradient, state.opt_state, state.params, **extra
        )
    params = optax.apply_updates(state.params, updates)
    new = TrainState(state.step + 1, state.key, params, opt_state)
    metrics = Metrics(
        value=value,
        layer_losses=means,
        grad_norm=optax.tree.norm(gradient),
        objective=objective.figures(extra, state.opt_state),
        task=task.summarise(figures, counts, probed),
    )
    return new, metrics


def first_state(task: Task, pretrained: Any = None) -> TrainState:
    """Returns the state before the first step; `init_state` makes it where its
    arrays live."""
    params_key, noise_key = jax.random.split(jax.random.key(task.config.seed))
    params = task.init(params_key)
    check_params(params)
    params = params if pretrained is None else task.load_pretrained(params, pretrained)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        key=jax.random.key_data(noise_key),
        params=params,
        opt_state=task.training.optimizer.init(params),
    )


def state_like(task: Task) -> TrainState:
    """Returns shapes, dtypes and shardings of the state, as a checkpoint is
    restored."""
    shapes = jax.eval_shape(lambda: first_state(task))
    placed = shardings(shapes, task.training.mesh)
    return jax.tree.map(lambda leaf, where: leaf.update(sharding=where), shapes, placed)


def init_state(task: Task) -> TrainState:
    """Returns the state before the first step; every array is made in its shards,
    never whole on one device."""
    where = jax.tree.map(lambda leaf: leaf.sharding, state_like(task))
    make = jax.jit(
        lambda pretrained: first_state(task, pretrained),
        out_shardings=where,
        donate_argnums=0,
    )
    return make(task.pretrained())


def jit_step(task: Task) -> jax.stages.Wrapped:
    """`train_step` on the mesh of the task, ``(state, batch) -> (state, metrics)``;
    it consumes (donates) its state."""
    mesh = task.training.mesh
    where = jax.tree.map(lambda leaf: leaf.sharding, state_like(task))

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return train_step(task, state, batch)

    return jax.jit(
        step,
        in_shardings=(where, rows(mesh)),
        out_shardings=(where, replicated(mesh)),
        donate_argnums=0,
    )


def describe_step(task: Task, step: int, values: Metrics) -> tuple[Row, dict[str, str]]:
    """Returns the row of a step for metrics.jsonl, and figures for the progress bar."""
    require_finite(
        step, values.layer_losses, "loss", each="layer" if task.num_layers else None
    )
    row, words = task.training.objective.describe(
        step, values.value, values.layer_losses, values.objective
    )
    require_finite(step, values.grad_norm, "gradient")
    task_row, task_words = task.describe(values.task)
    return {**row, **task_row, "grad_norm": float(values.grad_norm)}, words | task_words


def validate(task: Task, state: TrainState) -> tuple[Row, float]:
    """Returns the row of a validation, and the score of its checkpoint."""
    objective = task.training.objective
    validation = task.validate(state.params, objective.multipliers(state.opt_state))
    means = validation.losses.mean(axis=0)
    require_finite(
        int(state.step),
        means,
        "validation loss",
        each="layer" if task.num_layers else None,
    )
    row, score = objective.judge(int(state.step), validation.losses, state.opt_state)
    if validation.score is not None and row.get("feasible", True):
        score = float(validation.score)
    return row | json_value(validation.row, "the row of validate"), score


def require_finite_state(state: TrainState) -> None:
    """Raises `NotFiniteError` that names the first array that is not finite; such
    states are never saved."""
    leaves = [
        (path, leaf)
        for path, leaf in jax.tree.leaves_with_path(state)
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    finite = fetch(_are_finite([leaf for _, leaf in leaves]))
    for (path, _), holds in zip(leaves, finite, strict=True):
        if not holds:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise NotFiniteError(f"{name} is not finite after step {int(state.step)}")


@jax.jit
def _are_finite(leaves: list[jax.Array]) -> list[jax.Array]:
    return [jnp.all(jnp.isfinite(leaf)) for leaf in leaves]


def _means(
    samples: SampleLosses, counts: Array | None
) -> Float[Array, "layers_and_one"]:
    if counts is None:
        return jnp.mean(samples, axis=0)
    number = jnp.sum(counts).astype(samples.dtype)
    return jnp.sum(samples, axis=0) / jnp.maximum(number, 1.0)
