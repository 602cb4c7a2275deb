"""Records of a benchmark: figures with spreads and floors, as JSON, as a Markdown
table and as a plot."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

__all__ = ["Record", "write"]


@dataclasses.dataclass
class Record:
    """Figures by name; names end in the unit.

    Attributes:
      figures: medians of timed runs, ratios, bytes, counts.
      spreads: of some figures, the interquartile range of the runs over their median;
        of ratios the sum of both.
      floors: of some figures, the ``flops`` they count, and the ``seconds`` these take
        at the rate that was measured in the same run.
      notes: sentences for who reads the figures.
      draw: draws them into a figure; None where a plot says nothing.
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
          rate: operations a second that the machine was measured to do.
        """
        low, median, high = np.quantile(seconds, [0.25, 0.5, 0.75])
        self.figures[name], self.spreads[name] = (
            float(median),
            float((high - low) / median),
        )
        if flops is not None and rate is not None:
            self.floors[name] = {"flops": flops, "seconds": flops / rate}
        return float(median)

    def ratio(self, name: str, over: str, under: str) -> float:
        """Adds the ratio of two figures and returns it."""
        self.figures[name] = self.figures[over] / self.figures[under]
        self.spreads[name] = self.spreads.get(over, 0.0) + self.spreads.get(under, 0.0)
        return self.figures[name]

    def draw_times(self, figure: Figure) -> None:
        """Draws the timed figures as points on a log axis, each with its floor."""
        timed = {
            name: 1e3 * value
            for name, value in self.figures.items()
            if name in self.spreads and "second" in name
        }
        timed = {name: value for name, value in timed.items() if "a_second" not in name}
        figure.set_size_inches(9.0, 1.2 + 0.22 * len(timed))
        axes, places = figure.subplots(), range(len(timed))
        axes.plot(list(timed.values()), places, "o", color="#0072B2", label="median")
        floors = {
            place: 1e3 * self.floors[name]["seconds"]
            for place, name in enumerate(timed)
            if name in self.floors
        }
        axes.plot(
            list(floors.values()),
            list(floors),
            "|",
            color="#D55E00",
            ms=12,
            mew=2,
            label="floor",
        )
        axes.set_yticks(
            places,
            [
                name.removesuffix("seconds").strip("_ ").replace("_", " ")
                for name in timed
            ],
        )
        axes.set(xscale="log", xlabel="ms")
        axes.invert_yaxis()
        axes.grid(alpha=0.3)
        axes.legend()


def write(
    record: Record, name: str, folder: Path, conditions: Mapping[str, Any]
) -> None:
    """Writes NAME.json and NAME.md, and NAME.png where there is a plot.

    Args:
      record: of one benchmark.
      name: of the benchmark.
      folder: where to; it is made where it is missing.
      conditions: date, machine, versions, allocator, and whether it was quick.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figures = {
        key: value if math.isfinite(value) else None
        for key, value in record.figures.items()
    }
    parts = {
        "figures": figures,
        "spreads": record.spreads,
        "floors": record.floors,
        "notes": record.notes,
    }
    text = json.dumps(
        {"benchmark": name, **conditions, **parts}, indent=2, allow_nan=False
    )
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    (folder / f"{name}.md").write_text(
        _markdown(record, name, conditions), encoding="utf-8"
    )
    if record.draw is not None:
        figure = Figure(figsize=(12.0, 4.0), layout="constrained")
        record.draw(figure)
        figure.savefig(folder / f"{name}.png", dpi=150)


def _markdown(record: Record, name: str, conditions: Mapping[str, Any]) -> str:
    machine = conditions["machine"]
    versions = ", ".join(
        f"{key} {value}" for key, value in conditions["versions"].items()
    )
    kept = (
        "keeps large blocks"
        if conditions["allocator"]["keeps_memory"]
        else "with the system's settings"
    )
    lines = [
        f"# {name}",
        (
            f"{conditions['date']}{', quick' if conditions['quick'] else ''};"
            f" {machine['cpu']}, {machine['cores']} of them used; accelerator:"
            f" {machine['accelerator']}; {versions}. The allocator, which peers share,"
            f" {kept}."
        ),
        *record.notes,
        "\n".join(_rows(record)),
    ]
    return "\n\n".join(lines) + "\n"


def _rows(record: Record) -> list[str]:
    rows = [
        "| figure | value | spread | floor, s | over the floor | GFLOP |",
        "|---|---|---|---|---|---|",
    ]
    for name, value in record.figures.items():
        floor = record.floors.get(name, {})
        least, flops, spread = (
            floor.get("seconds"),
            floor.get("flops"),
            record.spreads.get(name),
        )
        cells = [
            name.replace("|", "\\|"),
            f"{value:.4g}",
            "" if spread is None else f"{spread:.1%}",
            "" if least is None else f"{least:.4g}",
            "" if least is None else f"{value / least:.2f}",
            "" if flops is None else f"{flops / 1e9:.4g}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows
