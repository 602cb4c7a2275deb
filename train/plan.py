"""The place of every array of a run, and the communication of a step, without running one."""

import contextlib
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from .sharding.collectives import Collective, collectives
from .sharding.mesh import describe_mesh, local_rows, parse_mesh, put
from .sharding.rules import path_name
from .step import jit_step, state_like
from .system.machine import SIMULATED
from .system.terminal import Table, as_text
from .task import Task


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
      mesh: in words.
      state: every array of the state.
      batch: every array of a batch.
      whole_bytes: of the state, if one device held it all.
      memory: bytes a device while a step runs, by what they are for; of XLA's ``memory_analysis``.
      collectives: what a step communicates.
    """

    mesh: str
    state: list[Row]
    batch: list[Row]
    whole_bytes: int
    memory: dict[str, int]
    collectives: list[Collective]


def simulate(mesh: str | None) -> None:
    """Devices for a plan, which runs no step: CPUs may be as many as its mesh asks for."""
    simulated = SIMULATED in os.environ.get("XLA_FLAGS", "")
    if mesh is None or simulated or jax.distributed.is_initialized():
        return
    # Too late where this process has computed before: there, the mesh has to fit the devices that there are.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", math.prod(parse_mesh(mesh).values()))


def make_plan(task: Task) -> Plan:
    """Compiles the step of a task for its mesh; no array is made but one batch, whose shape nothing else knows."""
    mesh, like = task.training.mesh, state_like(task)
    batch = put(next(task.batches(0, local_rows(mesh, task.config.batch_size))), mesh)
    compiled = jit_step(task).lower(like, batch).compile()
    analysis: Any = compiled.memory_analysis()
    return Plan(
        mesh=describe_mesh(mesh),
        state=_rows(like),
        batch=_rows(batch),
        whole_bytes=sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(like)),
        memory={
            "state and batch": analysis.argument_size_in_bytes,
            "activations and other temporaries": analysis.temp_size_in_bytes,
            "results that are not the state's own memory": analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
        },
        collectives=collectives(compiled.as_text() or ""),
    )


def describe_plan(plan: Plan) -> str:
    """The plan as text: arrays, totals a device, collectives."""
    state, batch = (sum(row.bytes for row in rows) for rows in (plan.state, plan.batch))
    arrays = [
        (row.path, "x".join(map(str, row.shape)) or "-", row.dtype, " ".join(row.spec) or "-", f"{row.bytes:,}")
        for row in (*plan.state, *plan.batch)
    ]
    totals = {"state": state, "a batch": batch}
    totals |= {f"while a step runs: {name}": size for name, size in plan.memory.items()}
    totals["while a step runs: all"] = sum(plan.memory.values())
    sizes = tuple((name, f"{size:,}") for name, size in totals.items())
    return "\n\n".join(
        (
            f"on {plan.mesh}; the state whole is {plan.whole_bytes:,} bytes",
            as_text(Table("", ("array", "shape", "dtype", "axes", "bytes a device"), tuple(arrays))),
            as_text(Table("", ("memory", "bytes a device"), sizes)),
            _collectives_text(plan.collectives),
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


def _collectives_text(operations: Sequence[Collective]) -> str:
    if not operations:
        return "a step communicates nothing"
    rows = tuple(_collective_row(one) for one in operations)
    total = sum(one.bytes * one.times for one in operations)
    more = "" if all(one.bounded for one in operations) else " or more: + marks loops whose length depends on the data"
    header = ("collective", "devices", "arrays", "bytes", "times a step", "bytes a step", "for")
    note = f"a step gives each device {total:,} bytes of results of collectives{more}"
    return as_text(Table("", header, rows, note))


def _collective_row(one: Collective) -> tuple[str, ...]:
    times = str(one.times) if one.bounded else f"{one.times}+"
    part = "backward" if "transpose(" in one.source else "forward" if "jvp(" in one.source else "update"
    total = f"{one.bytes * one.times:,}"
    return one.kind, str(one.group), str(one.arrays), f"{one.bytes:,}", times, total, part
