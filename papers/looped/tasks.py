"""Tasks that need depth, generated in NumPy: parities, sums, paths through mazes."""

import itertools
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

__all__ = ["TASKS", "Batch", "Task", "addition", "mazes", "prefix_sums"]

# share of pairs of digits that pass a carry on in `addition`; random pairs: a tenth
CARRIED = 0.8


class Batch(NamedTuple):
    """Examples of a task."""

    inputs: np.ndarray  # (batch, n, channels), or with two spatial axes
    targets: np.ndarray  # the class of every position


def prefix_sums(rng: np.random.Generator, batch: int, size: int) -> Batch:
    """Strings of ``size`` random bits, as -1 and 1, and the parity of every prefix.

    Source: Schwarzschild et al., "Can you learn an algorithm?" (2021).
    """
    bits = rng.integers(0, 2, (batch, size))
    signs = (2.0 * bits - 1.0).astype(np.float32)
    return Batch(signs[..., None], np.cumsum(bits, 1) % 2)


def addition(rng: np.random.Generator, batch: int, size: int) -> Batch:
    """Two numbers of ``size`` digits, and the ``size`` + 1 digits of their sum.

    The last digit comes first. Most pairs of digits have the sum 9, so carries pass
    through long chains of them. Inputs have ten channels for each number. The last
    position has zeros.
    """
    shape = (batch, size + 1)
    digits = rng.integers(0, 10, (2, *shape))
    digits[1] = np.where(rng.random(shape) < CARRIED, 9 - digits[0], digits[1])
    digits[..., -1] = 0
    targets = np.empty(shape, int)
    carry = np.zeros(batch, int)
    for place in range(size + 1):
        carry, targets[:, place] = np.divmod(digits[:, :, place].sum(0) + carry, 10)
    inputs = np.concatenate(list(np.eye(10, dtype=np.float32)[digits]), axis=-1)
    return Batch(inputs, targets)


def mazes(rng: np.random.Generator, batch: int, size: int) -> Batch:
    """Mazes of ``size`` x ``size`` cells, and the cells of the path from start to end.

    The size is odd. A random depth-first search carves the spanning tree of a grid of
    rooms, every second cell, so there is only one path. Inputs have three channels:
    open cells, the start, the end.

    Source: the mazes of Schwarzschild et al. (2021), with a start and an end drawn from
    all rooms.
    """
    assert size % 2 == 1, "mazes have an odd number of cells per side"
    inputs = np.zeros((batch, size, size, 3), np.float32)
    targets = np.zeros((batch, size, size), int)
    places = range(0, size, 2)
    rooms = list(itertools.product(places, places))
    for maze, path in zip(inputs, targets, strict=True):
        _carve(rng, maze[..., 0], rooms[rng.integers(len(rooms))])
        ends = rng.choice(len(rooms), 2, replace=False)
        start, end = (rooms[place] for place in ends)
        maze[(*start, 1)] = maze[(*end, 2)] = 1.0
        for cell in shortest_path(maze[..., 0], start, end):
            path[cell] = 1
    return Batch(inputs, targets)


def shortest_path(
    free: np.ndarray, start: tuple[int, int], end: tuple[int, int]
) -> list[tuple[int, int]]:
    """The cells of a shortest path, both ends included, by breadth-first search."""
    before = {start: start}
    queue = deque([start])
    while end not in before:
        cell = queue.popleft()
        for neighbour in _neighbours(free.shape, cell, 1):
            if free[neighbour] and neighbour not in before:
                before[neighbour] = cell
                queue.append(neighbour)
    path = [end]
    while path[-1] != start:
        path.append(before[path[-1]])
    return path


def _carve(rng: np.random.Generator, free: np.ndarray, room: tuple[int, int]) -> None:
    free[room] = 1.0
    stack = [room]
    while stack:
        row, column = stack[-1]
        near = _neighbours(free.shape, stack[-1], 2)
        closed = [cell for cell in near if not free[cell]]
        if not closed:
            stack.pop()
            continue
        room = closed[rng.integers(len(closed))]
        free[room] = free[(row + room[0]) // 2, (column + room[1]) // 2] = 1.0
        stack.append(room)


def _neighbours(
    shape: tuple[int, ...], cell: tuple[int, int], distance: int
) -> list[tuple[int, int]]:
    row, column = cell
    near = [
        (row + distance, column),
        (row - distance, column),
        (row, column + distance),
        (row, column - distance),
    ]
    return [(a, b) for a, b in near if 0 <= a < shape[0] and 0 <= b < shape[1]]


class Task(NamedTuple):
    """A task of `LoopedNetwork`: examples, spatial axes, and classes of a position."""

    draw: Callable[[np.random.Generator, int, int], Batch]
    ndim: int
    classes: int


#: Tasks by their names on the command line.
TASKS = {
    "prefix-sums": Task(prefix_sums, 1, 2),
    "mazes": Task(mazes, 2, 2),
    "addition": Task(addition, 1, 10),
}
