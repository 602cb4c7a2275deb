"""First calls and calls outside of `jax.jit`: seconds of CPU, each library in a
separate process."""

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

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
FIGURES = ("first", "value", "both")
EAGER = 8  # calls; the third and later ones count


def time_calls(*, peers: bool = True) -> dict[str, float]:
    """Prints the first compiled call and later ones outside of jit, of value and
    gradient."""
    figures, rows = {}, []
    for cell in CELLS:
        for way in WAYS if peers else WAYS[:1]:
            command = [
                sys.executable,
                "-m",
                "benchmarks.gradients.first_calls",
                cell,
                way,
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:  # not installed, or no way of this cell
                continue
            seconds = json.loads(done.stdout.splitlines()[-1])
            rows.append(
                [
                    cell,
                    way,
                    *(
                        f"{seconds[name]:.4f}" if name in seconds else "-"
                        for name in FIGURES
                    ),
                ]
            )
            figures |= {
                f"{cell}, {way}, {name}": value for name, value in seconds.items()
            }
    print(
        "\nseconds of CPU: the first call of jit, with its gradient; later calls"
        " outside of jit:"
    )
    print(
        table(["problem", "way", "first", "value", "value and gradient"], rows),
        flush=True,
    )
    return figures


def measure(cell: Cell, way: str) -> dict[str, float]:
    """The seconds of one way; calls outside of jit are measured for ours only."""
    library, _, name = way.partition(", ")
    build = None if way == "ours" else jax_peers.ways(cell)[library][name]
    if build is None:
        find = ours(cell)
    elif library == "banax":
        find = build(cell, TOL, TOL)
    else:
        find = lambda params: build(cell, TOL)(params, jnp.float32(TOL))
    both = jax.value_and_grad(lambda params: jnp.sum(cell.target * find(params)))
    first = _seconds(lambda: jax.jit(both)(cell.params))
    later = lambda f: min([_seconds(lambda: f(cell.params)) for _ in range(EAGER)][2:])
    return dict(
        zip(
            FIGURES,
            (first, later(find), later(both)) if way == "ours" else (first,),
            strict=False,
        )
    )


def _seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    jax.block_until_ready(call())
    return time.process_time() - began


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_compilation_cache", False)
    print(json.dumps(measure(CELLS[sys.argv[1]](), sys.argv[2])))
