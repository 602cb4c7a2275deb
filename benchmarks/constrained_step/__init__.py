"""Cost of descent constraints in a training step: constrained over plain, same
model, same batch; and Cooper's."""

import os
from collections.abc import Callable
from typing import NamedTuple

import jax

from benchmarks import torch_peer
from benchmarks.constrained_step.cooper_peer import (
    constrained_loop,
    cooper_or_none,
    plain_loop,
)
from benchmarks.constrained_step.problems import (
    DECODER,
    ENCODER,
    SHARE,
    UNROLLED,
    Sizes,
    UnrolledSizes,
    decoder,
    encoder,
    unrolled_transformer,
)
from benchmarks.constrained_step.steps import (
    CompiledStep,
    Problem,
    compiled_step,
    repeated,
)
from benchmarks.record import Record
from benchmarks.timing import (
    SAME_ALLOCATOR,
    floor_note,
    interleaved,
    matmul_rate,
    temporary_mebibytes,
)

__all__ = ["Setting", "main"]


class Setting(NamedTuple):
    """The sizes of the three models, and how many runs each has."""

    unrolled: UnrolledSizes = UNROLLED
    encoder: Sizes = ENCODER
    decoder: Sizes = DECODER
    share: int = SHARE
    repeats: tuple[int, int, int] = (40, 16, 6)


FULL = Setting()
QUICK = Setting(
    encoder=ENCODER._replace(num_layers=4),
    decoder=Sizes(4, 256, 4, 704, 4_000, tokens=128, batch=4, chunk=16),
    repeats=(10, 5, 3),
)
TIME_BARS = {"unrolled": 1.10, "encoder": 1.10, "decoder": 1.25}
MEMORY_BAR = 1.10
RATE_OF = (1280, 512, 512)


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints, for each model, medians of interleaved steps, their ratio, temporary
    memory, the floor and the bars."""
    setting = QUICK if quick else FULL
    cores, rate = len(os.sched_getaffinity(0)), matmul_rate(*RATE_OF)
    print(
        f"one training step with Adam, float32, {jax.default_backend()}, {cores} cores,"
        f" state donated; plain risk reads only the last layer\n"
        f"{floor_note(rate, *RATE_OF)}"
    )
    problems: dict[str, Callable[[], list[Problem]]] = {
        "unrolled": lambda: [unrolled_transformer(setting.unrolled)],
        "encoder": lambda: [encoder(setting.encoder)],
        "decoder": lambda: [
            decoder(setting.decoder),
            decoder(setting.decoder, share=setting.share),
        ],
    }
    record = Record(figures={"matmul_rate": rate})
    for (name, build), repeats in zip(problems.items(), setting.repeats, strict=True):
        _measure(
            record, name, build(), rate, repeats, peers=peers and name == "unrolled"
        )
    return record


def _measure(
    record: Record,
    name: str,
    problems: list[Problem],
    rate: float,
    repeats: int,
    *,
    peers: bool,
) -> None:
    """Plain risk on the first problem against constraints on each."""
    first = problems[0]
    steps = {"erm": compiled_step(first, constrained=False)}
    flops = {"erm": first.flops[0]}
    for problem in problems:
        steps[problem.name] = compiled_step(problem, constrained=True)
        flops[problem.name] = sum(problem.flops)
    candidates: dict[str, Callable[[], object]] = {
        label: repeated(step) for label, step in steps.items()
    }
    if peers:
        candidates |= _peers(steps["erm"])
    seconds = interleaved(candidates, repeats=repeats)
    print(f"\n{first.name}, {repeats} runs")
    record.times(seconds, flops=flops, rate=rate, prefix=f"{name}_")
    for label, step in steps.items():
        memory = temporary_mebibytes(step.program)
        record.figures[f"{name}_{label}_mebibytes"] = memory
        print(f"temporary memory of {label}: {memory:.1f} MiB")
    for problem in problems:
        _judge(record, name, problem, flops[problem.name] / flops["erm"])
    for peer in list(seconds)[len(steps) :]:
        names = (f"{name}_{label}_seconds" for label in (first.name, peer))
        ratio = record.ratio(f"{name}_over {peer}", *names)
        print(f"constrained, ours / {peer}: {ratio:.3f}")


def _judge(record: Record, name: str, problem: Problem, floor: float) -> None:
    """Prints the ratios to plain risk next to their bars and to the floor set by the
    extra readouts."""
    label = f"{name}_{problem.name}"
    record.figures[f"{label}_floor_ratio"] = floor
    words = []
    for what, unit, bar in (
        ("time", "seconds", TIME_BARS[name]),
        ("memory", "mebibytes", MEMORY_BAR),
    ):
        names = f"{label}_{unit}", f"{name}_erm_{unit}"
        ratio = record.ratio(f"{label}_{what}_ratio", *names)
        words.append(f"{what} {ratio:.3f} (bar {bar:.2f})")
    print(f"constrained / erm, {problem.name}: {'; '.join(words)}")
    print(
        f"  floor of the ratio of time, matrix products alone: {floor:.3f},"
        f" {problem.flops[1] / 1e9:.2f} GFLOP more"
    )


def _peers(step: CompiledStep) -> dict[str, Callable[[], object]]:
    """The same model and batch in PyTorch: plain risk, and constraints by Cooper."""
    torch = torch_peer.torch_or_none()
    if cooper_or_none() is None:
        print(
            '\nwithout Cooper, PyTorch or both: pip install "unroll_jax[peers]" to'
            " compare with them"
        )
        return {}
    print(f"\n{SAME_ALLOCATOR}")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = jax.device_get(step.state.params), step.batch
    return {
        "torch erm, compiled": plain_loop(*model, compile_model=True),
        "torch Cooper, eager": constrained_loop(*model, compile_model=False)[0],
        "torch Cooper, compiled": constrained_loop(*model, compile_model=True)[0],
    }
