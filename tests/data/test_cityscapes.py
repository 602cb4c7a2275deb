"""Cityscapes equals the contents of files in its layout: 19 classes by label ids,
splits by folder and city."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.data.conftest import pack, write
from unroll_jax.train.data.files import SPLITS

# The table of cityscapesScripts: label id of each train id, in their order.
IDS = [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]
SCENES = {
    "train/aachen/aachen_000000_000019": "train",
    "train/aachen/aachen_000001_000019": "train",
    "train/bochum/bochum_000000_000313": "train",
    "train/zurich/zurich_000000_000019": "validation",
    "val/frankfurt/frankfurt_000000_000294": "test",
    "val/munster/munster_000000_000019": "test",
}


def scene_file(name):
    return f"leftImg8bit/{name}_leftImg8bit.png"


def map_file(name, kind="labelIds"):
    return f"gtFine/{name}_gtFine_{kind}.png"


def contents():
    """Scenes with maps of every id, the other pictures of gtFine, and a test split
    whose maps are blank."""
    generator, files = np.random.default_rng(1), {}
    for name in [*SCENES, "test/berlin/berlin_000000_000019"]:
        files[scene_file(name)] = generator.integers(0, 256, (6, 8, 3), np.uint8)
        ids = generator.permutation(np.r_[np.arange(34), [255] * 14]).astype(np.uint8)
        files[map_file(name)] = ids.reshape(6, 8)
        files[map_file(name, "color")] = np.zeros((6, 8, 3), np.uint8)
    return files


FILES = contents()


@pytest.fixture
def root(tmp_path):
    return write(tmp_path / "cityscapes", FILES)


@pytest.mark.parametrize("mode", [None, "w"])
def test_scenes_and_the_19_classes_are_those_of_the_files(opened, root, mode):
    data = opened("cityscapes", pack(root, mode))
    assert (data.shape, len(data.class_names)) == ((6, 8, 3), 19)
    assert (data.class_names[0], data.class_names[-1]) == ("road", "bicycle")
    for split in SPLITS:
        batch = data.whole(split)
        names = [name for name, place in SCENES.items() if place == split]
        maps = [FILES[map_file(name)] for name in names]
        scenes = [FILES[scene_file(name)] for name in names]
        assert_array_equal(batch.images, scenes)
        for number, label_id in enumerate(IDS):
            expected = np.stack(maps) == label_id
            assert_array_equal(batch.labels == number, expected)
        ignored = ~np.isin(maps, IDS)
        assert_array_equal(batch.labels == 255, ignored)
