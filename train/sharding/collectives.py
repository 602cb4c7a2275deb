"""What a compiled step communicates, read from its HLO."""

import math
import re
from typing import NamedTuple

__all__ = ["Collective", "collectives"]


class Collective(NamedTuple):
    """One collective instruction.

    Attributes:
      kind: all-reduce, all-gather, reduce-scatter, all-to-all, or collective-permute.
      bytes: of its result on one device.
      arrays: how many arrays it moves at once.
      group: devices that take part together; 2 for a permutation, which is between pairs.
      times: how often it runs in a step. A loop whose length depends on the data counts once.
      bounded: whether no such loop is around it.
      source: the operation of the program that it is for.
    """

    kind: str
    bytes: int
    arrays: int
    group: int
    times: int
    bounded: bool
    source: str


def collectives(text: str) -> list[Collective]:
    """Every collective of an HLO module's text, as ``compiled.as_text()`` gives it, in the order of the text."""
    instructions = _instructions(text)
    callers, everyone = _callers(instructions), int(re.search(r"num_partitions=(\d+)|$", text)[1] or 1)  # type: ignore[index]
    found = []
    for computation, line in instructions:
        if match := _COLLECTIVE.search(line):
            arrays = _arrays(match)
            times, bounded = _times(computation, callers)
            found.append(
                Collective(
                    kind=match["kind"],
                    bytes=sum(_bytes(dtype, shape) for dtype, shape in arrays),
                    arrays=len(arrays),
                    group=_group(line, everyone),
                    times=times,
                    bounded=bounded,
                    source=re.search(r'op_name="([^"]*)"|$', line)[1] or "",  # type: ignore[index]
                )
            )
    return found


def _instructions(text: str) -> list[tuple[str, str]]:
    """(name of its computation, line) of every instruction."""
    found, computation = [], ""
    for line in text.splitlines():
        if header := _HEADER.match(line):
            computation = ENTRY if header["entry"] else header["name"]
        elif line.startswith("  "):
            found.append((computation, line))
    return found


def _callers(instructions: list[tuple[str, str]]) -> dict[str, list[tuple[str, int | None]]]:
    """Who calls each computation, and how often: None for a loop of unknown length."""
    found: dict[str, list[tuple[str, int | None]]] = {}
    for caller, line in instructions:
        known = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
        often = 1 if " while(" not in line else int(known[1]) if known else None
        for called in _CALLED.findall(line):
            for name in re.findall(r"[\w.\-]+", called):
                found.setdefault(name, []).append((caller, often))
    return found


def _times(computation: str, callers: dict[str, list[tuple[str, int | None]]]) -> tuple[int, bool]:
    if computation == ENTRY:
        return 1, True
    times, bounded = 0, True
    for caller, often in callers.get(computation, []):
        outer, known = _times(caller, callers)
        times, bounded = times + outer * (often or 1), bounded and known and often is not None
    return times, bounded


def _arrays(match: re.Match[str]) -> list[tuple[str, str]]:
    """Type and shape of what a collective returns."""
    arrays = _ARRAY.findall(match["result"])
    if match["start"] and match["kind"] in ("all-gather", "collective-permute"):
        # An asynchronous start of these returns its operands, then its results, then counters.
        arrays = [(dtype, shape) for dtype, shape in arrays if (dtype, shape) != ("u32", "")]
        arrays = arrays[len(arrays) // 2 :]
    return arrays


def _bytes(dtype: str, shape: str) -> int:
    bits = 8 if dtype == "pred" else int(re.sub(r"^[a-z]+(\d+).*", r"\1", dtype))
    return math.ceil(math.prod(int(size) for size in shape.split(",") if size) * bits / 8)


def _group(line: str, everyone: int) -> int:
    """Devices of a replica group, in any of the ways that XLA writes them."""
    if "source_target_pairs" in line:
        return 2
    if match := re.search(r"replica_groups=\[\d+,(\d+)\]", line):
        return int(match[1])
    if match := re.search(r"replica_groups=mesh\[(.*?)\].*? \{('.*?)\}", line):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", match[1])}
        axes = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", match[2])  # a part of an axis is 'axis':(before)size
        return math.prod(int(part) if part else sizes[name] for name, part in axes)
    if match := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return match[1].count(",") + 1
    return everyone


ENTRY = ""
_KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
_COLLECTIVE = re.compile(rf"= (?P<result>.+?) (?P<kind>{_KINDS})(?P<start>-start)?\(")
_ARRAY = re.compile(r"\b(pred|[a-z]+\d\w*)\[([\d,]*)\]")
_HEADER = re.compile(r"^(?P<entry>ENTRY )?%(?P<name>[\w.\-]+) .*\{$")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|branch_computations|\w+_computation)=\{?((?:%[\w.\-]+,? ?)+)")
