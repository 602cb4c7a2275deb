"""Batches by number, and epochs: functions of the seed and the step."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from unroll_jax.train.data.prepared import (
    read_ahead,
    shuffled,
)


def identity(numbers: np.ndarray) -> np.ndarray:
    return numbers


def take(
    num_records: int, count: int, *, batch_size: int = 4, seed: int = 0
) -> np.ndarray:
    batches = shuffled(num_records, identity, batch_size=batch_size, seed=seed)
    return np.array(list(itertools.islice(read_ahead(batches), count)))


@pytest.mark.parametrize(
    ("num_records", "batches", "batch_size"), [(10, 15, 4), (3, 6, 10), (40, 30, 4)]
)
def test_an_epoch_visits_each_record_once_in_new_order(
    num_records, batches, batch_size
):
    epochs = take(num_records, batches, batch_size=batch_size).reshape(-1, num_records)
    assert_array_equal(
        np.sort(epochs), np.tile(np.arange(num_records), (len(epochs), 1))
    )
    assert num_records < 40 or len({tuple(epoch) for epoch in epochs}) == len(epochs)


@pytest.mark.parametrize("start", [0, 1000])
def test_batches_depend_on_seed_and_step_also_in_processes(
    start,
):
    batches, parts = (
        shuffled(10, identity, batch_size=4, seed=5),
        (np.array([0, 3]), np.array([1, 2])),
    )
    from_iterator = itertools.islice(read_ahead(batches, start), 10)  # four epochs
    again = shuffled(10, identity, batch_size=4, seed=5)
    of_processes = [
        shuffled(10, identity, batch_size=4, seed=5, rows=rows) for rows in parts
    ]
    for step, batch in enumerate(from_iterator, start=start):
        assert_array_equal(batch, again[step])
        for rows, some in zip(parts, of_processes, strict=True):
            assert_array_equal(some[step], batch[rows])
    assert (take(100, 50, seed=3) != take(100, 50, seed=4)).any()
