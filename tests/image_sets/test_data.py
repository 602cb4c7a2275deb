"""Images from folders of classes, and sets of them."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from tests.image_sets.conftest import CLASSES, COUNT
from unroll_jax.train.tasks.image_sets.data import NUM_SETS, SetSpec


def test_folders_become_stratified_splits_of_grey_images(data, folders):
    assert data.spec.class_names == CLASSES
    assert {split: data.num_images(split) for split in NUM_SETS} == {
        "train": 36,
        "validation": 12,
        "test": 12,
    }
    everything = []
    for place, name in enumerate(CLASSES):
        images = np.concatenate([data.by_class(split)[place] for split in NUM_SETS])
        grey = [
            Image.open(folders / name / f"{number:02d}.png").convert("L")
            for number in range(COUNT)
        ]
        expected = np.stack(
            [
                np.asarray(one.resize((4, 4), Image.Resampling.BILINEAR)).ravel()
                for one in grey
            ]
        )
        assert_array_equal(np.unique(images, axis=0), np.unique(expected, axis=0))
        everything.append(data.by_class("train")[place])
    assert data.spec.pixel_std == pytest.approx(
        np.std(np.concatenate(everything) / 255.0), rel=1e-5
    )
    assert SetSpec.from_json(data.spec.to_json()) == data.spec


def test_sets_have_as_many_images_of_each_class(data):
    sets = data.draw("train", 50, seed=1)
    assert (sets.shape, sets.dtype) == ((50, 4, 16), np.uint8)
    known = [{image.tobytes() for image in images} for images in data.by_class("train")]
    pairs = set()
    for one in sets:
        classes = [
            place
            for image in one
            for place in range(3)
            if image.tobytes() in known[place]
        ]
        assert sorted(classes.count(place) for place in range(3)) == [0, 2, 2]
        assert len(np.unique(one, axis=0)) == 4
        pairs.add(frozenset(classes))
    assert len(pairs) == 3


def test_batches_depend_on_seed_and_step(data):
    def batches(seed, start, rows=None):
        return data.batches(
            "train", batch_size=6, seed=seed, start_step=start, rows=rows
        )

    first, second = next(iterator := batches(0, 0)), next(iterator)
    assert_array_equal(next(batches(0, 1)), second)
    assert_array_equal(next(batches(0, 0, np.array([1, 4]))), first[[1, 4]])
    assert not np.array_equal(next(batches(1, 0)), first)
    whole, parts = (
        np.concatenate([*data.examples("test", batch_size=size)]) for size in (400, 150)
    )
    assert_array_equal(whole, parts)
    assert len(whole) == NUM_SETS["test"]
