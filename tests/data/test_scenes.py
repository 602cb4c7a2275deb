import shutil

import numpy as np
import pytest
from PIL import Image

from tests.data.conftest import whole
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.files import SPLITS

SIZE = (8, 6)  # width, height


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def camvid(tmp_path):
    """Random scenes in SegNet's layout, every label from 0 to 11 among them."""
    root, generator = tmp_path / "CamVid", np.random.default_rng(0)
    for folder, count in (("train", 4), ("val", 1), ("test", 2)):
        for number in range(count):
            save(root / folder / f"{number:03d}.png", generator.integers(0, 256, (*SIZE[::-1], 3), np.uint8))
            labels = generator.permutation(np.arange(48) % 12).reshape(SIZE[::-1]).astype(np.uint8)
            save(root / f"{folder}annot" / f"{number:03d}.png", labels)
    return root


def read(paths):
    return np.stack([np.asarray(Image.open(path)) for path in paths])


@pytest.mark.parametrize("packing", [None, ("w", False), ("w:gz", False), ("w:gz", True)])
def test_camvid_is_read_as_it_is_and_unlabelled_does_not_count(opened, camvid, pack, packing):
    root = camvid if packing is None else pack(camvid, packing[0], reverse=packing[1])
    data = opened("camvid", root)
    assert [data.num_examples(split) for split in SPLITS] == [4, 1, 2]
    assert (data.shape, len(data.class_names)) == ((6, 8, 3), 11)
    for split, folder in zip(SPLITS, ("train", "val", "test"), strict=True):
        batch = whole(data, split)
        np.testing.assert_array_equal(batch.images, read(sorted((camvid / folder).iterdir())))
        stored = read(sorted((camvid / f"{folder}annot").iterdir()))
        np.testing.assert_array_equal(batch.labels, np.where(stored == 11, 255, stored))


def test_the_numbers_of_a_palette_are_labels(opened, camvid):
    file = camvid / "testannot/000.png"
    stored = np.asarray(Image.open(file))
    picture = Image.fromarray(stored)
    picture.putpalette([200 - value for value in range(200)])
    picture.save(file)
    with Image.open(file) as saved:
        assert saved.mode == "P"
    labels = whole(opened("camvid", camvid), "test").labels[0]
    np.testing.assert_array_equal(labels, np.where(stored == 11, 255, stored))


def test_a_reduction_averages_images_and_keeps_labels(opened, camvid):
    data, full = opened("camvid", camvid, reduction=2), whole(opened("camvid", camvid), "train")
    batch = whole(data, "train")
    assert data.shape == (3, 4, 3)
    averages = full.images.reshape(4, 3, 2, 4, 2, 3).mean((2, 4))
    np.testing.assert_allclose(batch.images, averages, atol=0.51)
    np.testing.assert_array_equal(batch.labels, full.labels[:, 1::2, 1::2])


@pytest.mark.parametrize(("reduction", "message"), [(4, "must divide the size of the images, 8x6"), (0, "at least 1")])
def test_a_reduction_that_does_not_fit_is_refused(opened, camvid, reduction, message):
    with pytest.raises(UserError, match=message):
        opened("camvid", camvid, reduction=reduction)


def remove(name):
    return lambda root: shutil.rmtree(root / name) if (root / name).is_dir() else (root / name).unlink()


def relabel(split, number):
    """Gives every pixel of a split one label."""

    def spoil(root):
        for file in (root / f"{split}annot").iterdir():
            save(file, np.full(SIZE[::-1], number, np.uint8))

    return spoil


def put(name, pixels):
    return lambda root: save(root / name, pixels)


LABELS, COLOURS = np.zeros(SIZE[::-1], np.uint8), np.zeros((*SIZE[::-1], 3), np.uint8)
ODD = LABELS.copy()
ODD[2, 5] = 34
BAD = {
    "no train": (remove("train"), r"holds no train folder with images; the layout is ROOT/train/NAME.png"),
    "no validation": (remove("val"), r"holds no val folder"),
    "no labels": (remove("trainannot"), r"'train/000.png' has no counterpart"),
    "image missing": (remove("test/001.png"), r"'testannot/001.png' has no counterpart;"),
    "label beyond": (put("valannot/000.png", ODD), r"'valannot/000.png' .*it has the label 34; labels are 0 to 10"),
    "image size": (put("test/000.png", COLOURS[1:]), r"'test/000.png' .*it is 8x5, others are 8x6"),
    "coloured labels": (put("trainannot/002.png", COLOURS), r"one number of 8 bits a pixel, .* mode is RGB"),
    "no image": (lambda root: (root / "test/000.png").write_text("text"), r"'test/000.png' cannot be read"),
    "one class": (relabel("train", 3), r"labels of train have one class only \(road\); give"),
    "nothing labelled": (relabel("test", 11), r"labels of test have no class; give"),
    "two data sets": (put("old/train/1.png", COLOURS), r"holds several data sets \(\., old\)"),
}


@pytest.mark.parametrize(("spoil", "message"), BAD.values(), ids=BAD)
def test_bad_scenes_are_told_in_one_line(refused, camvid, spoil, message):
    spoil(camvid)
    refused("camvid", camvid, message)


@pytest.mark.data
def test_camvid_at_half_size_is_read_whole(opened, real_data):
    data = opened("camvid", real_data / "camvid" / "CamVid_240x180.tar")
    assert [data.num_examples(split) for split in SPLITS] == [200, 60, 100]
    assert data.shape == (180, 240, 3)
    counts = np.bincount(whole(data, "train").labels.ravel(), minlength=256)
    assert (counts[:11] > 0).all()
    assert not counts[11:255].any()
    names = np.array(data.class_names)[np.argsort(-counts[:11])]
    assert {"road", "building", "sky"} == set(names[:3])
