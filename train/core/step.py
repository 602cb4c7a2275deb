"""The training step: plain or constrained, whole or in parts, on one device or many."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, UInt32

from ..config.errors import PLAIN, UNSHOWN, UserError
from ..sharding import keep_rows, replicated, rows, shardings
from ..system.distributed import fetch
from .metrics import NotFiniteError, require_finite
from .objective import describe_objective, loss_gradient, objective, prices
from .task import Batch, Params, Plan, Row, SampleLosses, Task


class TrainState(NamedTuple):
    """State of a run: two runs with equal states continue alike.

    Attributes:
      step: Steps done. The next batch and its noise are functions of it.
      key: (2,) raw key that noise and augmentation are folded from.
      params: Parameters of the model.
      opt_state: State of the optimiser, with the multipliers if it has any.
      average: State of the moving average of the parameters. None without one.
    """

    step: Int[Array, ""]
    key: UInt32[Array, "2"]
    params: Params
    opt_state: optax.OptState
    average: Any = None


class Metrics(NamedTuple):
    """Metrics of one step, before its update.

    Attributes:
      value: Value of the objective.
      layer_losses: f_0 to f_L, means over the batch.
      grad_norm: Norm of the gradient in the parameters.
      prices: Violations and multipliers. None without constraints.
      task: Figures of the task, such as accuracy or iterations.
    """

    value: Float[Array, ""]
    layer_losses: Float[Array, "layers_and_one"]
    grad_norm: Float[Array, ""]
    prices: Any
    task: Mapping[str, Array]


def train_step(
    task: Task, plan: Plan, state: TrainState, batch: Batch
) -> tuple[TrainState, Metrics]:
    """Takes one step: the gradient of the objective of all layer losses, and an update.

    Under constraints that is `unroll_jax.primal_dual`. It descends the Lagrangian in
    the parameters, and ascends it in the multipliers by the violations of the same
    batch (Porras-Valenzuela et al., Algorithm 1).
    """
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
    batch = task.corrupt(batch, task.trial._replace(augment=True), key)
    counts = None if task.counts is None else task.counts(batch)

    def losses(params: Params, batch: Batch, probe: Any) -> tuple[SampleLosses, Any]:
        if task.trained is not None:
            params = jax.tree.map(_trained, params, task.trained(params))
        samples, figures = task.losses(params, batch, task.trial._replace(probe=probe))
        check_rows(samples, batch, task.num_layers)
        return samples, figures

    def value_of(samples: SampleLosses) -> tuple[Float[Array, ""], Any]:
        means = _means(samples, counts)
        if plan.mesh.size > 1:
            means = _before_gradients(means)
        value, extra = objective(plan, samples, means, state.opt_state, state.step)
        return value, (means, extra)

    # The means come out of there already reduced over the devices.
    (value, (means, extra), _, figures), (gradient, probed) = loss_gradient(
        losses,
        value_of,
        state.params,
        batch,
        task.probe or (lambda rows: None),
        parts=plan.parts,
        affine=plan.affine,
        place=lambda part, axis: keep_rows(part, axis=axis),
    )
    # optax mixes its counters, int32, with floats
    with jax.numpy_dtype_promotion("standard"):
        updates, opt_state = plan.optimizer.update(
            gradient, state.opt_state, state.params, **extra
        )
    params = optax.apply_updates(state.params, updates)
    average = state.average
    if plan.ema is not None:
        _, average = _averaging(task, plan.ema).update(params, average)
    metrics = Metrics(
        value=value,
        layer_losses=means,
        grad_norm=optax.tree.norm(gradient),
        prices=prices(plan, extra, state.opt_state),
        task=task.summarise(figures, counts, probed),
    )
    return TrainState(state.step + 1, state.key, params, opt_state, average), metrics


def first_state(
    task: Task, plan: Plan, seed: int, pretrained: Any = None
) -> TrainState:
    """Returns the state before the first step. `init_state` makes it where its
    arrays live."""
    params_key, noise_key = jax.random.split(jax.random.key(seed))
    params = task.init(params_key)
    check_params(params)
    if pretrained is not None and task.with_pretrained is not None:
        params = task.with_pretrained(params, pretrained)
    average = None
    if plan.ema is not None:
        average = _averaging(task, plan.ema).init(params)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        key=jax.random.key_data(noise_key),
        params=params,
        opt_state=plan.optimizer.init(params),
        average=average,
    )


def evaluated_params(plan: Plan, state: TrainState) -> Params:
    """Returns the parameters that validations, evaluations and exports take: their
    moving average if the plan has one."""
    if plan.ema is None:
        return state.params
    # of the trained parameters only, where others are frozen
    kept = getattr(state.average, "inner_state", state.average)
    averages = optax.tree.bias_correction(kept.ema, plan.ema, kept.count)

    def choose(average: Any, param: Array) -> Array:
        return param if _is_masked(average) else average

    return jax.tree.map(choose, averages, state.params, is_leaf=_is_masked)


def state_like(task: Task, plan: Plan) -> TrainState:
    """Returns shapes, dtypes and shardings of the state, as a checkpoint is
    restored."""
    shapes = jax.eval_shape(lambda: first_state(task, plan, 0))
    placed = shardings(shapes, plan.mesh)
    return jax.tree.map(lambda leaf, where: leaf.update(sharding=where), shapes, placed)


def init_state(task: Task, plan: Plan, seed: int) -> TrainState:
    """Returns the state before the first step. Every array is made in its shards,
    never whole on one device."""
    where = jax.tree.map(lambda leaf: leaf.sharding, state_like(task, plan))
    make = jax.jit(
        lambda pretrained: first_state(task, plan, seed, pretrained),
        out_shardings=where,
        donate_argnums=0,
    )
    return make(None if task.pretrained is None else task.pretrained())


def jit_step(task: Task, plan: Plan) -> jax.stages.Wrapped:
    """Returns `train_step` on the mesh of the plan, ``(state, batch) -> (state,
    metrics)``. It consumes (donates) its state."""
    where = jax.tree.map(lambda leaf: leaf.sharding, state_like(task, plan))

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        with jax.sharding.use_abstract_mesh(plan.mesh.abstract_mesh):
            return train_step(task, plan, state, batch)

    return jax.jit(
        step,
        in_shardings=(where, rows(plan.mesh)),
        out_shardings=(where, replicated(plan.mesh)),
        donate_argnums=0,
    )


def describe_step(
    task: Task, plan: Plan, step: int, values: Metrics
) -> tuple[Row, dict[str, str]]:
    """Returns the row of a step for metrics.jsonl, and figures for the progress bar."""
    each = "layer" if task.num_layers else None
    require_finite(step, values.layer_losses, "loss", each=each)
    row, words = describe_objective(
        plan, step, values.value, values.layer_losses, values.prices
    )
    require_finite(step, values.grad_norm, "gradient")
    task_row, task_words = task.describe(values.task)
    return {**row, **task_row, "grad_norm": float(values.grad_norm)}, words | task_words


def require_finite_state(state: TrainState) -> None:
    """Raises `NotFiniteError` that names the first array that is not finite. Such
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


def check_rows(samples: Any, batch: Batch, num_layers: int) -> None:
    """Raises a `UserError` unless losses have a row for every row of a batch, and a
    column for every layer."""
    expected = (jax.tree.leaves(batch)[0].shape[0], num_layers + 1)
    if samples.shape != expected:
        raise UserError(
            f"losses must have shape {expected} for a batch of {expected[0]} samples,"
            f" got {samples.shape}; return a row for each sample"
        )


def check_params(params: Params) -> None:
    """Raises a `UserError` for parameters that cannot be trained, or not be read
    back from a checkpoint."""
    leaves = jax.tree.leaves_with_path(params)
    if not leaves:
        raise UserError(
            f"init must return parameters with an array at least, got {params!r:.60};"
            " return one"
        )
    names = dict[str, str]()
    for path, leaf in leaves:
        shown = jax.tree_util.keystr(path)
        place = f"init must return arrays of floating numbers; its array {shown!a}"
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        dtype = jnp.result_type(leaf)
        if UNSHOWN.search(name):
            raise UserError(f"{place} needs keys of {PLAIN}; rename the key")
        if name in names:
            raise UserError(
                f"{place} has the name {name!r} in checkpoints, as {names[name]} has;"
                " rename a key"
            )
        if not jnp.issubdtype(dtype, np.floating):
            raise UserError(
                f"{place} is of {dtype}; convert it, or keep it out of the parameters"
            )
        if np.size(leaf) == 0:
            raise UserError(
                f"{place} has no element, its shape is {np.shape(leaf)}; leave it out"
            )
        names[name] = shown


@jax.jit
def _are_finite(leaves: list[jax.Array]) -> list[jax.Array]:
    return [jnp.all(jnp.isfinite(leaf)) for leaf in leaves]


def _averaging(task: Task, decay: float) -> optax.GradientTransformation:
    """Returns the moving average of the parameters that are trained."""
    average = optax.ema(decay)
    return average if task.trained is None else optax.masked(average, task.trained)


def _is_masked(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)


def _trained(leaf: Array, moves: bool) -> Array:
    """Returns a parameter, as a constant if it is not trained."""
    return leaf if moves else jax.lax.stop_gradient(leaf)


@jax.custom_vjp
def _before_gradients(means: Array) -> Array:
    """Returns the means, and lets gradients wait for their reduction over devices.

    Two reductions that do not depend on each other may wait for one another on CPUs,
    some devices in the one, some in the other.
    """
    return means


def _forward(means: Array) -> tuple[Array, Array]:
    return means, means


def _backward(means: Array, cotangent: Array) -> tuple[Array]:
    # XLA keeps a product with 0, as it may be NaN. Then the step fails anyway.
    return (cotangent + 0.0 * means,)


_before_gradients.defvjp(_forward, _backward)


def _means(
    samples: SampleLosses, counts: Array | None
) -> Float[Array, "layers_and_one"]:
    if counts is None:
        return jnp.mean(samples, axis=0)
    number = jnp.sum(counts).astype(samples.dtype)
    return jnp.sum(samples, axis=0) / jnp.maximum(number, 1.0)
