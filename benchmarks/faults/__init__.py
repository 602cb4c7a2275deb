"""Cost of faults: signals, full and read-only disks, damaged files, and kills at random moments."""

from benchmarks.faults.kills import kills_at_random
from benchmarks.faults.scenarios import try_scenarios
from benchmarks.record import Record

__all__ = ["main"]


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints a table of scenarios and their outcomes, and one of kills by phase; quick: without the kills."""
    del peers  # there are none
    scenarios = try_scenarios()
    notes = ["; ".join(f"{title}: {cell}" for title, cell in row.items()) for row in scenarios]
    right = sum(row["as it should be"] == row["same result in the end"] == "yes" for row in scenarios)
    figures: dict[str, float] = {"scenarios": len(scenarios), "scenarios_as_they_should_be": right}
    return Record(figures if quick else figures | kills_at_random(), notes=notes)
