import functools
import re
import tarfile
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from tests.data.conftest import quiet, whole
from unroll_jax.train.config.data import ImageConfig
from unroll_jax.train.data.files import SPLITS
from unroll_jax.train.data.images import load
from unroll_jax.train.data.pictures import PictureData

FOLDERS = {"train/cat": 20, "train/dog": 30, "test/cat": 3, "test/dog": 4}


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> PictureData:
    return load(ImageConfig(prepared=str(tmp_path_factory.mktemp("prepared"))), log=quiet)


@pytest.fixture
def folder(opened):
    """Opens a root as a folder of images."""
    return functools.partial(opened, "image_folder")


def fingerprints(images) -> Counter:
    return Counter(image.tobytes() for image in images)


def test_digits_are_those_of_scikit_learn_dealt_to_three_splits(digits):
    assert [digits.num_examples(split) for split in SPLITS] == [1197, 200, 400]
    expected = np.rint(load_digits().images * 255 / 16).astype(np.uint8)
    batches = [whole(digits, split) for split in SPLITS]
    assert sum((fingerprints(batch.images) for batch in batches), Counter()) == fingerprints(expected)
    pairs = {(image.tobytes(), int(label)) for batch in batches for image, label in zip(*batch, strict=True)}
    assert pairs == {(e.tobytes(), int(t)) for e, t in zip(expected, load_digits().target, strict=True)}


@pytest.mark.parametrize("shares", [(0.1, [45, 5]), (0.4, [30, 20])])
def test_validation_is_cut_from_train(folder, write_images, shares):
    share, sizes = shares
    root = write_images(FOLDERS)
    data = folder(root, validation_share=share)
    assert [data.num_examples(split) for split in SPLITS] == [*sizes, 7]
    assert np.bincount(whole(data, "validation").labels).tolist() == [round(share * 20), round(share * 30)]
    files = fingerprints(np.asarray(Image.open(path)) for path in root.glob("train/*/*.png"))
    assert fingerprints(i for split in SPLITS[:2] for i in whole(data, split).images) == files


@pytest.mark.parametrize("name", ["validation", "val", "Val"])
def test_a_validation_folder_is_kept(folder, write_images, name):
    data = folder(write_images({**FOLDERS, f"{name}/cat": 1, f"{name}/dog": 2}))
    assert [data.num_examples(split) for split in SPLITS] == [50, 3, 7]


@pytest.mark.parametrize("suffix", ["png", "jpg"])
@pytest.mark.parametrize("packing", [None, ("w", False), ("w", True), ("w:gz", False), ("w:gz", True)])
def test_images_are_what_the_files_hold_however_they_are_packed(folder, write_images, pack, suffix, packing):
    root = write_images(FOLDERS, suffix=suffix)
    data = folder(root if packing is None else pack(root, packing[0], reverse=packing[1]))
    assert data.class_names == ("cat", "dog")
    assert data.shape == (5, 6, 3)
    paths = sorted(root.glob(f"test/*/*.{suffix}"))
    batch = whole(data, "test")
    np.testing.assert_array_equal(batch.images, np.stack([np.asarray(Image.open(path)) for path in paths]))
    assert batch.labels.tolist() == [data.class_names.index(path.parent.name) for path in paths]


def test_grey_images_have_one_channel(folder, write_images):
    root = write_images(FOLDERS, mode="L")
    assert folder(root).shape == (5, 6, 1)
    np.testing.assert_array_equal(whole(folder(root), "test").images[0, ..., 0], Image.open(root / "test/cat/0000.png"))


def test_what_is_passed_over_or_missing_is_said(folder, write_images):
    lines: list[str] = []
    folder(write_images({"train/cat": 20, "train/dog": 20, "test/cat": 3, "extra": 2}), lines.append)
    assert "  passing over 2 images outside of the splits" in lines
    assert "  test holds no images of dog" in lines


@pytest.mark.data
@pytest.mark.slow
def test_the_cifar10_archive_of_jpegs_is_read(real_data, folder, tmp_path):
    """A fifth of it: the number in a file's name ends with 0 or 5."""
    root = tmp_path / "cifar10.tar"
    with tarfile.open(real_data / "cifar10" / "cifar10_images.tar.gz") as whole, tarfile.open(root, "w") as some:
        for member in whole:
            if member.isfile() and re.search(r"[05]\.\w+$", member.name):
                some.addfile(member, whole.extractfile(member))
    data = folder(root)
    assert [data.num_examples(split) for split in SPLITS] == [9_000, 1_000, 2_000]
    assert data.shape == (32, 32, 3)
    assert data.class_names[::9] == ("airplane", "truck")
    for split, count in zip(SPLITS, (900, 100, 200), strict=True):
        labels = np.concatenate([batch.labels for batch in data.examples(split, batch_size=1000)])
        assert np.bincount(labels).tolist() == [count] * 10
    # Published for the binaries: mean 0.4914, 0.4822, 0.4465, std 0.2470, 0.2435, 0.2616.
    np.testing.assert_allclose(data.mean, [0.4914, 0.4822, 0.4465], atol=6e-3)
    np.testing.assert_allclose(data.std, [0.2470, 0.2435, 0.2616], atol=6e-3)
