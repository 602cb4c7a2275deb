"""What a compiled program says to other devices, read from its HLO text."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Collective", "bytes_sent", "collectives"]

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
ITEM_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "s32": 4, "u32": 4, "f32": 4}
ITEM_BYTES |= {"s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16}

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]+[0-9]*(?:e[0-9]m[0-9]\w*)?)\[([0-9,]*)\]")
_CALLED = re.compile(r"\b(?:calls|body|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r"known_trip_count\W+n\W+(\d+)")
_CONSTANT = re.compile(r"= [su]\d+\[\]\S* constant\((\d+)\)")
_GROUPS = (
    (re.compile(r"replica_groups=\{\{([0-9,]*)\}"), lambda found: found[1].count(",") + 1),
    (re.compile(r"replica_groups=\[[0-9]+,([0-9]+)\]<="), lambda found: int(found[1])),
    (re.compile(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}"), lambda found: _mesh_group(found[1], found[2])),
)


class Collective(NamedTuple):
    """One collective instruction.

    Attributes:
      kind: one of "all-gather", "all-reduce", "reduce-scatter", "all-to-all" and "collective-permute".
      bytes: of its result on one device.
      group: how many devices take part together.
      times: how often a step runs it: the product of the trip counts of the loops around it.
      name: of the operation in the program it came from, "" if the text does not say.
    """

    kind: str
    bytes: int
    group: int
    times: int
    name: str


def collectives(text: str, *, num_devices: int) -> list[Collective]:
    """The collectives that one run of a compiled program executes, those in loops once with their count.

    Of the branches of a conditional all are counted. A fusion of an all-reduce with the slice of it that the device
    keeps, which TPUs run as one, is a reduce-scatter.

    Args:
      text: ``compiled.as_text()``.
      num_devices: that the program runs on, the group where the text names none.

    Returns:
      A list, in the order of the text from the entry computation on.

    Raises:
      ValueError: if there is no entry computation, or a loop around a collective does not tell its trip count.
    """
    computations, entry = _computations(text)
    if entry is None:
        raise ValueError(f"text must be that of an HLO module, got one without an ENTRY computation: {text[:80]!r}")
    return list(_walk(computations, entry, 1, num_devices))


def bytes_sent(found: Collective) -> float:
    """Bytes that each device sends in all runs of a collective, by the ring algorithms, which send the fewest.

    With a result of R bytes and groups of g: all-gather and all-to-all R (g - 1) / g, reduce-scatter R (g - 1),
    all-reduce twice R (g - 1) / g, a permutation R.
    """
    others = (found.group - 1) / found.group
    factor = {"all-reduce": 2.0 * others, "reduce-scatter": found.group - 1.0, "collective-permute": 1.0}
    return found.times * found.bytes * factor.get(found.kind, others)


def _computations(text: str) -> tuple[dict[str, list[str]], str | None]:
    """Name -> its lines, and the entry's name."""
    computations: dict[str, list[str]] = {}
    entry = current = None
    for line in text.splitlines():
        header = _COMPUTATION.match(line)
        if header:
            current = header[2]
            computations[current] = []
            entry = current if header[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None:
            computations[current].append(line)
    return computations, entry


def _walk(computations: dict[str, list[str]], name: str, times: int, num_devices: int) -> Iterator[Collective]:
    for line in computations.get(name, ()):
        parts = _INSTRUCTION.match(line)
        if parts is None:
            continue
        _, result, operation, rest = parts.groups()
        kind = operation.removesuffix("-start")
        if kind in KINDS:
            size = _result_bytes(result, kind, started=kind != operation)
            yield _scattered(computations[name], Collective(kind, size, _group(rest, num_devices), times, _named(rest)))
            continue
        inner = [name for branches in _BRANCHES.findall(rest) for name in re.findall(r"[\w.\-]+", branches)]
        for called in [*_CALLED.findall(rest), *inner]:
            found = list(_walk(computations, called, times, num_devices))
            count = _trip_count(computations, rest) if operation == "while" and found else 1
            yield from (collective._replace(times=count * collective.times) for collective in found)


def _scattered(lines: list[str], found: Collective) -> Collective:
    """An all-reduce of which the computation returns no more than the device's own slice, as a reduce-scatter."""
    root = next((_INSTRUCTION.match(line) for line in lines if line.lstrip().startswith("ROOT ")), None)
    if found.kind != "all-reduce" or root is None or root[3] not in ("dynamic-slice", "bitcast"):
        return found
    kept = _result_bytes(root[2], "all-reduce", started=False)
    return found._replace(kind="reduce-scatter", bytes=kept) if kept * found.group == found.bytes else found


def _result_bytes(result: str, kind: str, *, started: bool) -> int:
    """Of the result's arrays; what starts a gather or a permutation returns its operands too, first."""
    sizes = [
        ITEM_BYTES.get(dtype, 1) * math.prod(int(size) for size in shape.split(",") if size)
        for dtype, shape in _ARRAY.findall(re.sub(r"\{[^}]*\}", "", result))
    ]
    if started and kind == "all-gather":
        sizes = sizes[len(sizes) // 2 :]
    return sizes[1] if started and kind == "collective-permute" else sum(sizes)


def _group(rest: str, num_devices: int) -> int:
    for pattern, size in _GROUPS:
        found = pattern.search(rest)
        if found:
            return size(found)
    return num_devices


def _mesh_group(axes: str, over: str) -> int:
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", axes)}
    return math.prod(sizes[name] for name in re.findall(r"'(\w+)'", over))


def _trip_count(computations: dict[str, list[str]], rest: str) -> int:
    """What XLA knows, or the one whole number that the loop's condition compares with."""
    known = _TRIPS.search(rest)
    if known:
        return int(known[1])
    condition = re.search(r"\bcondition=%?([\w.\-]+)", rest)
    lines = [] if condition is None else list(computations.get(condition[1], ()))
    lines += [line for name in _CALLED.findall("\n".join(lines)) for line in computations.get(name, ())]
    bounds = {int(bound) for bound in _CONSTANT.findall("\n".join(lines))}
    if len(bounds) != 1:
        raise ValueError(f"no trip count is to be read from the condition of a loop with collectives: {rest[:200]}")
    return bounds.pop()


def _named(rest: str) -> str:
    found = re.search(r'op_name="([^"]*)"', rest)
    return found[1] if found else ""
