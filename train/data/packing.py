"""Conversations packed into rows of tokens of one length, of which only the answers are learned."""

import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .reader import check_batches, in_order, read_ahead, shuffled

PADDING = 0  # the segment of padding
MULTIPLE = 8  # the number of positions is a multiple, so that splits seldom differ in it


class Tokens(NamedTuple):
    """A conversation as tokens, int32 (length,), of which those from ``first`` on are the answer."""

    tokens: np.ndarray
    first: int


class PackedBatch(NamedTuple):
    """Rows of texts, and the positions whose next token belongs to an answer.

    Attributes:
      tokens: numbers of tokens, int32 (batch, n).
      segments: of which text in the row each token is, from 1 on, int32 (batch, n); 0 is padding.
      places: positions that predict a token of an answer, int32 (batch, kept).
      labels: the token to predict there, int32 (batch, kept).
      weights: float32 (batch, kept), 1; or 0, where positions only fill up the row.
      owners: the number of the text in its split, int32 (batch, kept); -1 where it only fills up.
    """

    tokens: np.ndarray
    segments: np.ndarray
    places: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    owners: np.ndarray


class PackedData:
    """Splits of packed rows, held in memory; all batches of one size have one shape."""

    def __init__(self, splits: Mapping[str, Sequence[Tokens]], *, length: int, packing: bool) -> None:
        rows = {split: pack(list(map(_length, texts)), length if packing else 0) for split, texts in splits.items()}
        self.kept = max(kept_positions(texts, rows[split]) for split, texts in splits.items())
        self._splits = {split: arrays(texts, rows[split], length, self.kept) for split, texts in splits.items()}
        self.texts = {split: len(texts) for split, texts in splits.items()}

    def num_rows(self, split: str) -> int:
        """Returns the number of rows that the texts of a split fill."""
        return len(self._splits[split].tokens)

    def whole(self, split: str) -> PackedBatch:
        """All rows of a split."""
        return self._splits[split]

    def text(self, split: str, number: int) -> Tokens:
        """A text of a split, as it was packed."""
        whole = self._splits[split]
        rows, columns = np.nonzero(whole.owners == number)
        row, before = rows[0], whole.places[rows[0], columns[0]]
        (places,) = np.nonzero(whole.segments[row] == whole.segments[row, before])
        return Tokens(whole.tokens[row, places], int(before + 1 - places[0]))

    def steps_an_epoch(self, *, batch_size: int) -> int:
        """Batches that fit into a pass over the train split."""
        return max(self.num_rows("train") // batch_size, 1)

    def batches(
        self, split: str, *, batch_size: int, seed: int, start_step: int = 0, rows: np.ndarray | None = None
    ) -> Iterator[PackedBatch]:
        """Iterates over shuffled rows without end, from any step on; batch ``step`` depends on (seed, step) alone."""
        check_batches(batch_size, seed, start_step=start_step)
        read, count = self._reader(split), self.num_rows(split)
        return read_ahead(shuffled(count, read, batch_size=batch_size, seed=seed, rows=rows), start_step)

    def examples(self, split: str, *, batch_size: int) -> Iterator[PackedBatch]:
        """Iterates over a whole split once, in order; the last batch is filled up with rows that do not count."""
        check_batches(batch_size)
        read = self._reader(split)
        for batch in read_ahead(in_order(self.num_rows(split), read, batch_size=batch_size)):
            yield filled(batch, batch_size)

    def _reader(self, split: str) -> Callable[[np.ndarray], PackedBatch]:
        whole = self._splits[split]
        return lambda numbers: PackedBatch(*(part[np.asarray(numbers)] for part in whole))


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Texts by number in rows of a capacity: long texts first, each into the fullest row that has room for it.

    A capacity of 0 gives each text one row, in order.
    """
    if not capacity:
        return [[number] for number in range(len(lengths))]
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # left in each row, and its number, in rising order
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        place = bisect.bisect_left(room, (lengths[number], -1))
        left, row = room.pop(place) if place < len(room) else (capacity, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(number)
        bisect.insort(room, (left - lengths[number], row))
    return rows


def kept_positions(texts: Sequence[Tokens], rows: Sequence[Sequence[int]]) -> int:
    """Positions that count in the row that has the most of them, and a few more: a multiple of `MULTIPLE`."""
    most = max(sum(_length(texts[number]) - texts[number].first for number in row) for row in rows)
    return -(-most // MULTIPLE) * MULTIPLE


def arrays(texts: Sequence[Tokens], rows: Sequence[Sequence[int]], length: int, kept: int) -> PackedBatch:
    """Returns rows as arrays: texts one after another, padding at the end."""
    count = len(rows)
    tokens, segments = (np.zeros((count, length), np.int32) for _ in range(2))
    places, labels = (np.zeros((count, kept), np.int32) for _ in range(2))
    weights, owners = np.zeros((count, kept), np.float32), np.full((count, kept), -1, np.int32)
    for index, row in enumerate(rows):
        begun = filled_up = 0
        for segment, number in enumerate(row, start=1):
            text_tokens, first = texts[number]
            tokens[index, begun : begun + len(text_tokens)] = text_tokens
            segments[index, begun : begun + len(text_tokens)] = segment
            answer = slice(filled_up, filled_up + len(text_tokens) - first)
            places[index, answer] = begun + np.arange(first - 1, len(text_tokens) - 1)
            labels[index, answer] = text_tokens[first:]
            weights[index, answer], owners[index, answer] = 1.0, number
            begun, filled_up = begun + len(text_tokens), answer.stop
    return PackedBatch(tokens, segments, places, labels, weights, owners)


def filled(batch: PackedBatch, size: int) -> PackedBatch:
    """A batch of so many rows, the last of which may not count."""
    missing = size - len(batch.tokens)
    if missing == 0:
        return batch
    values = batch._asdict()
    added = {name: np.zeros((missing, *part.shape[1:]), part.dtype) for name, part in values.items()}
    added["owners"] -= 1
    return PackedBatch(*(np.concatenate([values[name], added[name]]) for name in PackedBatch._fields))


def _length(text: Tokens) -> int:
    return len(text.tokens)
