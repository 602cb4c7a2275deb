"""Steps of a decoder that fills a GPU, plain and constrained.

Tokens per second, and the share of the peak.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from benchmarks.constrained_step.problems import Sizes, decoder
from benchmarks.constrained_step.steps import (
    CompiledStep,
    compiled_step,
    planned_bytes,
    repeated,
    training_step,
)
from benchmarks.gpu.ahead import Program
from benchmarks.gpu.traced import largest_others
from benchmarks.record import Record
from benchmarks.timing import interleaved, matmul_rate

__all__ = ["FULL", "QUICK", "DecoderSizes", "measure", "programs"]

BAR = 0.45  # of the peak. Below it the slowest operations are reported.
ROOM = 0.94  # of the memory that the process may take
# Operations per second of dense products in bfloat16, as published, by a word in the
# name of the GPU.
STATED = {"H100": 989.4e12, "H200": 989.4e12}
PLAIN = "plain"
CONSTRAINED = "constrained"
# Trials of kernels take most of the compile time. The memory of a program needs none.
UNTUNED = {"xla_gpu_autotune_level": 0}


class DecoderSizes(NamedTuple):
    """Sizes of the steps."""

    model: Sizes
    share: int  # one of so many positions is read at each layer
    batches: tuple[int, ...]  # largest first
    product: int  # side of the product that measures the peak
    repeats: int


# Shapes of Llama at 1.2e9 parameters: 32 heads over 4.
LLAMA = Sizes(
    24,
    2048,
    32,
    5632,
    32_000,
    2048,
    1,
    32,
    kv_heads=4,
    dtype="bfloat16",
    remat=True,
    attention="cudnn",
)
FULL = DecoderSizes(LLAMA, 32, (64, 48, 32, 24, 16, 12, 8, 6, 4, 2, 1), 8192, 3)
QUICK = FULL._replace(
    model=LLAMA._replace(num_layers=4), batches=(8, 4, 2, 1), product=4096
)


def measure(sizes: DecoderSizes) -> Iterator[Record]:
    """Measures the peak, the largest batch of the constrained step, and both steps.

    If the plain step is slow, its slowest operations follow. A token takes 6 operations
    per parameter, and 6 d n in each layer for causal attention, backward included.
    Operations repeated by remat count once.
    """
    model = sizes.model
    record = Record()
    peak = matmul_rate(*(sizes.product,) * 3, dtype=model.dtype, repeats=10)
    record.figures["peak_flops_a_second"] = peak
    yield record
    step, batch = _largest(sizes)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(step.state.params))
    record.figures |= {
        "batch": batch,
        "planned_gibibytes": planned_bytes(step.program) / 2**30,
        "parameters": parameters,
    }
    yield record
    flops = 6.0 * (parameters + model.num_layers * model.dim * model.tokens)
    tokens = batch * model.tokens
    _time(record, CONSTRAINED, step, sizes.repeats, tokens)
    yield record
    del step  # its state makes room for the next
    run = _time(record, PLAIN, _step(sizes, batch, PLAIN), sizes.repeats, tokens)
    record.ratio("constrained_over_plain", "constrained_seconds", "plain_seconds")
    rate = flops * record.figures["plain_tokens_a_second"]
    device = jax.devices()[0].device_kind
    known = [value for kind, value in STATED.items() if kind in device]
    stated = known[0] if known else math.nan
    record.figures["plain_share_of_peak"] = rate / peak
    record.figures["plain_share_of_stated_peak"] = rate / stated
    yield record
    if rate / (stated if known else peak) < BAR:
        record.notes += [
            f"not a product: {seconds:.4f} s of a step in {name}"
            for name, seconds in largest_others(run)
        ]
        yield record


def programs(sizes: DecoderSizes) -> dict[str, Program]:
    """Both steps with one sequence, and the plain one with XLA's attention.

    A CPU compiles only the last one.
    """
    by_xla = sizes._replace(model=sizes.model._replace(attention=None))

    def program(sizes: DecoderSizes, kind: str) -> Program:
        constrained = kind == CONSTRAINED
        problem = _problem(sizes, 1, kind)
        _, step = training_step(problem, constrained=constrained)
        # the same state, but without a call of cuDNN, which looks for a device
        init, _ = training_step(_problem(by_xla, 1, kind), constrained=constrained)
        state = jax.eval_shape(init, jax.random.key(0))
        kernel = sizes.model.attention or "xla"
        return Program(step, (state, problem.batch), kernel)

    return {
        f"{PLAIN} step, batch 1": program(sizes, PLAIN),
        f"{CONSTRAINED} step, batch 1": program(sizes, CONSTRAINED),
        f"{PLAIN} step, batch 1, attention by XLA": program(by_xla, PLAIN),
    }


def _problem(sizes: DecoderSizes, batch: int, kind: str) -> Any:
    share = 1 if kind == PLAIN else sizes.share
    return decoder(sizes.model._replace(batch=batch), share=share)


def _step(sizes: DecoderSizes, batch: int, kind: str) -> CompiledStep:
    return compiled_step(_problem(sizes, batch, kind), constrained=kind == CONSTRAINED)


def _largest(sizes: DecoderSizes) -> tuple[CompiledStep, int]:
    """The constrained step with the largest batch that fits, and that batch.

    Memory grows by the same amount for each sequence. A device that does not report its
    memory gets the largest batch.
    """
    limit = ROOM * (jax.devices()[0].memory_stats() or {}).get("bytes_limit", math.inf)
    one = two = 0
    if limit < math.inf:
        one = _planned(sizes, 1)
        two = _planned(sizes, 2)
    for batch in sizes.batches:
        if one + (batch - 1) * (two - one) <= limit:
            step = _step(sizes, batch, CONSTRAINED)
            if planned_bytes(step.program) <= limit:
                return step, batch
    raise RuntimeError(
        f"no batch of {sizes.batches} fits: one sequence takes {one / 2**30:.1f} GiB"
    )


def _planned(sizes: DecoderSizes, batch: int) -> int:
    problem = _problem(sizes, batch, CONSTRAINED)
    init, step = training_step(problem, constrained=True)
    state = jax.eval_shape(init, jax.random.key(0))
    lowered = jax.jit(step, donate_argnums=0).lower(state, problem.batch)
    options = UNTUNED if jax.default_backend() == "gpu" else None
    return planned_bytes(lowered.compile(options))


def _time(
    record: Record, kind: str, step: CompiledStep, repeats: int, tokens: int
) -> Any:
    """Adds seconds and tokens per second of a step, and returns its call."""
    run = repeated(step)
    seconds = interleaved({kind: run}, repeats=repeats, warmup=1)[kind]
    median = record.time(f"{kind}_seconds", seconds)
    record.figures[f"{kind}_tokens_a_second"] = tokens / median
    return run
