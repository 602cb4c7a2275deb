"""The sources that need no files: the properties of their examples, the same bit for
bit every time."""

import zlib
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from unroll_jax.train.data import generated
from unroll_jax.train.data.files import SPLITS

# Of pixels or texts, then labels, of the first 32 examples and the last (2026-11).
# Other versions of NumPy may differ.
CHECKSUMS: dict[str, list[tuple[int, int]]] = {
    "photos": [
        (4267537629, 1330496547),
        (3332762510, 2563865812),
        (691965407, 1726145922),
    ],
    "digits": [
        (3901182323, 2266321283),
        (2280913195, 3418233306),
        (1690287930, 4025265200),
    ],
    "shapes": [
        (3849542539, 745226577),
        (1356877600, 1407319423),
        (217668509, 534264705),
    ],
    "verdicts": [
        (1353298469, 2353807033),
        (1055962674, 2106376478),
        (4221045552, 2608299255),
    ],
}


def checksum(batch: Any) -> int:
    crc = 0
    for part in batch if isinstance(batch, tuple) else (batch,):
        if part is not None:
            crc = zlib.crc32(
                "\n".join(part).encode() if isinstance(part, list) else part.tobytes(),
                crc,
            )
    return crc


@pytest.mark.parametrize("source", CHECKSUMS)
def test_examples_and_statistics_are_what_they_were(opened, source):
    data, first = opened(source), np.arange(32)
    batches = [
        (
            data.read(split, first),
            data.read(split, data.num_examples(split) - 32 + first),
        )
        for split in SPLITS
    ]
    assert [tuple(map(checksum, pair)) for pair in batches] == CHECKSUMS[source]
    if source == "photos":
        assert data.pixel_std == 0.32481402160705397
    if source == "shapes":
        assert_array_equal(
            data.mean, np.array([0.39712176, 0.4015909, 0.39637184], np.float32)
        )
        assert_array_equal(
            data.std, np.array([0.19604047, 0.19262077, 0.19741373], np.float32)
        )


def test_regions_of_splits_of_photos_share_no_pixel():
    for photo in range(2):
        tiles = [tile for split in SPLITS for tile in generated.TILES[split][photo]]
        assert sorted(tiles) == [
            (row, column) for row in range(2) for column in range(4)
        ]
    assert 2 * generated.TILE_HEIGHT <= 427
    assert 4 * generated.TILE_WIDTH <= 640
    assert min(generated.TILE_HEIGHT, generated.TILE_WIDTH) >= generated.LARGEST_VIEW


def test_verdicts_are_distinct_and_balanced(
    opened,
):
    train, validation, test = (opened("verdicts").whole(split) for split in SPLITS)
    texts = [text for batch in (train, validation, test) for text in batch.texts]
    assert len(set(texts)) == len(texts) == 2800
    assert [batch.labels.sum() for batch in (train, validation, test)] == [
        1000,
        200,
        200,
    ]
