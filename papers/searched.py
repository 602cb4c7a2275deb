"""`python -m papers.searched EXPERIMENT --rates A,B --over.OPTION A,B`: fair grids.

A comparison at one learning rate compares how well that rate suits each method. Here
every cell of a grid takes the learning rate that is best on validation data at one
seed, and is trained again at that rate with other seeds.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from unroll_jax.train.config.errors import UserError
from unroll_jax.train.report.tables import text_of
from unroll_jax.train.sweep import command
from unroll_jax.train.sweep.axes import split_over

__all__ = ["best_rates", "main"]

Row = dict[str, Any]
RATE = "primal.learning-rate"
SEARCH_SEED = 100  # none of the seeds that are compared


def best_rates(cells: Sequence[Row], axes: Sequence[str]) -> dict[tuple[str, ...], str]:
    """Returns the learning rate of least validation loss by values of ``axes``.

    Feasible runs come first, then those of least excess. Runs that failed do not count.
    """
    costs = dict[tuple[str, ...], list[tuple[bool, float, str]]]()
    for cell in cells:
        family = tuple(cell[name] for name in axes)
        loss = cell["validation"]
        if loss is not None:
            missed = not cell["feasible"]
            cost = cell["excess"] if missed else loss
            costs.setdefault(family, []).append((missed, cost, cell[RATE]))
    return {family: min(tried)[2] for family, tried in costs.items()}


def main(arguments: Sequence[str]) -> int:
    """Searches, trains all seeds, and prints a row for every cell in Markdown."""
    parser = argparse.ArgumentParser(
        prog="python -m papers.searched", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("experiment", help="of `unroll-jax list`")
    parser.add_argument("--rates", required=True, help="with commas between")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0, 1, ...")
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs")
    given, words = parser.parse_known_args(arguments)
    try:
        rows = list(_compare(given, *split_over(words)))
    except UserError as error:
        parser.exit(2, f"error: {error}\n")
    print("\n".join(rows))
    return 0


def _compare(
    given: argparse.Namespace, over: dict[str, str], rest: list[str]
) -> Iterator[str]:
    # the search reads no test figure, so one noise level is enough
    alone = ["--seed", str(SEARCH_SEED), *rest, "--test-gammas", "0"]
    tried = _sweep(given, over | {RATE: given.rates}, alone, "search")
    seeds = ",".join(map(str, range(given.seeds)))
    header = None
    for family, rate in best_rates(tried, list(over)).items():
        axes = dict(zip(over, family, strict=True)) | {RATE: rate}
        folder = "_".join(axes.values())
        cells = _sweep(given, axes | {"seed": seeds}, rest, folder)
        figures = _test_figures(cells, [*axes, "seed"])
        if header is None:
            header = [*axes, "feasible", *figures]
            yield f"\n| {' | '.join(header)} |\n{'|---' * len(header)}|"
        shown = [*axes.values(), _feasible(cells), *figures.values()]
        yield f"| {' | '.join(shown)} |"


def _sweep(
    given: argparse.Namespace, over: dict[str, str], rest: list[str], name: str
) -> list[Row]:
    folder = given.out / name
    axes = [f"--over.{option}={values}" for option, values in over.items()]
    command([given.experiment, *axes, *rest, "--out", str(folder)])
    return json.loads((folder / "sweep.json").read_text())["cells"]


def _feasible(cells: Sequence[Row]) -> str:
    """The number of feasible runs, or a dash for a method without bounds."""
    if all(cell["excess"] is None for cell in cells):
        return "-"
    feasible = sum(bool(cell["feasible"]) for cell in cells)
    return f"{feasible}/{len(cells)}"


def _test_figures(cells: Sequence[Row], axes: Sequence[str]) -> dict[str, str]:
    """Returns the mean, least and largest of each figure of the test split."""
    others = {"cell", "state", "step", "feasible", "excess", "validation", *axes}
    shown = {}
    for name in dict.fromkeys(name for cell in cells for name in cell):
        if name not in others:
            values = [cell[name] for cell in cells if cell.get(name) is not None]
            shown[name] = text_of(values)
    return shown


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
