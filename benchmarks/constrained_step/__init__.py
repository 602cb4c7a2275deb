"""Cost of descent constraints in a training step: constrained over plain, same
model, same batch; and Cooper's."""

import os
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

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
    interleaved,
    matmul_rate,
    table,
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
    sizes = " x ".join(map(str, RATE_OF))
    print(
        f"one training step with Adam, float32, {jax.default_backend()}, {cores} cores,"
        " state donated;"
    )
    print(
        f"plain risk reads the last layer alone; a product {sizes} runs at"
        f" {rate / 1e9:.0f} GFLOP/s"
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
    record.draw = record.draw_times
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
    steps = {"erm": compiled_step(problems[0], constrained=False)}
    steps |= {
        problem.name: compiled_step(problem, constrained=True) for problem in problems
    }
    flops = {"erm": problems[0].flops[0]} | {
        problem.name: sum(problem.flops) for problem in problems
    }
    candidates: dict[str, Callable[[], object]] = {
        label: repeated(step) for label, step in steps.items()
    }
    seconds = interleaved(
        candidates | (_peers(steps["erm"]) if peers else {}), repeats=repeats
    )
    for label, runs in seconds.items():
        record.time(
            f"{_key(name, label)}_seconds", runs, flops=flops.get(label), rate=rate
        )
    for label, step in steps.items():
        record.figures[f"{_key(name, label)}_mebibytes"] = temporary_mebibytes(
            step.program
        )
    print(f"\n{problems[0].name}, {repeats} runs")
    print(
        table(
            ["step", "median ms", "least ms", "temp MiB", "floor ms"],
            _rows(record, name, seconds),
        )
    )
    for problem in problems:
        _judge(record, name, problem, flops[problem.name] / flops["erm"])
    _against_cooper(record, name, problems[0].name)


def _key(name: str, label: str) -> str:
    """A step's figures: constrained ones have the model in their label already."""
    return label if label.startswith(name) else f"{name}_{label}"


def _rows(record: Record, name: str, seconds: dict[str, np.ndarray]) -> list[list[str]]:
    rows = []
    for label, runs in seconds.items():
        timed = f"{_key(name, label)}_seconds"
        memory = record.figures.get(f"{_key(name, label)}_mebibytes")
        floor = record.floors.get(timed)
        row = [label, f"{1e3 * record.figures[timed]:.1f}", f"{1e3 * np.min(runs):.1f}"]
        row += ["-" if memory is None else f"{memory:.1f}"]
        rows.append([*row, "-" if floor is None else f"{1e3 * floor['seconds']:.1f}"])
    return rows


def _judge(record: Record, name: str, problem: Problem, floor: float) -> None:
    """Prints the ratios to plain risk next to their bars and to the floor set by the
    extra readouts."""
    label = _key(name, problem.name)
    time = record.ratio(
        f"{label}_time_ratio", f"{label}_seconds", f"{name}_erm_seconds"
    )
    space = record.ratio(
        f"{label}_memory_ratio", f"{label}_mebibytes", f"{name}_erm_mebibytes"
    )
    record.figures[f"{label}_floor_ratio"] = floor
    words = [
        _verdict("time", time, TIME_BARS[name]),
        _verdict("temporary memory", space, MEMORY_BAR),
    ]
    print(f"constrained / erm, {problem.name}: {'; '.join(words)}")
    print(
        f"  floor of the ratio of time, matrix products alone: {floor:.3f},"
        f" {problem.flops[1] / 1e9:.2f} GFLOP more"
    )
    if floor > TIME_BARS[name]:
        print(
            "  no program that reads every position at every layer can meet the bar:"
            " the floor is above it"
        )


def _verdict(what: str, ratio: float, bar: float) -> str:
    return f"{what} {ratio:.3f} (bar {bar:.2f}, {'met' if ratio <= bar else 'not met'})"


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
    params, batch = jax.device_get(step.state.params), step.batch
    return {
        "torch erm, compiled": plain_loop(params, batch, compile_model=True),
        "torch Cooper, eager": constrained_loop(params, batch, compile_model=False)[0],
        "torch Cooper, compiled": constrained_loop(params, batch, compile_model=True)[
            0
        ],
    }


def _against_cooper(record: Record, name: str, ours: str) -> None:
    """Adds and prints our constrained step's time over Cooper's, where that was run."""
    start, end = f"{name}_torch Cooper, ", "_seconds"
    for timed in [
        figure
        for figure in record.figures
        if figure.startswith(start) and figure.endswith(end)
    ]:
        label = timed.removeprefix(f"{name}_").removesuffix(end)
        ratio = record.ratio(
            f"{name}_over {label}", f"{_key(name, ours)}_seconds", timed
        )
        print(
            f"constrained, ours / {label}: {ratio:.3f}"
            f" ({'faster' if ratio < 1.0 else 'not faster'})"
        )
    if (plain := f"{name}_torch erm, compiled_seconds") in record.figures:
        within = record.ratio(
            f"{name}_torch_time_ratio", f"{start}compiled{end}", plain
        )
        print(f"torch's own constrained / erm, compiled: {within:.3f}")
