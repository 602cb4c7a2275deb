"""What do descent constraints cost a training step? Constrained over plain, same model, same batch; and Cooper's."""

import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks import torch_peer
from benchmarks.constrained_step.cooper_peer import constrained_loop, cooper_or_none, plain_loop
from benchmarks.constrained_step.problems import (
    DECODER,
    ENCODER,
    SHARE,
    UNROLLED,
    decoder,
    encoder,
    unrolled_transformer,
)
from benchmarks.constrained_step.steps import CompiledStep, Problem, compiled_step, repeated
from benchmarks.timing import interleaved, matmul_rate, table, temporary_mebibytes

__all__ = ["main"]

REPEATS = {"unrolled": 40, "encoder": 16, "decoder": 6}
TIME_BARS = {"unrolled": 1.10, "encoder": 1.10, "decoder": 1.25}
MEMORY_BAR = 1.10
RATE_OF = (1280, 512, 512)


def main() -> dict[str, Any]:
    """Prints, for each model, medians of interleaved steps, their ratio, temporary memory, the floor and the bars."""
    cores, rate = len(os.sched_getaffinity(0)), matmul_rate(*RATE_OF)
    sizes = " x ".join(map(str, RATE_OF))
    print(f"one training step with Adam, float32, {jax.default_backend()}, {cores} cores, state donated;")
    print(f"plain risk reads the last layer alone; a product {sizes} runs at {rate / 1e9:.0f} GFLOP/s")
    problems: dict[str, Callable[[], list[Problem]]] = {
        "unrolled": lambda: [unrolled_transformer(UNROLLED)],
        "encoder": lambda: [encoder(ENCODER)],
        "decoder": lambda: [decoder(DECODER), decoder(DECODER, share=SHARE)],
    }
    figures: dict[str, Any] = {"matmul_rate": rate}
    for name, build in problems.items():
        figures |= {f"{name}_{key}": value for key, value in _measured(name, build(), rate).items()}
    return figures


def _measured(name: str, problems: list[Problem], rate: float) -> dict[str, float]:
    """Plain risk on the first problem against constraints on each."""
    steps = {"erm": compiled_step(problems[0], constrained=False)}
    steps |= {problem.name: compiled_step(problem, constrained=True) for problem in problems}
    floors = {"erm": problems[0].flops[0]} | {problem.name: sum(problem.flops) for problem in problems}
    memory = {label: temporary_mebibytes(step.program) for label, step in steps.items()}
    peers = _peers(steps["erm"]) if name == "unrolled" else {}
    candidates: dict[str, Callable[[], object]] = {label: repeated(step) for label, step in steps.items()}
    seconds = interleaved(candidates | peers, repeats=REPEATS[name])
    median = {label: float(np.median(values)) for label, values in seconds.items()}
    rows = [
        [label, f"{1e3 * median[label]:.1f}", f"{1e3 * np.min(seconds[label]):.1f}",
         f"{memory[label]:.1f}" if label in memory else "-",
         f"{1e3 * floors[label] / rate:.1f}" if label in floors else "-"]
        for label in median
    ]  # fmt: skip
    print(f"\n{problems[0].name}, {REPEATS[name]} runs")
    print(table(["step", "median ms", "least ms", "temp MiB", "floor ms"], rows))
    figures = {f"{label}_seconds": value for label, value in median.items()}
    for problem in problems:
        figures |= _judged(name, problem, median, memory, floors)
    return figures | _against_cooper(problems[0].name, median)


def _judged(
    name: str, problem: Problem, median: dict[str, float], memory: dict[str, float], floors: dict[str, float]
) -> dict[str, float]:
    """Prints the ratios to plain risk beside their bars and beside what the extra readouts cannot go below."""
    time, space, floor = (values[problem.name] / values["erm"] for values in (median, memory, floors))
    words = [_verdict("time", time, TIME_BARS[name]), _verdict("temporary memory", space, MEMORY_BAR)]
    print(f"constrained / erm, {problem.name}: {'; '.join(words)}")
    print(f"  floor of the ratio of time, matrix products alone: {floor:.3f}, {problem.flops[1] / 1e9:.2f} GFLOP more")
    if floor > TIME_BARS[name]:
        print("  no program that reads every position at every layer can meet the bar: the floor is above it")
    label = problem.name
    return {f"{label}_time_ratio": time, f"{label}_memory_ratio": space, f"{label}_floor_ratio": floor}


def _verdict(what: str, ratio: float, bar: float) -> str:
    return f"{what} {ratio:.3f} (bar {bar:.2f}, {'met' if ratio <= bar else 'not met'})"


def _peers(step: CompiledStep) -> dict[str, Callable[[], object]]:
    """The same model and batch in PyTorch: plain risk, and constraints by Cooper."""
    torch = torch_peer.torch_or_none()
    if cooper_or_none() is None:
        print('\nwithout Cooper, PyTorch or both: pip install "unroll_jax[peers]" to compare with them')
        return {}
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    params, batch = jax.device_get(step.state.params), step.batch
    return {
        "torch erm, compiled": plain_loop(params, batch, compile_model=True),
        "torch Cooper, eager": constrained_loop(params, batch, compile_model=False)[0],
        "torch Cooper, compiled": constrained_loop(params, batch, compile_model=True)[0],
    }


def _against_cooper(ours: str, median: dict[str, float]) -> dict[str, float]:
    """Prints and returns our constrained step's time over Cooper's."""
    found = {label: median[ours] / seconds for label, seconds in median.items() if label.startswith("torch Cooper")}
    for label, ratio in found.items():
        print(f"constrained, ours / {label}: {ratio:.3f} ({'faster' if ratio < 1.0 else 'not faster'})")
    if found:
        within = median["torch Cooper, compiled"] / median["torch erm, compiled"]
        print(f"torch's own constrained / erm, compiled: {within:.3f}")
        found["torch_time_ratio"] = within
    return {f"over {label}" if label.startswith("torch C") else label: ratio for label, ratio in found.items()}
