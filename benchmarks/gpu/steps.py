"""Training steps as a share of the device's peak, and their memory against the plan."""

from typing import NamedTuple

import jax

from benchmarks.constrained_step.problems import (
    ENCODER,
    UNROLLED,
    Sizes,
    UnrolledSizes,
    encoder,
    unrolled_transformer,
)
from benchmarks.constrained_step.steps import compiled_step, planned_bytes, repeated
from benchmarks.record import Record
from benchmarks.timing import interleaved, matmul_rate

__all__ = ["FULL", "QUICK", "StepSizes", "measure", "measure_memory"]

PEAKS = {
    "bfloat16": ("bfloat16", None),
    "tf32": ("float32", None),
    "float32": ("float32", "highest"),
}


class StepSizes(NamedTuple):
    """Sizes of the two models, and the number of runs."""

    unrolled: UnrolledSizes
    encoder: Sizes
    product: int  # side of the product that measures the peak
    repeats: int


FULL = StepSizes(UNROLLED._replace(batch=512), ENCODER._replace(batch=64), 8192, 20)
QUICK = StepSizes(UNROLLED, ENCODER._replace(num_layers=4, batch=16), 4096, 10)


def measure(sizes: StepSizes) -> Record:
    """Seconds of plain and constrained float32 steps, and their share of each peak."""
    record = Record()
    repeats = sizes.repeats
    rates = {}
    for name, (dtype, precision) in PEAKS.items():
        options = {"dtype": dtype, "precision": precision, "repeats": repeats}
        rates[name] = matmul_rate(*(sizes.product,) * 3, **options)
        record.figures[f"peak_{name}_flops_a_second"] = rates[name]
    problems = {
        "unrolled": unrolled_transformer(sizes.unrolled),
        "encoder": encoder(sizes.encoder),
    }
    for model, problem in problems.items():
        calls = {
            "plain": repeated(compiled_step(problem, constrained=False)),
            "constrained": repeated(compiled_step(problem, constrained=True)),
        }
        flops = {"plain": problem.flops[0], "constrained": sum(problem.flops)}
        for kind, seconds in interleaved(calls, repeats=repeats).items():
            name = f"{model}_{kind}"
            work = {"flops": flops[kind], "rate": rates["tf32"]}
            median = record.time(f"{name}_seconds", seconds, **work)
            for peak, rate in rates.items():
                record.figures[f"{name}_share_of_{peak}"] = flops[kind] / median / rate
        names = (f"{model}_{kind}_seconds" for kind in ("constrained", "plain"))
        record.ratio(f"{model}_constrained_over_plain", *names)
    record.notes.append(
        "steps: float32 at JAX's default precision, as the peak tf32; shares count only"
        " matrix products"
    )
    return record


def measure_memory(sizes: StepSizes) -> Record:
    """Peak bytes of a constrained step, counted by the device, and the compiler's plan.

    Needs a new process: the device counts the peak of the process.
    """
    step = compiled_step(encoder(sizes.encoder), constrained=True)
    record = Record(figures={"planned_bytes": planned_bytes(step.program)})
    run = repeated(step)
    for _ in range(3):
        run()
    measured = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    if measured is None:
        record.notes.append("this device does not count its memory")
        return record
    record.figures["measured_bytes"] = measured
    record.ratio("measured_over_planned", "measured_bytes", "planned_bytes")
    record.notes.append(
        "measured_bytes is the peak of the process, with trials of kernels while"
        " compiling"
    )
    return record
