"""First calls, and calls outside of `jax.jit`: seconds of CPU.

Each library runs in a separate process.
"""

import functools
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gradients import jax_peers
from benchmarks.gradients.problems import Cell, dense_cell, tanh_cell, transformer_cell
from benchmarks.gradients.race import TOL, ours
from benchmarks.timing import table

__all__ = ["time_calls"]

CELLS: dict[str, Callable[[], Cell]] = {
    "tanh": tanh_cell,
    "transformer": transformer_cell,
    "opteq": lambda: dense_cell(64, 0.9, "random", width=128),
}
WAYS = (
    "ours",
    "jaxopt, Picard, bicgstab",
    "jaxopt, Anderson 5, bicgstab",
    "banax, Picard",
    "banax, Anderson",
)
EAGER = 8  # calls; the third and later ones count


def time_calls(*, peers: bool = True) -> dict[str, float]:
    """Prints the first compiled call, and later ones outside of jit."""
    figures = {}
    rows = []
    for cell in CELLS:
        for way in WAYS if peers else WAYS[:1]:
            command = [sys.executable, "-m", "benchmarks.gradients.first_calls"]
            done = subprocess.run([*command, cell, way], capture_output=True, text=True)
            if done.returncode:  # not installed, or no way of this cell
                continue
            seconds = json.loads(done.stdout.splitlines()[-1])
            rows.append([cell, way, *seconds.values()])
            for name, value in seconds.items():
                figures[f"{cell}, {way}, {name}"] = value
    print(
        "\nseconds of CPU: the first call of jit, with its gradient; later calls"
        " outside of jit:"
    )
    header = ["problem", "way", "first", "value", "value and gradient"]
    print(table(header, rows), flush=True)
    return figures


def measure(cell: Cell, way: str) -> dict[str, float]:
    """The seconds of one way. Only ours is measured outside of jit."""
    find = ours(cell) if way == "ours" else _peer(cell, way)
    both = jax.value_and_grad(lambda params: jnp.sum(cell.target * find(params)))
    figures = {"first": _seconds(lambda: jax.jit(both)(cell.params))}
    if way == "ours":
        for name, function in (("value", find), ("both", both)):
            seconds = [
                _seconds(functools.partial(function, cell.params)) for _ in range(EAGER)
            ]
            figures[name] = min(seconds[2:])
    return figures


def _peer(cell: Cell, way: str) -> Callable[[Any], jax.Array]:
    library, _, name = way.partition(", ")
    build = jax_peers.ways(cell)[library][name]
    if library == "banax":
        return build(cell, TOL, TOL)
    return lambda params: build(cell, TOL)(params, jnp.float32(TOL))


def _seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    jax.block_until_ready(call())
    return time.process_time() - began


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_compilation_cache", False)
    print(json.dumps(measure(CELLS[sys.argv[1]](), sys.argv[2])))
