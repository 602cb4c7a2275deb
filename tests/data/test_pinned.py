"""The sources that need no files give the batches that they always gave, bit for bit."""

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from unroll_jax.train.config.data import DataConfig, ImageConfig, SceneConfig, TextConfig
from unroll_jax.train.data import images, text, video

# Of the pixels or texts, and then the labels, of 32 examples: batch 0 of seed 0, and batch 1000 of seed 7. Noted before
# the sources were written anew (2026-11). Another NumPy, Pillow or scikit-learn may draw or resize otherwise.
CHECKSUMS: dict[str, tuple[Callable[..., Any], Any, dict[str, tuple[int, int]]]] = {
    "photos": (
        video.load,
        DataConfig,
        {
            "train": (492031262, 1118071161),
            "validation": (3260326878, 2875679892),
            "test": (3887396740, 1292030766),
        },
    ),
    "digits": (
        images.load,
        ImageConfig,
        {
            "train": (3741932027, 4260302211),
            "validation": (1393942618, 1410916315),
            "test": (2260269270, 3096779227),
        },
    ),
    "shapes": (
        images.load,
        SceneConfig,
        {
            "train": (3961624713, 933504657),
            "validation": (79648318, 2611683174),
            "test": (782108631, 3857620867),
        },
    ),
    "verdicts": (
        text.load,
        TextConfig,
        {
            "train": (2944090594, 1219379162),
            "validation": (3440634527, 437651397),
            "test": (933348805, 388497636),
        },
    ),
}


def checksum(batch: Any) -> int:
    """CRC-32 of an array, or of the parts of a batch one after the other."""
    crc = 0
    for part in batch if isinstance(batch, tuple) else (batch,):
        if part is not None:
            crc = zlib.crc32("\n".join(part).encode() if isinstance(part, list) else part.tobytes(), crc)
    return crc


@pytest.mark.parametrize("source", CHECKSUMS)
def test_batches_are_what_they_were(source, tmp_path):
    load, config, expected = CHECKSUMS[source]
    data = load(config(prepared=str(tmp_path)), log=lambda line: None)
    batches = {
        split: tuple(
            next(data.batches(split, batch_size=32, seed=seed, start_step=step)) for seed, step in ((0, 0), (7, 1000))
        )
        for split in expected
    }
    assert {split: tuple(map(checksum, pair)) for split, pair in batches.items()} == expected


@pytest.mark.slow
def test_statistics_are_what_they_were(tmp_path):
    quiet = {"log": lambda line: None}
    photos = video.load(DataConfig(prepared=str(tmp_path)), **quiet)
    shapes = images.load(SceneConfig(prepared=str(tmp_path)), **quiet)
    assert photos.pixel_std == 0.32481402160705397
    np.testing.assert_array_equal(shapes.mean, np.array([0.39712176, 0.4015909, 0.39637184], np.float32))
    np.testing.assert_array_equal(shapes.std, np.array([0.19604047, 0.19262077, 0.19741373], np.float32))
