"""Communication of a compiled program: its collectives, read from HLO, and the bytes that they send."""

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Collective", "bytes_sent", "collectives"]


class Collective(NamedTuple):
    """One collective instruction.

    Attributes:
      kind: all-reduce, all-gather, reduce-scatter, all-to-all, or collective-permute.
      bytes: of its result on one device.
      arrays: number of arrays that it moves at once.
      group: number of devices that take part together; 2 for a permutation, which is between pairs.
      times: number of runs in a step. A loop whose length depends on the data counts once.
      bounded: True if no such loop is around it.
      source: the operation of the program that it belongs to.
    """

    kind: str
    bytes: int
    arrays: int
    group: int
    times: int
    bounded: bool
    source: str


def collectives(text: str) -> list[Collective]:
    """Returns every collective of an HLO module, with the count of loops; all branches of a conditional count.

    A fusion of an all-reduce with the slice that the device keeps, as compilers for TPUs write it, is a reduce-scatter.

    Args:
      text: ``compiled.as_text()``, or the text of a lowered program.

    Returns:
      A list, in the order of the text.

    Raises:
      ValueError: if the text has no entry computation.
    """
    computations = _computations(text)
    if ENTRY not in computations:
        raise ValueError(f"text must be that of an HLO module, got one without an ENTRY computation: {text[:80]!r}")
    callers = _callers(computations)
    fused = set(_FUSED.findall(text))
    everyone = int(re.search(r"num_partitions=(\d+)|$", text)[1] or 1)  # type: ignore[index]
    operations = []
    for computation, lines in computations.items():
        for line in lines:
            if match := _COLLECTIVE.search(line):
                one = _collective(match, _group(line, everyone), *_times(computation, callers))
                operations.append(_scattered(one, lines) if computation in fused else one)
    return operations


def bytes_sent(collective: Collective) -> float:
    """Bytes that each device sends in all runs of a collective, by the ring algorithms, which send the fewest.

    With a result of R bytes and groups of g: all-gather and all-to-all R (g - 1) / g, reduce-scatter R (g - 1),
    all-reduce twice R (g - 1) / g, a permutation R.

    Raises:
      ValueError: if a loop around it does not tell its trip count, so that nothing is known of all runs.
    """
    if not collective.bounded:
        raise ValueError(
            f"collective must be in loops whose trip counts the program tells, got {collective}: count with "
            "jax.lax.scan or jax.lax.fori_loop, from 0 to a constant"
        )
    others = (collective.group - 1) / collective.group
    factor = {"all-reduce": 2.0 * others, "reduce-scatter": collective.group - 1.0, "collective-permute": 1.0}
    return collective.times * collective.bytes * factor.get(collective.kind, others)


def _computations(text: str) -> dict[str, list[str]]:
    """Name -> its instructions, a line each."""
    computations: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            lines = computations[ENTRY if header["entry"] else header["name"]] = []
        elif line.startswith("  "):
            lines.append(line)
    return computations


def _callers(computations: dict[str, list[str]]) -> dict[str, list[tuple[str, int | None]]]:
    """Returns the callers of each computation, with the number of calls: None for a loop of unknown length."""
    callers: dict[str, list[tuple[str, int | None]]] = {}
    for caller, lines in computations.items():
        for line in lines:
            often = _trip_count(line, computations) if " while(" in line else 1
            for name in _called(line):
                callers.setdefault(name, []).append((caller, often))
    return callers


def _called(line: str) -> Iterable[str]:
    return (name for called in _CALLED.findall(line) for name in re.findall(r"[\w.\-]+", called))


def _trip_count(line: str, computations: dict[str, list[str]]) -> int | None:
    """Returns the number of passes of a loop, by XLA's annotation, or by a condition ``counter < constant`` alone.

    XLA has no word in programs that are lowered alone, nor for TPUs. Loops over a range count from 0 by 1, as
    `jax.lax.scan` and `jax.lax.fori_loop` write them. One that looks at more than its counter, as those of solvers do,
    may end before it.
    """
    if known := re.search(r"known_trip_count\W+n\W+(\d+)", line):
        return int(known[1])
    condition = re.search(r"\bcondition=%?([\w.\-]+)", line)
    lines = computations.get(condition[1], []) if condition else []
    lines = lines + [inner for one in lines for name in _called(one) for inner in computations.get(name, [])]
    tests = [one for one in lines if not _NO_TEST.search(one)]
    bounds = [bound for one in lines if (bound := _CONSTANT.search(one))]
    if len(tests) != 1 or len(bounds) != 1 or not _LESS.search(tests[0]):
        return None
    second = re.compile(rf", %?{re.escape(bounds[0]['name'])}\)")  # of the comparison, or of a fusion that is one
    return int(bounds[0]["value"]) if any(map(second.search, lines)) else None


def _times(computation: str, callers: dict[str, list[tuple[str, int | None]]]) -> tuple[int, bool]:
    if computation == ENTRY:
        return 1, True
    times, bounded = 0, True
    for caller, often in callers.get(computation, []):
        outer, known = _times(caller, callers)
        times, bounded = times + outer * (1 if often is None else often), bounded and known and often is not None
    return times, bounded


def _collective(match: re.Match[str], group: int, times: int, bounded: bool) -> Collective:
    arrays = _ARRAY.findall(match["result"])
    if match["start"] and match["kind"] in ("all-gather", "collective-permute"):
        # An asynchronous start of these returns its operands, then its results, then counters.
        arrays = [(dtype, shape) for dtype, shape in arrays if (dtype, shape) != ("u32", "")]
        arrays = arrays[len(arrays) // 2 :]
    return Collective(
        kind=match["kind"],
        bytes=_bytes(arrays),
        arrays=len(arrays),
        group=group,
        times=times,
        bounded=bounded,
        source=re.search(r'op_name="([^"]*)"|$', match.string)[1] or "",  # type: ignore[index]
    )


def _scattered(collective: Collective, lines: list[str]) -> Collective:
    """An all-reduce of whose result its fusion returns no more than the device's own slice, as a reduce-scatter."""
    kept = next((root for line in lines if (root := _OWN_SLICE.search(line))), None)
    if collective.kind != "all-reduce" or kept is None:
        return collective
    size = _bytes(_ARRAY.findall(kept["result"]))
    return (
        collective._replace(kind="reduce-scatter", bytes=size)
        if size * collective.group == collective.bytes
        else collective
    )


def _bytes(arrays: Iterable[tuple[str, str]]) -> int:
    total = 0
    for dtype, shape in arrays:
        bits = 8 if dtype == "pred" else int(re.sub(r"^[a-z]+(\d+).*", r"\1", dtype))
        total += math.ceil(math.prod(int(size) for size in shape.split(",") if size) * bits / 8)
    return total


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
# Compiled programs write %name and a computation's parameters, those that are lowered alone neither.
_HEADER = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) .*\{$")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|branch_computations|\w+_computation)=(\{[^}]*\}|%?[\w.\-]+)")
_FUSED = re.compile(r" fusion\(.*?\bcalls=%?([\w.\-]+)")
_OWN_SLICE = re.compile(r"^ +ROOT \S+ = (?P<result>.+?) (?:dynamic-slice|bitcast)\(")
_CONSTANT = re.compile(r"^ +(?:ROOT )?%?(?P<name>\S+) = [su]\d+\[\]\S* constant\((?P<value>\d+)\)")
_LESS = re.compile(r" compare\(.*direction=LT")
_NO_TEST = re.compile(r" (?:parameter|get-tuple-element|constant|copy|fusion|call)\(")
