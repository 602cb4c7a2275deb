"""Cityscapes equals the contents of files in its layout: 19 classes by label ids,
splits by folder and city."""

import numpy as np
import pytest
from PIL import Image

from tests.data.conftest import pack
from unroll_jax.train.config.errors import UserError
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


def scene_file(root, name):
    return root / "leftImg8bit" / f"{name}_leftImg8bit.png"


def map_file(root, name, kind="labelIds"):
    return root / "gtFine" / f"{name}_gtFine_{kind}.png"


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def root(tmp_path):
    """Scenes with maps of every id, the other pictures of gtFine, and a test split
    whose maps are blank."""
    root = tmp_path / "cityscapes"
    generator = np.random.default_rng(1)
    for name in [*SCENES, "test/berlin/berlin_000000_000019"]:
        save(scene_file(root, name), generator.integers(0, 256, (6, 8, 3), np.uint8))
        ids = generator.permutation(np.r_[np.arange(34), [255] * 14]).astype(np.uint8)
        save(map_file(root, name), ids.reshape(6, 8))
        save(map_file(root, name, "color"), np.zeros((6, 8, 3), np.uint8))
    return root


def names_of(split):
    return [name for name, place in SCENES.items() if place == split]


@pytest.mark.parametrize("mode", [None, "w"])
def test_scenes_and_the_19_classes_are_those_of_the_files(opened, root, mode):
    data = opened("cityscapes", pack(root, mode))
    assert (data.shape, len(data.class_names)) == ((6, 8, 3), 19)
    assert (data.class_names[0], data.class_names[-1]) == ("road", "bicycle")
    for split in SPLITS:
        batch = data.whole(split)
        scenes = [np.asarray(Image.open(scene_file(root, n))) for n in names_of(split)]
        maps = [np.asarray(Image.open(map_file(root, n))) for n in names_of(split)]
        np.testing.assert_array_equal(batch.images, scenes)
        for number, label_id in enumerate(IDS):
            expected = np.stack(maps) == label_id
            np.testing.assert_array_equal(batch.labels == number, expected)
        ignored = ~np.isin(maps, IDS)
        np.testing.assert_array_equal(batch.labels == 255, ignored)


def test_a_reduction_divides_the_sides(opened, root):
    assert opened("cityscapes", root, reduction=2).shape == (3, 4, 3)


def lose_a_map(root):
    map_file(root, "val/munster/munster_000000_000019").unlink()


def write_an_unknown_id(root):
    save(map_file(root, names_of("train")[0]), np.full((6, 8), 40, np.uint8))


def keep_one_city(root):
    for name in [*names_of("validation"), "train/bochum/bochum_000000_000313"]:
        scene_file(root, name).unlink()
        map_file(root, name).unlink()


def lose_val(root):
    for name in names_of("test"):
        scene_file(root, name).unlink()
        map_file(root, name).unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_a_map, "munster_000000_000019_leftImg8bit.png' has no counterpart"),
        (write_an_unknown_id, "label id 40"),
        (keep_one_city, "two cities of train"),
        (lose_val, "no scenes of val"),
    ],
)
def test_a_damaged_layout_is_an_error_of_one_line(opened, root, damage, message):
    damage(root)
    with pytest.raises(UserError, match=message) as error:
        opened("cityscapes", root)
    assert "\n" not in str(error.value)
