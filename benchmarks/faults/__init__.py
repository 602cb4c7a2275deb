"""Cost of faults: signals, full and read-only disks, damaged files, signals by phase, and kills at random moments."""

import signal

from benchmarks.faults.kills import kills_at_random
from benchmarks.faults.scenarios import try_scenarios
from benchmarks.faults.signals import signals_by_phase
from benchmarks.record import Record
from benchmarks.timing import table

__all__ = ["main"]


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints tables of scenarios and their outcomes, of signals and of kills by phase, and one of all that went wrong.

    quick: the scenarios alone.
    """
    del peers  # there are none
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a script
    scenarios = try_scenarios()
    notes = ["; ".join(f"{title}: {cell}" for title, cell in row.items()) for row in scenarios]
    right = sum(row["as it should be"] == row["same result in the end"] == "yes" for row in scenarios)
    figures: dict[str, float] = {"scenarios": len(scenarios), "scenarios_as_they_should_be": right}
    if quick:
        return Record(figures, notes=notes)
    kills, signals = kills_at_random(), signals_by_phase()
    figures |= kills | signals
    wrong = len(scenarios) - right
    tracebacks = sum(row["tracebacks"] for row in scenarios)
    lost = sum(row["same result in the end"] != "yes" for row in scenarios)
    titles = ["faults", "cases", "lost", "wrong", "hung", "tracebacks"]
    rows = [
        ["scenarios", len(scenarios), lost, wrong, "-", tracebacks],
        ["signals", *(signals[f"signals{name}"] for name in ("", "_lost", "_wrong", "_hung", "_tracebacks"))],
        ["kills", kills["kills"], kills["checkpoints_lost"], kills["other_results"], "-", "-"],
    ]
    print(table(titles, [list(map(str, row)) for row in rows]))
    return Record(figures, notes=notes)
