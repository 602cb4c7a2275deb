"""Images and scenes equal the contents of files: digits, folders of classes,
CIFAR-10 and CamVid."""

import re
import tarfile
from collections import Counter

import chex
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from sklearn.datasets import load_digits

from tests.data.conftest import pack, write_pictures
from tests.data.test_errors import RECORDS, SCENES
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.files import SPLITS
from unroll_jax.train.tasks.images import data as images

FOLDERS = {"train/cat": 20, "train/dog": 30, "test/cat": 3, "test/dog": 4}


def sizes(data):
    return [data.num_examples(split) for split in SPLITS]


def pairs(*batches) -> Counter:
    return Counter(
        (image.tobytes(), int(label))
        for batch in batches
        for image, label in zip(*batch, strict=True)
    )


def read(paths):
    return np.stack([np.asarray(Image.open(path)) for path in sorted(paths)])


def test_digits_are_those_of_scikit_learn_dealt_to_three_splits(opened):
    digits = opened("digits")
    assert sizes(digits) == [1197, 200, 400]
    bunch = load_digits()
    pixels = np.rint(bunch.images * 255 / 16).astype(np.uint8)
    dealt = pairs(*(digits.whole(split) for split in SPLITS))
    assert dealt == pairs((pixels, bunch.target))


@pytest.mark.parametrize(
    ("suffix", "shape", "mode", "reverse"),
    [
        ("png", (5, 6, 3), None, False),
        ("jpg", (5, 6, 3), "w", True),
        ("png", (5, 6, 1), "w:gz", False),
    ],
)
def test_images_are_what_the_files_hold_however_they_are_packed(
    opened, tmp_path, suffix, shape, mode, reverse
):
    root = write_pictures(
        tmp_path / "images",
        FOLDERS,
        suffix=suffix,
        mode="RGB" if shape[-1] == 3 else "L",
    )
    data = opened("image_folder", pack(root, mode, reverse=reverse))
    assert (data.class_names, data.shape) == (("cat", "dog"), shape)
    batch = data.whole("test")
    assert_array_equal(batch.images, read(root.glob("test/*/*")).reshape(7, *shape))
    assert batch.labels.tolist() == [0] * 3 + [1] * 4
    pixels = data.whole("train").images.reshape(-1, shape[-1]) / 255
    assert_allclose(data.mean, pixels.mean(axis=0), rtol=1e-5)
    assert_allclose(data.std, pixels.std(axis=0), rtol=1e-5)


def test_a_validation_folder_is_kept_and_other_files_are_logged(opened, tmp_path):
    lines: list[str] = []
    counts = {
        "train/cat": 20,
        "train/dog": 20,
        "Val/cat": 1,
        "Val/dog": 2,
        "test/cat": 3,
        "extra": 2,
    }
    counts |= {"scripts/val": 0, "annotations/val": 0}
    root = write_pictures(tmp_path / "images", counts)
    for name in ("annotations/val/001.xml", "train/cat/a.txt", "README"):
        (root / name).write_text("P1 is no picture")
    assert sizes(opened("image_folder", root, lines.append)) == [40, 3, 3]
    assert "  passing over 2 images outside of the splits, as 'extra/001.png'" in lines
    assert "  test holds no images of dog" in lines
    assert any("passing over 3 file(s) of other kinds" in line for line in lines)


@pytest.mark.parametrize("packed", [False, True])
def test_cifar10_records_are_those_of_the_files(opened, tmp_path, monkeypatch, packed):
    monkeypatch.setattr(images, "RECORDS", len(RECORDS))
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    generator = np.random.default_rng(0)
    contents = {name: generator.permuted(RECORDS, axis=1) for name in images.FILES}
    for name, records in contents.items():
        records[:, 0] = RECORDS[:, 0]
        (folder / name).write_bytes(records.tobytes())
    data = opened("cifar10", pack(folder, "w:gz") if packed else tmp_path)
    assert (data.shape, data.class_names) == ((32, 32, 3), images.CLASSES)
    assert sizes(data) == [90, 10, 20]

    def parsed(*names):
        """A label, then planes of red, green and blue, as the data set's page says."""
        records = np.concatenate([contents[name] for name in names])
        planes = records[:, 1:].reshape(-1, 3, 32, 32)
        return planes.transpose(0, 2, 3, 1), records[:, 0].astype(np.int32)

    train, validation, test = (data.whole(split) for split in SPLITS)
    chex.assert_trees_all_equal(tuple(test), parsed("test_batch.bin"))
    assert pairs(train, validation) == pairs(parsed(*images.PARTS["train"]))


@pytest.fixture
def camvid(tmp_path):
    generator = np.random.default_rng(0)
    for name, pixels in SCENES.items():
        path = tmp_path / "CamVid" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(
            generator.permuted(pixels) if "annot" in name else pixels
        )
        if name == "testannot/001.png":
            picture.putpalette([200 - value for value in range(200)])
        picture.save(path)
    return tmp_path / "CamVid"


@pytest.mark.parametrize(("mode", "reverse"), [(None, False), ("w:gz", True)])
def test_camvid_is_read_by_the_numbers_of_its_palettes(opened, camvid, mode, reverse):
    with Image.open(camvid / "testannot/001.png") as picture:
        assert picture.mode == "P"
    data = opened("camvid", pack(camvid, mode, reverse=reverse))
    assert (sizes(data), data.shape, len(data.class_names)) == (
        [4, 1, 2],
        (6, 8, 3),
        11,
    )
    for split, folder in zip(SPLITS, ("train", "val", "test"), strict=True):
        batch, stored = data.whole(split), read((camvid / f"{folder}annot").iterdir())
        assert_array_equal(batch.images, read((camvid / folder).iterdir()))
        assert_array_equal(batch.labels, np.where(stored == 11, 255, stored))


def test_a_reduction_averages_images_and_keeps_labels(opened, camvid):
    full = opened("camvid", camvid).whole("train")
    data = opened("camvid", camvid, reduction=2)
    batch = data.whole("train")
    assert data.shape == (3, 4, 3)
    means = full.images.reshape(4, 3, 2, 4, 2, 3).mean((2, 4))
    assert_allclose(batch.images, means, atol=0.51)
    assert_array_equal(batch.labels, full.labels[:, 1::2, 1::2])
    with pytest.raises(
        UserError, match=r"data\.reduction.* must divide the size of the images, 8x6"
    ):
        opened("camvid", camvid, reduction=4)


@pytest.mark.data
@pytest.mark.slow
def test_the_cifar10_archive_of_jpegs_is_read(real_data, opened, tmp_path):
    """A fiftieth of it, chosen by the numbers of the files."""
    root = tmp_path / "cifar10.tar"
    archive = real_data / "cifar10" / "cifar10_images.tar.gz"
    with tarfile.open(archive) as everything, tarfile.open(root, "w") as some:
        for member in everything:
            if member.isfile() and re.search(r"[05]0\.\w+$", member.name):
                some.addfile(member, everything.extractfile(member))
    data = opened("image_folder", root)
    assert (sizes(data), data.shape) == ([900, 100, 200], (32, 32, 3))
    assert data.class_names[::9] == ("airplane", "truck")
    counts = [np.bincount(data.whole(split).labels).tolist() for split in SPLITS]
    assert counts == [[90] * 10, [10] * 10, [20] * 10]


@pytest.mark.data
def test_camvid_at_half_size_is_read_whole(opened, real_data):
    data = opened("camvid", real_data / "camvid" / "CamVid_240x180.tar")
    assert (sizes(data), data.shape) == ([200, 60, 100], (180, 240, 3))
    counts = np.bincount(data.whole("train").labels.ravel(), minlength=256)
    assert (counts[:11] > 0).all()
    assert not counts[11:255].any()
    assert {"road", "building", "sky"} == set(
        np.array(data.class_names)[np.argsort(-counts[:11])][:3]
    )
