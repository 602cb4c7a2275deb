"""Cost of fast weights over a long sequence, against a delta rule in PyTorch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import torch_peer
from benchmarks.record import Record
from benchmarks.timing import (
    floor_note,
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
    """Sizes of the sequences, and the number of runs."""

    dim: int = 64  # of keys and values
    lengths: tuple[int, ...] = (1024, 2048, 4096)  # the last one is timed
    repeats: int = 30


FULL, QUICK = Sizes(), Sizes(lengths=(256, 512, 1024), repeats=5)


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints times at the longest sequence, and memory by length."""
    sizes = QUICK if quick else FULL
    length = sizes.lengths[-1]
    print(
        f"value and gradient, one sequence of {length}, d = {sizes.dim}, float32,"
        f" {jax.default_backend()}"
    )
    arrays = _draw(length, sizes.dim)
    program = _program(delta_rule, arrays)
    candidates: dict[str, Callable[[], object]] = {
        "delta_rule": lambda: jax.block_until_ready(program(*arrays))
    }
    if torch_peer.torch_if_wanted(peers) is not None:
        candidates |= _peers(arrays)

    record = Record()
    product = (1024, 1024, 1024)
    rate = matmul_rate(*product)
    # six products and half a one in a chunk of 64, and twice as many in the gradient
    flops = 39.0 * length * 64 * sizes.dim
    seconds = interleaved(candidates, repeats=sizes.repeats, warmup=3)
    record.times(seconds, flops=dict.fromkeys(seconds, flops), rate=rate)
    for peer in list(candidates)[1:]:
        names = "delta_rule_seconds", f"{peer}_seconds"
        value = record.ratio(f"delta_rule_over_{peer}", *names)
        bar = f" (bar {BAR:.2f})" if "compiled" in peer else ""
        print(f"delta_rule / {peer}: {value:.2f}{bar}")
    _memory(record, sizes)
    print(floor_note(rate, *product))
    return record


def torch_delta_rule(
    queries: Any, keys: Any, values: Any, rates: Any, *, chunk_size: int
) -> Any:
    """The outputs (n, v) of `unroll_jax.delta_rule`, in PyTorch.

    For one sequence, whose length is a multiple of the chunk's.
    """
    torch = torch_peer.torch_or_none()
    S = torch.zeros(keys.shape[-1], values.shape[-1])
    outputs = []
    arrays = (queries, keys, values, rates[:, None])
    for q, k, v, b in zip(*(torch.split(a, chunk_size) for a in arrays), strict=True):
        product = torch.tril(b * (k @ k.T), -1)
        errors = torch.linalg.solve_triangular(
            product, b * (v - k @ S), upper=False, unitriangular=True
        )
        outputs.append(q @ S + torch.tril(q @ k.T) @ errors)
        S = S + k.T @ errors
    return torch.cat(outputs)


def _draw(length: int, dim: int) -> tuple[np.ndarray, ...]:
    """Queries, keys of length 1, values, rates in [0, 1], weights of the outputs."""
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(4, length, dim)).astype(np.float32)
    queries, keys, values, weights = drawn
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    rates = rng.uniform(size=length).astype(np.float32)
    return queries, keys, values, rates, weights


def _program(rule: Rule, arrays: tuple[np.ndarray, ...]) -> jax.stages.Compiled:
    """A weighted sum of the outputs, and its gradient in all but the weights."""

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
    """Prints temporary memory by length, and the power of the length it grows with."""
    rows = []
    for name, rule in (("delta_rule", delta_rule), ("mesa", mesa)):
        memory = {}
        for n in sizes.lengths:
            memory[n] = temporary_mebibytes(_program(rule, _draw(n, sizes.dim)))
            record.figures[f"{name}_{n}_mebibytes"] = memory[n]
        power = power_of(memory)
        record.figures[f"{name}_mebibytes_power"] = power
        rows.append([name, *memory.values(), power])
    print(table(["temporary MiB", *map(str, sizes.lengths), "power of n"], rows))
