import shutil

import numpy as np
import pytest
from PIL import Image

from unroll_jax.train.data import images
from unroll_jax.train.data.files import SPLITS

RECORDS = 20  # of each file, instead of 10,000
FOLDERS = {"train/cat": 10, "train/dog": 10, "test/cat": 2, "test/dog": 2}


@pytest.fixture
def batches(monkeypatch, tmp_path):
    """The six files of CIFAR-10 in its binary version, each of 20 random records, two of each class."""
    monkeypatch.setattr(images, "RECORDS", RECORDS)
    root = tmp_path / images.FOLDER
    root.mkdir()
    generator = np.random.default_rng(0)
    for name in images.FILES:
        labels = generator.permutation(np.arange(RECORDS, dtype=np.uint8) % 10)
        pixels = generator.integers(0, 256, (RECORDS, 3072), np.uint8)
        (root / name).write_bytes(np.column_stack([labels, pixels]).tobytes())
    (root / "batches.meta.txt").write_text("airplane\n")
    return root


def parsed(content):
    """The records of a file, byte by byte as the data set's page describes them."""
    for start in range(0, len(content), 3073):
        record = content[start : start + 3073]
        image = np.zeros((32, 32, 3), np.uint8)
        for channel in range(3):
            plane = record[1 + 1024 * channel : 1025 + 1024 * channel]
            image[..., channel] = np.array(list(plane)).reshape(32, 32)
        yield image.tobytes(), record[0]


@pytest.mark.parametrize("place", ["folder", "folder above", "packed archive", "folder of the archive"])
def test_cifar10_records_are_those_of_the_files(batches, opened, pack, place):
    root = {"folder": batches, "folder above": batches.parent}.get(place)
    if root is None:
        root = pack(batches, "w" if place == "archive" else "w:gz").rename(batches.parent / images.ARCHIVE)
        root = root.parent if place == "folder of the archive" else root
    data = opened("cifar10", root)
    assert data.shape == (32, 32, 3)
    assert data.class_names == images.CLASSES
    assert [data.num_examples(split) for split in SPLITS] == [90, 10, 20]
    test = [*parsed((batches / "test_batch.bin").read_bytes())]
    train = [pair for name in images.PARTS["train"] for pair in parsed((batches / name).read_bytes())]
    read = {
        split: [
            (image.tobytes(), label)
            for batch in data.examples(split, batch_size=50)
            for image, label in zip(batch.images, batch.labels.tolist(), strict=True)
        ]
        for split in SPLITS
    }
    assert read["test"] == test
    assert sorted(read["train"] + read["validation"]) == sorted(train)


def shorten(name, by):
    def spoil(root):
        content = (root / name).read_bytes()
        (root / name).write_bytes(content[:-by])

    return spoil


def mislabel(root):
    content = bytearray((root / "data_batch_3.bin").read_bytes())
    content[3073 * 7] = 10
    (root / "data_batch_3.bin").write_bytes(content)


def give_one_class(root):
    for name in images.PARTS["train"]:
        content = bytearray((root / name).read_bytes())
        content[::3073] = bytes([3] * RECORDS)
        (root / name).write_bytes(content)


def make_cifar100(root):
    for name in images.FILES:
        (root / name).unlink()
    (root / "train.bin").write_bytes(bytes(3074))


BAD_BATCHES = {
    "a file cut short": (shorten("data_batch_2.bin", 100), r"data_batch_2.bin has 61,360 bytes instead of 61,460"),
    "a missing file": (lambda root: (root / "data_batch_5.bin").unlink(), r"data_batch_5.bin"),
    "a class beyond the last": (mislabel, r"data_batch_3.bin has the class 10; classes are 0 to 9"),
    "one class": (give_one_class, r"data.root=.*: labels of train have one class only \(cat\)"),
    "CIFAR-100": (make_cifar100, r"holds no data_batch_1.bin; give cifar-10-binary.tar.gz"),
}


@pytest.mark.parametrize(("spoil", "message"), BAD_BATCHES.values(), ids=BAD_BATCHES)
def test_bad_cifar10_files_are_told_in_one_line(batches, refused, spoil, message):
    spoil(batches)
    refused("cifar10", batches, message)


def write(name, content):
    def spoil(root):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            (root / name).write_bytes(content)
        else:
            content.save(root / name)

    return spoil


def recolour(split):
    """Makes all images of a split the same plain one."""

    def spoil(root):
        for file in (root / split).rglob("*.png"):
            Image.new("RGB", (6, 5), (1, 2, 3)).save(file)

    return spoil


def remove(name):
    return lambda root: shutil.rmtree(root / name)


OTHER_SIZE = Image.new("RGB", (7, 5))
BAD_FOLDERS = {
    "no train": (remove("train"), r"holds no train folder with images; the layout is ROOT/train/CLASS"),
    "no test": (remove("test"), r"holds no test folder with images"),
    "one class": (remove("train/dog"), r"'test/dog/0000.png' is of class dog, which train lacks"),
    "a class of test alone": (write("test/cow/1.png", OTHER_SIZE), r"'test/cow/1.png' is of class cow, which train"),
    "another size": (write("train/cat/0001.png", OTHER_SIZE), r"'train/cat/0001.png' .*it is 7x5, others are 6x5"),
    "no class folder": (write("train/1.png", OTHER_SIZE), r"'train/1.png' is not in the folder of a class"),
    "no image": (write("train/cat/a.png", b"text"), r"image 'train/cat/a.png' cannot be read as an image \(not an im"),
    "16 bits": (write("test/cat/a.png", Image.new("I;16", (6, 5))), r"'test/cat/a.png' .* more than 8 bits"),
    "one colour": (recolour("train"), r"data.root=.*: all images of train are of one colour; give images that differ"),
    "an image alone in its class": (write("train/ant/1.png", Image.new("RGB", (6, 5))), r"'ant' has a single"),
    "two data sets": (write("old/train/cat/1.png", OTHER_SIZE), r"holds several data sets \(\., old\)"),
}


@pytest.mark.parametrize(("spoil", "message"), BAD_FOLDERS.values(), ids=BAD_FOLDERS)
def test_bad_folders_of_images_are_told_in_one_line(refused, write_images, spoil, message):
    root = write_images(FOLDERS)
    spoil(root)
    refused("image_folder", root, message)
