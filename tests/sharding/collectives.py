"""Communication of a program compiled for CPUs: its collectives, read from HLO."""

import math
import re
from typing import NamedTuple

__all__ = ["Collective", "collectives"]
KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
COLLECTIVE = re.compile(rf"= (?P<result>.+?) (?P<kind>{KINDS})\(")
ARRAY = re.compile(r"\b(pred|[a-z]+\d\w*)\[([\d,]*)\]")
HEADER = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) .*\{$")
CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|branch_computations|\w+_computation)=(\{[^}]*\}|%?[\w.\-]+)"
)
TRIPS = re.compile(r"known_trip_count\W+n\W+(\d+)")
ENTRY = ""


class Collective(NamedTuple):
    kind: str  # one of `KINDS`
    bytes: int  # of its result on one device
    arrays: int  # number of arrays that it moves at once
    times: int  # number of runs
    source: str  # the operation of the program that it belongs to


def collectives(text: str) -> list[Collective]:
    computations: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if header := HEADER.match(line):
            lines = computations[ENTRY if header["entry"] else header["name"]] = []
        elif line.startswith("  "):
            lines.append(line)
    assert ENTRY in computations, f"not an HLO module: {text[:80]!r}"
    callers: dict[str, list[tuple[str, int]]] = {}
    for caller, lines in computations.items():
        for line in lines:
            for called in CALLED.findall(line):
                for name in re.findall(r"[\w.\-]+", called):
                    callers.setdefault(name, []).append((caller, _passes(line)))

    def times(computation: str) -> int:
        if computation == ENTRY:
            return 1
        return sum(
            often * times(caller) for caller, often in callers.get(computation, [])
        )

    return [
        _collective(match, line, times(computation))
        for computation, lines in computations.items()
        for line in lines
        if (match := COLLECTIVE.search(line))
    ]


def _passes(line: str) -> int:
    """Passes of a loop; of one whose length depends on the data 1."""
    known = TRIPS.search(line) if " while(" in line else None
    return int(known[1]) if known else 1


def _collective(match: re.Match[str], line: str, times: int) -> Collective:
    arrays, total = ARRAY.findall(match["result"]), 0
    for dtype, shape in arrays:
        bits = 8 if dtype == "pred" else int(re.sub(r"^[a-z]+(\d+).*", r"\1", dtype))
        total += math.ceil(
            math.prod(int(size) for size in shape.split(",") if size) * bits / 8
        )
    source = re.search(r'op_name="([^"]*)"', line)
    return Collective(
        match["kind"], total, len(arrays), times, source[1] if source else ""
    )
