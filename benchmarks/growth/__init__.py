"""Growth of time and memory with layers, tokens and batch, of the unrolled
transformer and of attention."""

from typing import NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure

from benchmarks.growth.programs import MODELS, Case, Sizes
from benchmarks.record import Record
from benchmarks.timing import (
    counted_compilations,
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
    # the power is fitted to these and larger values; below, the cost of a call counts
    fitted_from: int
    dense_up_to: int = 0  # the dense expression is also run up to this size


class Setting(NamedTuple):
    """Sweeps, and the seconds of timed runs that each point may take, `LEAST_RUNS`
    at least."""

    sweeps: tuple[Sweep, ...]
    seconds: float


def _powers(first: int, last: int, factor: int) -> tuple[int, ...]:
    return tuple(
        int(first * factor**i)
        for i in range(round(np.log(last / first) / np.log(factor)) + 1)
    )


def _setting(
    tokens: tuple[int, int], dense_up_to: int, factor: int, seconds: float
) -> Setting:
    small, one, layers = (
        Sizes(4, 32, 32, 16),
        Sizes(1, 32, 64, 1),
        _powers(1, 64, factor),
    )
    lengths, batches = _powers(*tokens, factor), _powers(1, 1024, factor)
    sweeps = (
        Sweep("transformer", "layers", small, layers, 4),
        Sweep("transformer", "tokens", one, lengths, 512),
        Sweep("transformer", "batch", small, batches, 16),
        Sweep("attention_layers", "layers", Sizes(1, 64, 256, 1), layers, 4),
        Sweep(
            "attention_energy",
            "tokens",
            Sizes(1, 64, 64, 1),
            lengths,
            1024,
            dense_up_to,
        ),
        Sweep("attention_energy", "batch", Sizes(1, 64, 64, 1), batches, 16),
    )
    return Setting(sweeps, seconds)


FULL = _setting((128, 16_384), dense_up_to=8_192, factor=2, seconds=0.5)
QUICK = _setting((64, 4_096), dense_up_to=4_096, factor=4, seconds=0.1)
LEAST_RUNS, MOST_RUNS = 5, 100
SLOW = 1.0  # seconds of a run from which two are enough
# of the blocks over the dense expression, and of their memory at the most tokens
BAR, BAR_MEBIBYTES = 1.3, 256.0


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints time and temporary memory of every point next to its floor, and the
    powers they grow with."""
    del peers  # the dense expression, in JAX, is all that is compared with
    setting = QUICK if quick else FULL
    rate, record = matmul_rate(1024, 1024, 1024), Record()
    print(
        f"value and gradient, float32, {jax.default_backend()}; one size varies alone"
    )
    for sweep in setting.sweeps:
        _measure(record, sweep, rate, setting.seconds)
    _judge(record)
    print(
        f"floor: the matrix products alone at {rate / 1e9:.0f} GFLOP/s, that of a 1024"
        " x 1024 x 1024 one"
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
            for model, runs in _timed(cases, seconds).items():
                name, case = f"{model}_{sweep.axis}_{value}", cases[model]
                record.time(f"{name}_seconds", runs, flops=case.flops, rate=rate)
                # the one that ran, not compiled again
                program = case.function.lower(*case.arguments).compile()
                record.figures[f"{name}_mebibytes"] = temporary_mebibytes(program)
            rows.append(_row(record, sweep, value))
    again = len(compiled) - programs
    print(f"\n{sweep.model}, by {sweep.axis}; {_words(sweep)}")
    print(
        table([sweep.axis, "ms", "floor ms", "temp MiB", "dense ms", "dense MiB"], rows)
    )
    record.figures[f"{sweep.model}_{sweep.axis}_compiled_again"] = again
    print(f"{programs} programs, {again} compiled a second time; {_fit(record, sweep)}")


def _timed(cases: dict[str, Case], seconds: float) -> dict[str, np.ndarray]:
    """Seconds of runs, as many as the time allows. The first one compiles and is not
    counted."""
    calls = {
        model: lambda case=case: jax.block_until_ready(case.function(*case.arguments))
        for model, case in cases.items()
    }
    first = interleaved(calls, repeats=1, warmup=1)
    took = float(sum(runs[0] for runs in first.values()))
    least = LEAST_RUNS if took < SLOW else 2
    rest = interleaved(
        calls, repeats=int(np.clip(seconds / took, least, MOST_RUNS)) - 1, warmup=0
    )
    return {model: np.concatenate([first[model], rest[model]]) for model in calls}


def _row(record: Record, sweep: Sweep, value: int) -> list[str]:
    row = [str(value)]
    for model in (sweep.model, "dense_energy"):
        name = f"{model}_{sweep.axis}_{value}"
        if f"{name}_seconds" not in record.figures:
            row += ["-", "-"]
            continue
        row.append(f"{1e3 * record.figures[f'{name}_seconds']:.2f}")
        if model == sweep.model:
            row.append(f"{1e3 * record.floors[f'{name}_seconds']['seconds']:.3f}")
        else:
            prefix = f"{sweep.model}_{sweep.axis}_{value}"
            record.ratio(f"{prefix}_over_dense", f"{prefix}_seconds", f"{name}_seconds")
        row.append(f"{record.figures[f'{name}_mebibytes']:.1f}")
    return row


def _words(sweep: Sweep) -> str:
    others = {
        axis: size for axis, size in sweep.base._asdict().items() if axis != sweep.axis
    }
    return ", ".join(
        f"{size} {axis}" if axis != "dim" else f"d = {size}"
        for axis, size in others.items()
    )


def _series(record: Record, model: str, axis: str, unit: str) -> dict[int, float]:
    """A figure by the size that varies."""
    names = {
        name: name.removeprefix(f"{model}_{axis}_").removesuffix(f"_{unit}")
        for name in record.figures
    }
    return {
        int(size): record.figures[name]
        for name, size in names.items()
        if size.isdecimal()
    }


def _fit(record: Record, sweep: Sweep) -> str:
    """The powers of time and memory, added to the record, in words."""
    words = []
    for unit, what in (("seconds", "time"), ("mebibytes", "temporary memory")):
        power = power_of(
            _series(record, sweep.model, sweep.axis, unit), sweep.fitted_from
        )
        record.figures[f"{sweep.model}_{sweep.axis}_{unit}_power"] = power
        words.append(f"{what} as {sweep.axis}^{power:.2f}")
    return f"from {sweep.fitted_from} on {', '.join(words)}"


def _judge(record: Record) -> None:
    """Prints the cost of the attention energy next to its bars."""
    ratios = [
        value for name, value in record.figures.items() if name.endswith("_over_dense")
    ]
    record.figures["attention_energy_worst_over_dense"] = max(ratios)
    memory = _series(record, "attention_energy", "tokens", "mebibytes")
    most = max(memory)
    print(
        f"\nattention energy over the dense expression at most {max(ratios):.2f} (bar"
        f" {BAR:.2f})"
    )
    print(
        f"its temporary memory at {most} tokens: {memory[most]:.0f} MiB (bar"
        f" {BAR_MEBIBYTES:.0f})"
    )


def _draw(figure: Figure, record: Record, sweeps: tuple[Sweep, ...]) -> None:
    """Time and floor on log axes, a panel an axis, with the fitted powers."""
    axes = list(dict.fromkeys(sweep.axis for sweep in sweeps))
    panels = dict(zip(axes, figure.subplots(1, len(axes)), strict=True))
    for sweep in sweeps:
        panel, values = (
            panels[sweep.axis],
            _series(record, sweep.model, sweep.axis, "seconds"),
        )
        floors = [
            record.floors[f"{sweep.model}_{sweep.axis}_{value}_seconds"]["seconds"]
            for value in values
        ]
        power = record.figures[f"{sweep.model}_{sweep.axis}_seconds_power"]
        label = f"{sweep.model.replace('_', ' ')}: {sweep.axis}^{power:.2f}"
        (line,) = panel.loglog(
            list(values),
            [1e3 * seconds for seconds in values.values()],
            "o-",
            ms=3,
            label=label,
        )
        panel.loglog(
            list(values),
            [1e3 * floor for floor in floors],
            ":",
            color=line.get_color(),
            label="its floor",
        )
        panel.set_xlabel(sweep.axis)
    for axis, panel in panels.items():
        panel.set_ylabel("value and gradient, ms" if axis == axes[0] else "")
        panel.margins(y=0.2)
        panel.legend(fontsize=7)
        panel.grid(alpha=0.3)
