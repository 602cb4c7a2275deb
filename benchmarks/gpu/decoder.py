"""Steps of a decoder that fills a GPU, plain and constrained: tokens per second, and
the share of the peak."""

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

BAR = 0.45  # of the peak; below it a trace names what takes the time
ROOM = 0.94  # of the memory that the process may take
# Operations per second in bfloat16 that makers state, of dense products; by a word in
# the name of the GPU.
STATED = {"H100": 989.4e12, "H200": 989.4e12}
PLAIN, CONSTRAINED = "plain", "constrained"
# Trials of kernels take most of the time that a program takes to compile: where only
# its memory is asked for, none.
UNTUNED = {"xla_gpu_autotune_level": 0}


class DecoderSizes(NamedTuple):
    """The model; one of so many positions is read at each layer; batches, largest
    first; side of a product; runs."""

    model: Sizes
    share: int
    batches: tuple[int, ...]
    product: int
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
    """The peak, the largest batch planned for the constrained step, both steps, the
    slow operations of the plain one.

    A token takes 6 operations per parameter, and 6 d n in each layer for causal
    attention, backward included; operations repeated by remat count once.
    """
    record = Record()
    peak = matmul_rate(*(sizes.product,) * 3, dtype=sizes.model.dtype, repeats=10)
    record.figures["peak_flops_a_second"] = peak
    yield record
    step, batch = _largest(sizes)
    record.figures |= {
        "batch": batch,
        "planned_gibibytes": planned_bytes(step.program) / 2**30,
    }
    record.figures["parameters"] = parameters = sum(
        leaf.size for leaf in jax.tree.leaves(step.state.params)
    )
    yield record
    flops = (
        6.0 * parameters
        + 6.0 * sizes.model.num_layers * sizes.model.dim * sizes.model.tokens
    )
    tokens = batch * sizes.model.tokens
    _time(record, CONSTRAINED, step, sizes.repeats, tokens)
    yield record
    del step  # its state makes room for the next
    run = _time(record, PLAIN, _step(sizes, batch, PLAIN), sizes.repeats, tokens)
    record.ratio("constrained_over_plain", "constrained_seconds", "plain_seconds")
    rate = flops * record.figures["plain_tokens_a_second"]
    record.figures["plain_share_of_peak"] = share = rate / peak
    stated = next(
        (
            value
            for kind, value in STATED.items()
            if kind in jax.devices()[0].device_kind
        ),
        math.nan,
    )
    record.figures["plain_share_of_stated_peak"] = rate / stated
    yield record
    if (share if math.isnan(stated) else rate / stated) < BAR:
        record.notes += [
            f"not a product: {seconds:.4f} s of a step in {name}"
            for name, seconds in largest_others(run)
        ]
        yield record


def programs(sizes: DecoderSizes) -> dict[str, Program]:
    """Both steps with one sequence; and the plain one with XLA's attention, which a
    CPU compiles."""
    without = sizes._replace(model=sizes.model._replace(attention=None))
    init, _ = training_step(_problem(without, 1, PLAIN), constrained=False)
    state, made = jax.eval_shape(init, jax.random.key(0)), {}
    names = {f"{kind} step, batch 1": (sizes, kind) for kind in (PLAIN, CONSTRAINED)}
    names[f"{PLAIN} step, batch 1, attention by XLA"] = (without, PLAIN)
    for name, (chosen, kind) in names.items():
        problem = _problem(chosen, 1, kind)
        _, step = training_step(problem, constrained=kind == CONSTRAINED)
        made[name] = Program(
            step,
            (state, problem.batch),
            "xla" if chosen is without else sizes.model.attention,
        )
    return made


def _problem(sizes: DecoderSizes, batch: int, kind: str) -> Any:
    return decoder(
        sizes.model._replace(batch=batch), share=1 if kind == PLAIN else sizes.share
    )


def _step(sizes: DecoderSizes, batch: int, kind: str) -> CompiledStep:
    return compiled_step(_problem(sizes, batch, kind), constrained=kind == CONSTRAINED)


def _largest(sizes: DecoderSizes) -> tuple[CompiledStep, int]:
    """The constrained step with the largest batch that fits: memory grows by the same
    amount for each sequence.

    Where the device does not say how much memory it has, that is the largest batch.
    """
    limit = ROOM * (jax.devices()[0].memory_stats() or {}).get("bytes_limit", math.inf)
    one, two = (
        (0, 0) if limit == math.inf else (_planned(sizes, batch) for batch in (1, 2))
    )
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
    lowered = jax.jit(step, donate_argnums=0).lower(
        jax.eval_shape(init, jax.random.key(0)), problem.batch
    )
    return planned_bytes(
        lowered.compile(UNTUNED if jax.default_backend() == "gpu" else None)
    )


def _time(
    record: Record, kind: str, step: CompiledStep, repeats: int, tokens: int
) -> Any:
    """Adds seconds and tokens per second of a step, and returns the call that takes
    it."""
    run = repeated(step)
    median = record.time(
        f"{kind}_seconds", interleaved({kind: run}, repeats=repeats, warmup=1)[kind]
    )
    record.figures[f"{kind}_tokens_a_second"] = tokens / median
    return run
