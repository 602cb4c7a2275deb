"""Cost of fast weights over a long sequence, value and gradient, against a chunked
delta rule in PyTorch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import torch_peer
from benchmarks.record import Record
from benchmarks.timing import (
    SAME_ALLOCATOR,
    interleaved,
    matmul_rate,
    power_of,
    table,
    temporary_mebibytes,
)
from unroll_jax import delta_rule, mesa

__all__ = ["CHUNKS", "Sizes", "main", "torch_delta_rule"]

BAR = 1.3  # of the time of compiled PyTorch
CHUNKS = {"torch_eager": 128, "torch_compiled": 128}  # the faster of 64 and 128
Rule = Callable[..., Any]


class Sizes(NamedTuple):
    """Width of keys and values, lengths of the sequence (the last one is timed), and
    the number of runs."""

    dim: int = 64
    lengths: tuple[int, ...] = (1024, 2048, 4096)
    repeats: int = 30


FULL, QUICK = Sizes(), Sizes(lengths=(256, 512, 1024), repeats=5)


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints medians of interleaved runs at the longest sequence, and temporary
    memory by length."""
    sizes, with_torch = (
        QUICK if quick else FULL,
        peers and torch_peer.torch_or_none() is not None,
    )
    length, record = sizes.lengths[-1], Record()
    print(
        f"value and gradient, one sequence of {length}, d = {sizes.dim}, float32,"
        f" {jax.default_backend()}"
    )
    if peers:
        missing = 'without PyTorch: pip install "unroll_jax[peers]" to compare with it'
        print(SAME_ALLOCATOR if with_torch else missing)
    arrays = _draw(length, sizes.dim)
    program = _program(delta_rule, arrays)
    candidates = {
        "delta_rule": lambda: jax.block_until_ready(program(*arrays)),
        **(_peers(arrays) if with_torch else {}),
    }
    rate = matmul_rate(1024, 1024, 1024)
    # six products and half a one in a chunk of 64; the gradient takes two such
    flops = 39.0 * length * 64 * sizes.dim
    rows = []
    for who, seconds in interleaved(
        candidates, repeats=sizes.repeats, warmup=3
    ).items():
        median = record.time(f"{who}_seconds", seconds, flops=flops, rate=rate)
        rows.append([who, f"{1e3 * median:.1f}", f"{1e3 * np.min(seconds):.1f}"])
    print(
        table(
            ["who", "median ms", "least ms"],
            [*rows, ["floor", f"{1e3 * flops / rate:.1f}", ""]],
        )
    )
    for peer in list(candidates)[1:]:
        value = record.ratio(
            f"delta_rule_over_{peer}", "delta_rule_seconds", f"{peer}_seconds"
        )
        print(
            f"delta_rule / {peer}: {value:.2f}"
            + (f" (bar {BAR:.2f})" if "compiled" in peer else "")
        )
    _memory(record, sizes)
    record.draw = record.draw_times
    print(
        f"floor: the matrix products alone at {rate / 1e9:.0f} GFLOP/s, that of a 1024"
        " x 1024 x 1024 one"
    )
    return record


def torch_delta_rule(
    queries: Any, keys: Any, values: Any, rates: Any, *, chunk_size: int
) -> Any:
    """The outputs (n, v) of `unroll_jax.delta_rule` for one sequence of whole
    chunks, in PyTorch."""
    torch = torch_peer.torch_or_none()
    S, outputs = torch.zeros(keys.shape[-1], values.shape[-1]), []
    for begin in range(0, len(keys), chunk_size):
        q, k, v, b = (
            array[begin : begin + chunk_size]
            for array in (queries, keys, values, rates[:, None])
        )
        product = torch.tril(b * (k @ k.T), -1)
        errors = torch.linalg.solve_triangular(
            product, b * (v - k @ S), upper=False, unitriangular=True
        )
        outputs.append(q @ S + torch.tril(q @ k.T) @ errors)
        S = S + k.T @ errors
    return torch.cat(outputs)


def _draw(length: int, dim: int) -> tuple[np.ndarray, ...]:
    """Queries, keys of length 1, values, rates in [0, 1], and the weights of a sum
    of the outputs."""
    rng = np.random.default_rng(0)
    queries, keys, values, weights = rng.normal(size=(4, length, dim)).astype(
        np.float32
    )
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    return queries, keys, values, rng.uniform(size=length).astype(np.float32), weights


def _program(rule: Rule, arrays: tuple[np.ndarray, ...]) -> jax.stages.Compiled:
    """A weighted sum of the outputs and its gradient in queries, keys, values and
    rates."""

    def loss(*arguments: jax.Array) -> jax.Array:
        *sequence, weights = arguments
        return jnp.sum(rule(*sequence)[0] * weights)

    return jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3))).lower(*arrays).compile()


def _peers(arrays: tuple[np.ndarray, ...]) -> dict[str, Callable[[], object]]:
    torch = torch_peer.torch_or_none()
    *sequence, weights = (torch.from_numpy(array) for array in arrays)
    leaves = [array.requires_grad_() for array in sequence]

    def runner(chunk_size: int, compile_it: bool) -> Callable[[], object]:
        def loss(*leaves: Any) -> Any:
            return (torch_delta_rule(*leaves, chunk_size=chunk_size) * weights).sum()

        function = torch.compile(loss, fullgraph=True) if compile_it else loss

        def run() -> Any:
            for leaf in leaves:
                leaf.grad = None
            value = function(*leaves)
            value.backward()
            return value

        return run

    return {who: runner(size, who.endswith("compiled")) for who, size in CHUNKS.items()}


def _memory(record: Record, sizes: Sizes) -> None:
    """Prints temporary memory of value and gradient by length, and the power it
    grows with."""
    rows = []
    for name, rule in (("delta_rule", delta_rule), ("mesa", mesa)):
        memory = {
            n: temporary_mebibytes(_program(rule, _draw(n, sizes.dim)))
            for n in sizes.lengths
        }
        record.figures |= {
            f"{name}_{n}_mebibytes": value for n, value in memory.items()
        }
        record.figures[f"{name}_mebibytes_power"] = power = power_of(memory)
        rows.append(
            [name, *(f"{value:.1f}" for value in memory.values()), f"n^{power:.2f}"]
        )
    print(table(["temporary MiB", *map(str, sizes.lengths), "grows as"], rows))
