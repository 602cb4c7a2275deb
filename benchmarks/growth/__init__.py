"""Growth of time and memory of the unrolled transformer and of attention.

One size varies at a time: layers, tokens or batch.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure

from benchmarks.growth.programs import MODELS, Case, Sizes
from benchmarks.record import Record
from benchmarks.timing import (
    counted_compilations,
    floor_note,
    interleaved,
    matmul_rate,
    power_of,
    table,
    temporary_mebibytes,
)

__all__ = ["FULL", "QUICK", "Setting", "Sweep", "main"]


class Sweep(NamedTuple):
    """A size of a model that varies, with the other sizes fixed."""

    model: str  # of `MODELS`
    axis: str  # the field of `Sizes` that varies
    base: Sizes  # the other sizes
    values: tuple[int, ...]  # of the axis
    # the power is fitted to these and larger values, where the cost of a call is small
    fitted_from: int
    dense_up_to: int = 0  # the dense expression is also run up to this size


class Setting(NamedTuple):
    """Sweeps, and the time of each of their points."""

    sweeps: tuple[Sweep, ...]
    seconds: float  # of timed runs, at least `LEAST_RUNS` of them


def _powers(first: int, last: int, factor: int) -> tuple[int, ...]:
    count = round(np.log(last / first) / np.log(factor)) + 1
    return tuple(first * factor**i for i in range(count))


def _setting(
    tokens: tuple[int, int], dense_up_to: int, factor: int, seconds: float
) -> Setting:
    layers = _powers(1, 64, factor)
    lengths = _powers(*tokens, factor)
    batches = _powers(1, 1024, factor)
    small = Sizes(4, 32, 32, 16)
    one = Sizes(1, 32, 64, 1)
    wide = Sizes(1, 64, 64, 1)
    sweeps = (
        Sweep("transformer", "layers", small, layers, 4),
        Sweep("transformer", "tokens", one, lengths, 512),
        Sweep("transformer", "batch", small, batches, 16),
        Sweep("attention_layers", "layers", Sizes(1, 64, 256, 1), layers, 4),
        Sweep("attention_energy", "tokens", wide, lengths, 1024, dense_up_to),
        Sweep("attention_energy", "batch", wide, batches, 16),
    )
    return Setting(sweeps, seconds)


FULL = _setting((128, 16_384), dense_up_to=8_192, factor=2, seconds=0.5)
QUICK = _setting((64, 4_096), dense_up_to=4_096, factor=4, seconds=0.1)
LEAST_RUNS, MOST_RUNS = 5, 100
SLOW = 1.0  # seconds of a run from which two are enough
BAR = 1.3  # time of the blocks over that of the dense expression
BAR_MEBIBYTES = 256.0  # memory of the blocks at the most tokens


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints time, floor and memory of every point, and the powers they grow with."""
    del peers  # the only peer is the dense expression, in JAX
    setting = QUICK if quick else FULL
    product = (1024, 1024, 1024)
    rate = matmul_rate(*product)
    record = Record()
    print(f"value and gradient, float32, {jax.default_backend()}; one size varies")
    for sweep in setting.sweeps:
        _measure(record, sweep, rate, setting.seconds)
    figures = record.figures
    worst = max(figures[name] for name in figures if name.endswith("_over_dense"))
    figures["attention_energy_worst_over_dense"] = worst
    print(
        f"\nattention energy over the dense expression at most {worst:.2f}"
        f" (bar {BAR:.2f}); bar of its temporary memory: {BAR_MEBIBYTES:.0f} MiB\n"
        f"{floor_note(rate, *product)}"
    )
    record.draw = lambda figure: _draw(figure, record, setting.sweeps)
    return record


def _measure(record: Record, sweep: Sweep, rate: float, seconds: float) -> None:
    rows = []
    with counted_compilations() as compiled:
        programs = 0
        for value in sweep.values:
            sizes = sweep.base._replace(**{sweep.axis: value})
            cases = {sweep.model: MODELS[sweep.model](sizes)}
            if value <= sweep.dense_up_to:
                cases["dense_energy"] = MODELS["dense_energy"](sizes)
            programs += len(cases)
            row: list[Any] = [value]
            for model, runs in _timed(cases, seconds).items():
                name = f"{model}_{sweep.axis}_{value}"
                case = cases[model]
                time = record.time(f"{name}_seconds", runs, flops=case.flops, rate=rate)
                # the one that ran, not compiled again
                program = case.function.lower(*case.arguments).compile()
                memory = temporary_mebibytes(program)
                record.figures[f"{name}_mebibytes"] = memory
                row += [1e3 * time, 1e3 * case.flops / rate, memory]
            if len(cases) > 1:
                first = f"{sweep.model}_{sweep.axis}_{value}"
                names = f"{first}_seconds", f"{name}_seconds"
                record.ratio(f"{first}_over_dense", *names)
            rows.append(row)
    again = len(compiled) - programs
    record.figures[f"{sweep.model}_{sweep.axis}_compiled_again"] = again
    print(f"\n{sweep.model}, by {sweep.axis}; {_words(sweep)}")
    columns = ["ms", "floor ms", "temp MiB"]
    header = [sweep.axis, *columns, *(f"dense {column}" for column in columns)]
    print(table(header, rows))
    print(f"{programs} programs, {again} compiled a second time; {_fit(record, sweep)}")


def _timed(cases: dict[str, Case], seconds: float) -> dict[str, np.ndarray]:
    """Seconds of runs, as many as the time allows, after one that compiles."""
    calls = {
        model: lambda case=case: jax.block_until_ready(case.function(*case.arguments))
        for model, case in cases.items()
    }
    first = interleaved(calls, repeats=1, warmup=1)
    took = float(sum(runs[0] for runs in first.values()))
    least = LEAST_RUNS if took < SLOW else 2
    count = int(np.clip(seconds / took, least, MOST_RUNS))
    rest = interleaved(calls, repeats=count - 1, warmup=0)
    return {model: np.concatenate([first[model], rest[model]]) for model in calls}


def _words(sweep: Sweep) -> str:
    others = sweep.base._asdict()
    del others[sweep.axis]
    width = others.pop("dim")
    return ", ".join([*(f"{n} {axis}" for axis, n in others.items()), f"d = {width}"])


def _series(record: Record, sweep: Sweep, unit: str) -> dict[int, float]:
    """A figure by the size that varies."""
    name = f"{sweep.model}_{sweep.axis}"
    return {n: record.figures[f"{name}_{n}_{unit}"] for n in sweep.values}


def _fit(record: Record, sweep: Sweep) -> str:
    """The powers of time and memory, added to the record, in words."""
    words = []
    for unit, what in (("seconds", "time"), ("mebibytes", "temporary memory")):
        series = _series(record, sweep, unit)
        power = power_of(series, sweep.fitted_from)
        record.figures[f"{sweep.model}_{sweep.axis}_{unit}_power"] = power
        words.append(f"{what} as {sweep.axis}^{power:.2f}")
    return f"from {sweep.fitted_from} on {', '.join(words)}"


def _draw(figure: Figure, record: Record, sweeps: tuple[Sweep, ...]) -> None:
    """Time and floor on log axes, a panel an axis, with the fitted powers."""
    axes = list(dict.fromkeys(sweep.axis for sweep in sweeps))
    panels = dict(zip(axes, figure.subplots(1, len(axes)), strict=True))
    for sweep in sweeps:
        panel = panels[sweep.axis]
        name = f"{sweep.model}_{sweep.axis}"
        values = _series(record, sweep, "seconds")
        floors = [record.floors[f"{name}_{n}_seconds"]["seconds"] for n in values]
        times = 1e3 * np.array([list(values.values()), floors])
        power = record.figures[f"{name}_seconds_power"]
        label = f"{sweep.model.replace('_', ' ')}: {sweep.axis}^{power:.2f}"
        sizes = list(values)
        (line,) = panel.loglog(sizes, times[0], "o-", ms=3, label=label)
        panel.loglog(sizes, times[1], ":", color=line.get_color(), label="its floor")
        panel.set_xlabel(sweep.axis)
    for axis, panel in panels.items():
        panel.set_ylabel("value and gradient, ms" if axis == axes[0] else "")
        panel.margins(y=0.2)
        panel.legend(fontsize=7)
        panel.grid(alpha=0.3)
