"""The sources that need no files give the examples that they always gave, bit for bit."""

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from unroll_jax.train.config.data import DataConfig, ImageConfig, SceneConfig, TextConfig
from unroll_jax.train.data import images, text, video
from unroll_jax.train.data.splits import SPLITS

# Of the pixels or texts, and then the labels, of the first 32 examples and the last (2026-11). Another NumPy, Pillow or
# scikit-learn may draw or resize otherwise.
CHECKSUMS: dict[str, tuple[Callable[..., Any], Any, list[tuple[int, int]]]] = {
    "photos": (
        video.load, DataConfig, [(4267537629, 1330496547), (3332762510, 2563865812), (691965407, 1726145922)]
    ),
    "digits": (
        images.load, ImageConfig, [(3901182323, 2266321283), (2280913195, 3418233306), (1690287930, 4025265200)]
    ),
    "shapes": (
        images.load, SceneConfig, [(3849542539, 745226577), (1356877600, 1407319423), (217668509, 534264705)]
    ),
    "verdicts": (
        text.load, TextConfig, [(1353298469, 2353807033), (1055962674, 2106376478), (4221045552, 2608299255)]
    ),
}  # fmt: skip


def checksum(batch: Any) -> int:
    """CRC-32 of an array, or of the parts of a batch one after the other."""
    crc = 0
    for part in batch if isinstance(batch, tuple) else (batch,):
        if part is not None:
            crc = zlib.crc32("\n".join(part).encode() if isinstance(part, list) else part.tobytes(), crc)
    return crc


@pytest.mark.parametrize("source", CHECKSUMS)
def test_examples_are_what_they_were(source, tmp_path):
    load, config, expected = CHECKSUMS[source]
    data = load(config(prepared=str(tmp_path)), log=lambda line: None)
    first = np.arange(32)
    batches = [(data.read(split, first), data.read(split, data.num_examples(split) - 32 + first)) for split in SPLITS]
    assert [tuple(map(checksum, pair)) for pair in batches] == expected


@pytest.mark.slow
def test_statistics_are_what_they_were(tmp_path):
    quiet = {"log": lambda line: None}
    photos = video.load(DataConfig(prepared=str(tmp_path)), **quiet)
    shapes = images.load(SceneConfig(prepared=str(tmp_path)), **quiet)
    assert photos.pixel_std == 0.32481402160705397
    np.testing.assert_array_equal(shapes.mean, np.array([0.39712176, 0.4015909, 0.39637184], np.float32))
    np.testing.assert_array_equal(shapes.std, np.array([0.19604047, 0.19262077, 0.19741373], np.float32))
