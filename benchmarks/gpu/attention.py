"""cuDNN's fused attention against our own: the same numbers, and which is quicker."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import unroll_jax
from benchmarks.record import Record
from benchmarks.timing import interleaved
from unroll_jax.energies import AttentionParams

__all__ = ["FULL", "QUICK", "Sizes", "measure"]


class Sizes(NamedTuple):
    """Sizes of the tokens, and the number of runs."""

    batch: int
    tokens: int
    dim: int
    repeats: int


FULL, QUICK = Sizes(8, 4096, 64, 20), Sizes(4, 1024, 64, 10)


def measure(sizes: Sizes) -> Record:
    """Errors and seconds of a softmax step and its gradient in bfloat16, ``fused=True`` and not.

    Errors are relative to the same in float64 on the CPU, from the tokens as bfloat16 has them. ``calls_cudnn`` is 1
    where the compiled program does.
    """
    y = np.random.default_rng(0).normal(size=(sizes.batch, sizes.tokens, sizes.dim)) / sizes.dim**0.5
    tokens = jnp.asarray(y, jnp.bfloat16)
    ways = {name: _program(fused, tokens) for name, fused in (("fused", True), ("own", False))}
    truth, record = _truth(tokens), Record()
    record.figures["calls_cudnn"] = float("cudnn" in (ways["fused"].as_text() or ""))
    for name, program in ways.items():
        for what, value, exact in zip(("step", "gradient"), program(tokens), truth, strict=True):
            difference = np.asarray(value.astype(jnp.float32), np.float64) - exact
            record.figures[f"{name}_{what}_error"] = float(np.linalg.norm(difference) / np.linalg.norm(exact))
    calls = {name: lambda program=program: jax.block_until_ready(program(tokens)) for name, program in ways.items()}
    for name, seconds in interleaved(calls, repeats=sizes.repeats).items():
        record.time(f"{name}_seconds", seconds)
    record.ratio("fused_over_own", "fused_seconds", "own_seconds")
    return record


def _step_and_gradient(fused: bool) -> Any:
    layer = unroll_jax.attention(form="softmax", fused=fused)

    def run(y: jax.Array) -> tuple[jax.Array, jax.Array]:
        step = lambda y: layer.step(AttentionParams(None), y, None)  # noqa: E731
        after, pull = jax.vjp(step, y)
        return after, pull(after)[0]

    return run


def _program(fused: bool, tokens: jax.Array) -> jax.stages.Compiled:
    return jax.jit(_step_and_gradient(fused)).lower(tokens).compile()


def _truth(tokens: jax.Array) -> tuple[np.ndarray, ...]:
    """Computes one example at a time, as float64 takes twice the memory."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        run, exact = jax.jit(_step_and_gradient(fused=False)), np.asarray(tokens.astype(jnp.float32), np.float64)
        rows = [jax.device_get(run(jnp.asarray(example))) for example in exact]
    return tuple(np.stack(parts) for parts in zip(*rows, strict=True))
