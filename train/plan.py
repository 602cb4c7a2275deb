"""`unroll-jax plan`: where the arrays of a run live and the memory of a step on each device, without running one."""

import contextlib
import math
import os
from typing import Any, NamedTuple

import jax

from .sharding.mesh import describe_mesh, local_rows, parse_mesh, put
from .sharding.rules import path_name
from .step import jit_step, state_like
from .system.machine import SIMULATED
from .system.terminal import Table, as_text
from .task import Task

PARTS = {"params": "parameters", "opt_state": "optimiser"}  # of a state, by the first name of a path


class Row(NamedTuple):
    """One array: ``bytes`` are those of one device's part, ``spec`` the axes of each dimension."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    spec: tuple[str, ...]
    bytes: int


class Plan(NamedTuple):
    """A run on its mesh.

    Attributes:
      mesh: description of the mesh.
      state: every array of the state.
      batch: every array of a batch.
      whole_bytes: bytes of the state on a single device.
      arguments: bytes a device of state and batch, by XLA's ``memory_analysis``.
      memory: bytes a device during a step, by purpose.
    """

    mesh: str
    state: list[Row]
    batch: list[Row]
    whole_bytes: int
    arguments: int
    memory: dict[str, int]


def simulate(mesh: str | None) -> None:
    """Simulates as many CPU devices as the mesh of a plan has, unless JAX has devices already."""
    simulated = SIMULATED in os.environ.get("XLA_FLAGS", "")
    if mesh is None or simulated or jax.distributed.is_initialized():
        return
    with contextlib.suppress(RuntimeError):  # of a process that has computed before: the mesh has to fit its devices
        jax.config.update("jax_num_cpu_devices", math.prod(parse_mesh(mesh).values()))


def compile_step(task: Task) -> tuple[jax.stages.Compiled, Any, Any]:
    """Compiles the step of a task for its mesh; returns it with the shapes of the state, and a batch."""
    mesh, like = task.training.mesh, state_like(task)
    batch = put(next(task.batches(0, local_rows(mesh, task.config.batch_size))), mesh)
    return jit_step(task).lower(like, batch).compile(), like, batch


def make_plan(task: Task) -> Plan:
    """Plans a run of a task; no array is made but one batch."""
    return plan_of(task, *compile_step(task))


def plan_of(task: Task, compiled: jax.stages.Compiled, like: Any, batch: Any) -> Plan:
    """Returns the plan of a compiled step, given the results of `compile_step`."""
    analysis: Any = compiled.memory_analysis()
    state, examples = _rows(like), _rows(batch)
    memory = dict.fromkeys((*PARTS.values(), "rest of the state"), 0)
    for row in state:
        memory[PARTS.get(row.path.partition("/")[0], "rest of the state")] += row.bytes
    memory |= {
        "batch": sum(row.bytes for row in examples),
        "activations and other temporaries": analysis.temp_size_in_bytes,
        "results outside of the state": analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
    }
    return Plan(
        mesh=describe_mesh(task.training.mesh),
        state=state,
        batch=examples,
        whole_bytes=sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(like)),
        arguments=analysis.argument_size_in_bytes,
        memory=memory,
    )


def describe_plan(plan: Plan) -> str:
    """Returns the plan as text: arrays, and memory by purpose."""
    arrays = [
        (row.path, "x".join(map(str, row.shape)) or "-", row.dtype, " ".join(row.spec) or "-", f"{row.bytes:,}")
        for row in (*plan.state, *plan.batch)
    ]
    memory = plan.memory | {"all of a step": sum(plan.memory.values())}
    sizes = tuple((name, f"{size:,}") for name, size in memory.items())
    return "\n\n".join(
        (
            f"on {plan.mesh}; the whole state takes {plan.whole_bytes:,} bytes",
            as_text(Table("", ("array", "shape", "dtype", "axes", "bytes a device"), tuple(arrays))),
            as_text(Table("", ("memory", "bytes a device"), sizes)),
        )
    )


def _rows(tree: Any) -> list[Row]:
    return [
        Row(
            path=path_name(path) or "batch",
            shape=leaf.shape,
            dtype=str(leaf.dtype),
            spec=tuple(_axis(axis) for axis in (*leaf.sharding.spec, *[None] * leaf.ndim)[: leaf.ndim]),
            bytes=math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize,
        )
        for path, leaf in jax.tree.leaves_with_path(tree)
    ]


def _axis(axis: Any) -> str:
    return "." if axis is None else axis if isinstance(axis, str) else "*".join(axis)
