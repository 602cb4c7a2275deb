"""One rule for files of your own: their source is known, folders of classes or of
splits are read alike by every task, and runs have steps or epochs."""

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from tests.data.conftest import pack, write_pictures
from tests.errors import one_line
from unroll_jax.train.core.plan import in_steps, make_plan
from unroll_jax.train.data.files import SPLITS
from unroll_jax.train.registry import EXPERIMENTS, open_task
from unroll_jax.train.tasks.image_sets.options import SetConfig
from unroll_jax.train.tasks.images.options import ImageConfig, SceneConfig
from unroll_jax.train.tasks.language.options import InstructionConfig
from unroll_jax.train.tasks.sparse_coding.options import CodeConfig
from unroll_jax.train.tasks.text.options import TextConfig
from unroll_jax.train.tasks.video.options import DataConfig

# By the name of a file below the root: the options, and the source of such files.
PLACES = [
    ("photos/cat/1.png", ImageConfig, "image_folder"),
    ("photos/train/cat/1.png", ImageConfig, "image_folder"),
    ("cifar/data_batch_1.bin", ImageConfig, "cifar10"),
    ("photos/cat/1.png", CodeConfig, "image_folder"),
    ("photos/cat/1.png", SetConfig, "class_folders"),
    ("CamVid/trainannot/1.png", SceneConfig, "camvid"),
    ("town/leftImg8bit/train/bonn/1.png", SceneConfig, "cityscapes"),
    ("reviews.csv", TextConfig, "table"),
    ("tables/train.tsv", TextConfig, "table"),
    ("SST-2/train.tsv", TextConfig, "sst2"),
    ("multinli_1.0/multinli_1.0_train.jsonl", TextConfig, "mnli"),
    ("reviews/aclImdb/train/pos/0_9.txt", TextConfig, "imdb"),
    ("answers.jsonl", InstructionConfig, "alpaca"),
    ("clips/a.mp4", DataConfig, "video"),
]


@pytest.mark.parametrize(("path", "kind", "source"), PLACES)
@pytest.mark.parametrize("packed", [None, "w:gz", "zip"])
def test_the_source_is_known_from_what_lies_at_the_root(
    tmp_path, path, kind, source, packed
):
    root = tmp_path / path.partition("/")[0]
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_bytes(b"any")
    if root.is_dir():
        root = pack(root, packed)
    assert kind(root=str(root)).source == source


def test_a_source_that_is_given_stays():
    usual = ImageConfig()
    assert usual.source == "digits"
    given = dataclasses.replace(usual, source="cifar10", root="somewhere")
    assert given.source == "cifar10"
    # a root that cannot be read is an error of one line where it is prepared
    for root in ("nowhere", "~nobody/images", 300 * "x"):
        assert ImageConfig(root=root).source == "image_folder"


COUNTS = {"cat": 12, "dog": 12}
TRAIN = {f"train/{name}": count for name, count in COUNTS.items()}
# Images by folder, in all splits, and in test.
LAYOUTS = {
    "classes": (COUNTS, 24, 6),
    "train": (TRAIN, 24, 6),
    "a class named after a split": ({"train": 12, "dog": 12}, 24, 6),
    "train and test": (TRAIN | {"test/cat": 5, "test/dog": 4}, 33, 9),
}


@pytest.mark.parametrize("source", ["image_folder", "class_folders"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_folders_of_classes_and_splits_are_read_by_every_task(
    opened, tmp_path, source, layout
):
    folders, total, tested = LAYOUTS[layout]
    root = write_pictures(tmp_path / "images", folders)
    size = {"set_size": 4} if source == "class_folders" else {}
    data = opened(source, root, validation_share=0.25, **size)
    names = data.class_names if source == "image_folder" else data.spec.class_names
    assert names == (("cat", "dog") if "split" not in layout else ("dog", "train"))
    count = data.num_examples if source == "image_folder" else data.num_images
    assert (sum(map(count, SPLITS)), count("test")) == (total, tested)


def test_images_of_several_sizes_are_brought_to_one(opened, tmp_path):
    root = write_pictures(tmp_path / "images", COUNTS)
    write_pictures(root, {"dog": 1}, size=(9, 7))
    with one_line("bring all to one, or give data.size"):
        opened("image_folder", root)
    data = opened("image_folder", root, size=8)
    assert data.shape == (8, 8, 3)
    assert data.whole("test").images.shape[1:] == (8, 8, 3)
    grey = write_pictures(tmp_path / "grey", COUNTS, mode="L")
    assert opened("image_folder", grey, size=8).shape == (8, 8, 1)


def test_wide_images_of_one_size_become_squares_if_told(opened, tmp_path):
    root, lines = write_pictures(tmp_path / "wide", COUNTS, size=(9, 7)), []
    assert opened("image_folder", root).shape == (7, 9, 3)
    data = opened("image_folder", root, lines.append, size=8)
    assert "  images of other shapes are resized to squares of --data.size" in lines
    images = np.concatenate([data.whole(split).images for split in SPLITS])
    expected = []
    for file in root.glob("*/*.png"):
        with Image.open(file) as picture:
            resized = picture.resize((8, 8), Image.Resampling.BILINEAR)
            expected.append(np.asarray(resized).tobytes())
    assert sorted(image.tobytes() for image in images) == sorted(expected)


@pytest.mark.parametrize("name", ["image-opteq", "certified-digits", "image-sets"])
def test_runs_have_steps_or_epochs(name, tmp_path):
    config = EXPERIMENTS[name].config
    data = dataclasses.replace(config.data, prepared=str(tmp_path))
    config = dataclasses.replace(config, data=data)
    task = open_task(config, lambda line: None)
    # an epoch of sets has about each image once
    samples = task.num_examples or 1197 // config.data.set_size
    epoch = samples // config.batch_size
    for length, expected in (({"epochs": 3}, 3 * epoch), ({"steps": 17}, 17)):
        options = in_steps(dataclasses.replace(config, **length), task)
        plan = make_plan(task.make(options))
        assert plan.num_steps == expected
    assert_array_equal(plan.weights[:-1], 0.0)
