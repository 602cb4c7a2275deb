"""Records of a benchmark: figures with spreads and floors, as JSON, table and plot."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.timing import table, text_of

__all__ = ["Record", "write"]


@dataclasses.dataclass
class Record:
    """Figures by name. Names end in the unit.

    Attributes:
      figures: medians of timed runs, ratios, bytes, counts.
      spreads: of some figures, the interquartile range of the runs over their median,
        and for ratios the sum of both.
      floors: of some figures, the ``flops`` they count, and the ``seconds`` these take
        at the rate that was measured in the same run.
      notes: sentences for readers of the figures.
      draw: draws them into a figure. None draws the timed ones, if there are any.
    """

    figures: dict[str, float] = dataclasses.field(default_factory=dict)
    spreads: dict[str, float] = dataclasses.field(default_factory=dict)
    floors: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    draw: Callable[[Figure], None] | None = None

    def time(
        self,
        name: str,
        seconds: np.ndarray,
        *,
        flops: float | None = None,
        rate: float | None = None,
    ) -> float:
        """Adds the median of timed runs and returns it.

        Args:
          name: of the figure.
          seconds: of every run.
          flops: operations of its matrix products.
          rate: operations per second of the machine, measured.
        """
        low, median, high = np.quantile(seconds, [0.25, 0.5, 0.75])
        self.figures[name] = float(median)
        self.spreads[name] = float((high - low) / median)
        if flops is not None and rate is not None:
            self.floors[name] = {"flops": flops, "seconds": flops / rate}
        return float(median)

    def times(
        self,
        seconds: Mapping[str, np.ndarray],
        *,
        flops: Mapping[str, float],
        rate: float,
        prefix: str = "",
    ) -> None:
        """Adds the times of candidates, and prints them with their floors.

        ``flops`` has those whose operations are known.
        """
        rows = []
        for who, runs in seconds.items():
            work = flops.get(who)
            median = self.time(f"{prefix}{who}_seconds", runs, flops=work, rate=rate)
            floor = None if work is None else 1e3 * work / rate
            rows.append([who, 1e3 * median, 1e3 * float(np.min(runs)), floor])
        print(table(["who", "median ms", "least ms", "floor ms"], rows))

    def ratio(self, name: str, over: str, under: str) -> float:
        """Adds the ratio of two figures and returns it."""
        self.figures[name] = self.figures[over] / self.figures[under]
        self.spreads[name] = self.spreads.get(over, 0.0) + self.spreads.get(under, 0.0)
        return self.figures[name]

    def draw_times(self, figure: Figure) -> None:
        """Draws the timed figures as points on a log axis, each with its floor."""
        # ratios have spreads too, and rates end in "a_second"
        timed = [name for name in self.spreads if name.endswith("seconds")]
        places = range(len(timed))
        medians = [1e3 * self.figures[name] for name in timed]
        # matplotlib draws nothing at NaN, of figures without a floor
        none = {"seconds": math.nan}
        floors = [1e3 * self.floors.get(name, none)["seconds"] for name in timed]

        figure.set_size_inches(9.0, 1.2 + 0.22 * len(timed))
        axes = figure.subplots()
        axes.plot(medians, places, "o", color="#0072B2", label="median")
        axes.plot(floors, places, "|", color="#D55E00", ms=12, mew=2, label="floor")
        labels = [name.removesuffix("seconds").strip("_ ") for name in timed]
        axes.set_yticks(places, [label.replace("_", " ") for label in labels])
        axes.set(xscale="log", xlabel="ms")
        axes.invert_yaxis()
        axes.grid(alpha=0.3)
        axes.legend()


def write(
    record: Record, name: str, folder: Path, conditions: Mapping[str, Any]
) -> None:
    """Writes NAME.json and NAME.md, and NAME.png if there is a plot.

    Args:
      record: of one benchmark.
      name: of the benchmark.
      folder: for the files, made if missing.
      conditions: date, machine, versions, allocator, and whether it was quick.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = {
        "benchmark": name,
        **conditions,
        # JSON has neither NaN nor infinity
        "figures": {
            key: value if math.isfinite(value) else None
            for key, value in record.figures.items()
        },
        "spreads": record.spreads,
        "floors": record.floors,
        "notes": record.notes,
    }
    text = json.dumps(parts, indent=2, allow_nan=False) + "\n"
    (folder / f"{name}.json").write_text(text, encoding="utf-8")
    page = _markdown(record, name, conditions)
    (folder / f"{name}.md").write_text(page, encoding="utf-8")
    if record.spreads:
        figure = Figure(figsize=(12.0, 4.0), layout="constrained")
        (record.draw or record.draw_times)(figure)
        figure.savefig(folder / f"{name}.png", dpi=150)


def _markdown(record: Record, name: str, conditions: Mapping[str, Any]) -> str:
    machine = conditions["machine"]
    date = conditions["date"] + (", quick" if conditions["quick"] else "")
    packages = conditions["versions"].items()
    versions = ", ".join(f"{package} {version}" for package, version in packages)
    kept = "has the system's settings"
    if conditions["allocator"]["keeps_memory"]:
        kept = "keeps large blocks"
    setting = (
        f"{date}; {machine['cpu']}, {machine['cores']} of them used; accelerator:"
        f" {machine['accelerator']}; {versions}."
        f" The allocator, which peers share, {kept}."
    )
    rows = "\n".join(_rows(record))
    return "\n\n".join([f"# {name}", setting, *record.notes, rows]) + "\n"


def _rows(record: Record) -> list[str]:
    rows = [
        "| figure | value | spread | floor, s | over the floor | GFLOP |",
        "|---|---|---|---|---|---|",
    ]
    for name, value in record.figures.items():
        floor = record.floors.get(name, {})
        least = floor.get("seconds", math.nan)
        flops = floor.get("flops", math.nan)
        spread = record.spreads.get(name)
        cells = (value, spread, least, value / least, flops / 1e9)
        escaped = name.replace("|", "\\|")
        rows.append(f"| {' | '.join([escaped, *map(text_of, cells)])} |")
    return rows
