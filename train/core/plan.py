"""Plans from options: optimiser, constraints on layers, weights of losses, devices; and
the memory of their steps."""

import contextlib
import dataclasses
import functools
import math
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from unroll_jax import (
    descent_constraints,
    dual_ascent,
    in_coordinates,
    primal_dual,
    proportional_integral,
)
from unroll_jax.constrained import Constraint, level_constraints

from ..config.constrained import (
    ConstrainedConfig,
    ConstraintConfig,
    DualConfig,
    check_depth,
)
from ..config.errors import OptionError
from ..config.run import RunConfig
from ..sharding import describe_mesh, local_rows, make_mesh, parse_mesh, put
from ..system.machine import SIMULATED
from ..system.terminal import Table, as_text
from .optimizers import make_optimizer, with_slacks
from .step import jit_step, state_like
from .task import Plan, Task


def make_plan(task: Task) -> Plan:
    """Returns the training of a task by its options."""
    options = task.options
    check_batch_size(options.batch_size, task)
    if task.plan is not None:
        return task.plan(task)
    if isinstance(options, ConstrainedConfig):
        return _layered(task, options)
    return _of_epochs(task, options)


def _of_epochs(task: Task, options: Any) -> Plan:
    """Returns the training by a loss at the end, in epochs."""
    epoch = steps_an_epoch(task, options)
    num_steps = options.steps or options.epochs * epoch
    optimizer = make_optimizer(
        options.optimizer, num_steps=num_steps, steps_an_epoch=epoch
    )
    return Plan(
        optimizer=optax.with_extra_args_support(optimizer),
        num_steps=num_steps,
        validate_every=options.validate_every * epoch,
        mesh=_mesh(options),
        weights=last_only(task.num_layers),
        parts=options.accumulate,
        ema=options.ema,
    )


def _layered(task: Task, options: ConstrainedConfig) -> Plan:
    """Returns the training by the losses of layers, plain or under constraints."""
    num_layers = task.num_layers
    check_depth(options, num_layers)
    settings = options.constraints
    make = functools.partial(layer_constraints, settings, num_layers)
    constraints = make(settings.form, tightened=True)
    of_means = make("ratio_of_means")
    warmup = settings.warmup(options.steps)
    explicit = options.enforces and settings.slacks == "explicit"

    optimizer = make_optimizer(
        options.primal, num_steps=options.steps, trained=task.trained
    )
    if task.bases is not None:
        optimizer = in_coordinates(optimizer, task.bases)
    optimizer = optax.with_extra_args_support(optimizer)
    if options.enforces:
        ascent = dual_of(options)
        starts = np.broadcast_to(options.dual.start, len(constraints))
        start = dict(zip(constraints, starts.tolist(), strict=True))
        optimizer = primal_dual(optimizer, ascent, violations=start, start=start)
        if explicit:
            epoch = options.validate_every
            if task.num_examples is not None:
                epoch = task.num_examples // options.batch_size
            optimizer = with_slacks(
                optimizer,
                constraints,
                learning_rate=settings.slack_rate,
                reset_every=epoch,
            )

    weights = np.asarray(options.loss_weights(num_layers, task.numbers))
    return Plan(
        optimizer=optimizer,
        num_steps=options.steps,
        validate_every=options.validate_every,
        mesh=_mesh(options),
        weights=weights,
        constraints=constraints,
        stated=of_means if settings.of_means else make("ratio"),
        stated_of_means=of_means,
        enforced=options.enforces,
        judged=weights if options.early else None,
        warmup=warmup,
        normalise=settings.normalise,
        resilience=settings.resilience,
        explicit_slacks=explicit,
        of_means=settings.of_means,
        affine=not options.enforces or is_affine(settings),
        form=settings.form,
        tolerance=settings.tolerance,
        parts=options.accumulate,
        ema=options.ema,
    )


def in_steps(options: RunConfig, task: Task) -> RunConfig:
    """Returns the options of a run whose length is in steps, if it may be in epochs."""
    if not isinstance(options, ConstrainedConfig) or options.epochs is None:
        return options
    steps = options.epochs * steps_an_epoch(task, options)
    counted = dataclasses.replace(options, steps=steps, epochs=None).resolved()
    counted.check()
    return counted


def steps_an_epoch(task: Task, options: RunConfig) -> int:
    """Returns the steps of a pass over the train split, or 1 where its size is not
    known."""
    examples = task.num_examples or task.epoch or options.batch_size
    return max(examples // options.batch_size, 1)


def dual_of(options: ConstrainedConfig) -> Any:
    """Returns the ascent of the multipliers."""
    settings = options.constraints
    rule = dual_rule(options.dual, warmup=settings.warmup(options.steps))
    decay = settings.resilience if settings.slacks == "implicit" else None
    return dual_ascent(rule, resilience=decay, cap=options.dual.cap)


def last_only(num_layers: int) -> np.ndarray:
    """Returns the weights of plain risk: 1 for the last layer's loss."""
    return np.eye(num_layers + 1)[-1]


def layer_constraints(
    settings: ConstraintConfig, num_layers: int, form: str, *, tightened: bool = False
) -> dict[str, Constraint]:
    """Returns the constraints of options in one of their forms: as stated, or with the
    margins that training tightens them by."""
    margins = (0.0,) * num_layers
    if tightened:
        margins = (settings.first_margin, *[settings.margin] * (num_layers - 1))
    compared = form.removesuffix("_of_means")
    if settings.last is not None:
        level = settings.last * (1.0 - margins[-1])
        return level_constraints([level], num_layers=num_layers, form=compared)
    return descent_constraints(
        settings.alphas(num_layers),
        num_layers=num_layers,
        reference=settings.reference,
        bounds=settings.bounds,
        floor=settings.floor,
        margin=margins,
        form=compared,
        proxy=form.endswith("_of_means"),
        of_samples=form == "ratio",
    )


def is_affine(settings: ConstraintConfig) -> bool:
    """Returns whether violations are affine in the mean losses, so that the weights of
    losses in the Lagrangian are known before the losses are."""
    if settings.last is not None or settings.bounds == "cumulative":
        # the bounds are numbers
        return settings.of_means and not settings.form.startswith("log_ratio")
    return settings.form == "difference" and not settings.floor


def dual_rule(dual: DualConfig, *, warmup: int) -> optax.GradientTransformation:
    """Returns the optimiser of the multipliers, on means of so many calls as it
    says, after ``warmup`` calls."""
    if dual.optimizer == "pi":
        rule = proportional_integral(
            dual.learning_rate, dual.proportional_gain, cap=dual.cap
        )
    else:
        rules = {"adam": optax.adam, "sgd": optax.sgd}
        rule = rules[dual.optimizer](dual.learning_rate)
    if dual.every > 1:
        wide = jnp.result_type(float)
        steps = optax.MultiSteps(rule, dual.every, accumulator_dtype=wide)
        rule = steps.gradient_transformation()
    if warmup > 0:
        rule = optax.conditionally_mask(
            rule, lambda step, **_: jnp.asarray(step) >= warmup
        )
    return rule


def check_batch_size(batch_size: int, task: Task) -> None:
    """Raises a `UserError` for a batch larger than the train split, before anything
    of its size is made."""
    if task.num_examples is not None and batch_size > task.num_examples:
        raise OptionError(
            "batch_size",
            f"at most the {task.num_examples:,} {task.examples_are} of the train split",
            batch_size,
        )


def _mesh(options: Any) -> Any:
    return make_mesh(
        options.mesh, batch_size=options.batch_size, accumulate=options.accumulate
    )


def simulate(mesh: str | None) -> None:
    """Simulates as many CPU devices as the mesh of a plan has, unless JAX has
    devices already."""
    simulated = SIMULATED in os.environ.get("XLA_FLAGS", "")
    if mesh is None or simulated or jax.distributed.is_initialized():
        return
    # of a process that has computed before: the mesh has to fit its devices
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", math.prod(parse_mesh(mesh).values()))


def compile_step(task: Task, plan: Plan) -> tuple[jax.stages.Compiled, Any, Any]:
    """Compiles the step of a task for its mesh. Returns it with the shapes of the
    state, and a batch."""
    like = state_like(task, plan)
    rows = local_rows(plan.mesh, task.options.batch_size)
    batch = put(next(task.batches(task.options.seed, 0, rows)), plan.mesh)
    return jit_step(task, plan).lower(like, batch).compile(), like, batch


def memory_of(compiled: jax.stages.Compiled, like: Any, batch: Any) -> dict[str, int]:
    """Returns the bytes a device during a step by purpose, by shardings and XLA's
    ``memory_analysis``."""
    analysis: Any = compiled.memory_analysis()
    parameters, optimiser = _bytes(like.params), _bytes(like.opt_state)
    return {
        "parameters": parameters,
        "optimiser": optimiser,
        "rest of the state": _bytes(like) - parameters - optimiser,
        "batch": _bytes(batch),
        "activations and other temporaries": analysis.temp_size_in_bytes,
        "results outside of the state": (
            analysis.output_size_in_bytes - analysis.alias_size_in_bytes
        ),
    }


def describe_memory(task: Task, plan: Plan) -> str:
    """Compiles the step of a task. Returns its mesh and its memory as text."""
    memory = memory_of(*compile_step(task, plan))
    memory |= {"all of a step": sum(memory.values())}
    sizes = tuple((name, f"{size:,}") for name, size in memory.items())
    table = Table("", ("memory", "bytes a device"), sizes)
    return f"on {describe_mesh(plan.mesh)}\n\n{as_text(table)}"


def _bytes(tree: Any) -> int:
    """Returns the bytes of one device's part of arrays."""
    leaves = jax.tree.leaves(tree)
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in leaves
    )
