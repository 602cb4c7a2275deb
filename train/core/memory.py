"""`unroll-jax plan`: the memory of a training step on each device of a mesh, by
purpose; no step is run."""

import contextlib
import math
import os
from typing import Any

import jax

from ..sharding.mesh import describe_mesh, local_rows, parse_mesh, put
from ..system.machine import SIMULATED
from ..system.terminal import Table, as_text
from .step import jit_step, state_like
from .task import Plan, Task


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
    """Compiles the step of a task for its mesh; returns it with the shapes of the
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
    """Compiles the step of a task; returns its mesh and its memory as text."""
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
