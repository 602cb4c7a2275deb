"""What is prepared goes to the disk record by record, so that data may be larger than memory."""

import weakref

import numpy as np
import tensorflow_datasets as tfds

from unroll_jax.train.data.prepare import Builder, Kind, Originals, _write
from unroll_jax.train.data.reader import Records
from unroll_jax.train.data.splits import SPLITS


def test_no_more_than_a_few_records_are_in_memory_and_all_come_back(tmp_path):
    made: list[weakref.ref] = []
    most = {"alive": 0}

    def records(count):
        for number in range(count):
            pixels = np.full(16, number % 256, np.uint8)
            made.append(weakref.ref(pixels))
            yield {"pixels": pixels}
            most["alive"] = max(most["alive"], sum(one() is not None for one in made))

    features = {"pixels": tfds.features.Tensor(shape=(16,), dtype=np.uint8, encoding="bytes")}
    sizes = dict(zip(SPLITS, (300, 20, 7), strict=True))
    originals = Originals(features, {split: records(size) for split, size in sizes.items()}, {"of": "train"})
    builder = Builder(tmp_path, Kind("made", "1.0.0"), originals)
    _write(builder)
    assert most["alive"] <= 3
    again = tfds.builder_from_directory(tmp_path / "made" / "1.0.0")
    for split, size in sizes.items():
        stored = Records(again, split)
        assert len(stored) == size
        values = [np.frombuffer(pixels, np.uint8) for (pixels,) in stored.read(range(size), "pixels")]
        np.testing.assert_array_equal(values, np.tile(np.arange(size)[:, None] % 256, 16))
