"""What do faults cost? Signals, full and read-only disks and damaged files, and kills at random moments."""

from typing import Any

from benchmarks.faults.kills import kills_at_random
from benchmarks.faults.scenarios import try_scenarios

__all__ = ["main"]


def main() -> dict[str, Any]:
    """Prints a table of scenarios and their outcomes, and one of kills by phase."""
    return {"scenarios": try_scenarios(), **kills_at_random()}
