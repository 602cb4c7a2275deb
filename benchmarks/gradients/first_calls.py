"""First calls and calls outside of `jax.jit`: seconds of CPU, each library in a process of its own."""

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp

import unroll_jax
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
WAYS = ("ours", "jaxopt, Picard, bicgstab", "jaxopt, Anderson 5, bicgstab", "banax, Picard", "banax, Anderson")
EAGER = 8  # calls, of which the third and later count


def time_calls(*, peers: bool = True) -> dict[str, float]:
    """Prints the first compiled call and later ones outside of jit, of value and gradient."""
    figures, rows = {}, []
    for cell in CELLS:
        for way in WAYS if peers else WAYS[:1]:
            command = [sys.executable, "-m", "benchmarks.gradients.first_calls", cell, way]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:  # not installed, or no way of this cell
                continue
            seconds = json.loads(done.stdout.splitlines()[-1])
            rows.append([cell, way, *(f"{value:.4f}" if value is not None else "-" for value in seconds.values())])
            figures |= {f"{cell}, {way}, {name}": value for name, value in seconds.items() if value is not None}
    print("\nseconds of CPU: the first call of jit, with its gradient; later calls outside of jit:")
    print(table(["problem", "way", "first", "value", "value and gradient"], rows), flush=True)
    return figures


def measure(cell: Cell, way: str) -> dict[str, float | None]:
    """The seconds of one way; calls outside of jit are measured for ours only."""
    library, _, name = way.partition(", ")
    if way == "ours":
        find = ours(cell)
    elif library == "banax":
        find = jax_peers.banax_ways()[name](cell, TOL, TOL)
    else:
        build = jax_peers.jaxopt_ways(cell)[name](cell, TOL)
        find = lambda params: build(params, jnp.float32(TOL))  # noqa: E731
    both = jax.value_and_grad(lambda params: jnp.sum(cell.target * find(params)))
    first = _seconds(lambda: jax.jit(both)(cell.params))
    if way != "ours":
        return {"first": first, "value": None, "both": None}
    later = [min([_seconds(lambda f=f: f(cell.params)) for _ in range(EAGER)][2:]) for f in (find, both)]
    return {"first": first, "value": later[0], "both": later[1]}


def _seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    jax.block_until_ready(call())
    return time.process_time() - began


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_compilation_cache", False)
    assert unroll_jax  # imported before the clock starts
    print(json.dumps(measure(CELLS[sys.argv[1]](), sys.argv[2])))
