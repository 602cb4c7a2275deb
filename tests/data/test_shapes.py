import numpy as np
import pytest

from unroll_jax.train.config.data import SceneConfig
from unroll_jax.train.data.images import load
from unroll_jax.train.data.pictures import NOT_COUNTED, PictureData
from unroll_jax.train.data.splits import SPLITS


def silent(line: str) -> None:
    del line


@pytest.fixture(scope="module")
def shapes(tmp_path_factory) -> PictureData:
    return load(SceneConfig(prepared=str(tmp_path_factory.mktemp("prepared"))), log=silent)


def whole(data, split):
    (batch,) = data.examples(split, batch_size=10_000)
    return batch


def test_shapes_are_scenes_of_five_classes_with_rims_that_do_not_count(shapes):
    assert [shapes.num_examples(split) for split in SPLITS] == [480, 60, 120]
    assert shapes.shape == (48, 48, 3)
    for split in SPLITS:
        labels = whole(shapes, split).labels
        assert set(np.unique(labels)) == {0, 1, 2, 3, 4, NOT_COUNTED}
        assert 0.02 < (labels == NOT_COUNTED).mean() < 0.15
        assert all(0.01 < (labels == shape).mean() < 0.15 for shape in range(1, 5))


def test_shapes_are_no_scene_twice_and_the_same_ones_every_time(shapes, tmp_path):
    scenes = [image.tobytes() for split in SPLITS for image in whole(shapes, split).images]
    assert len(set(scenes)) == len(scenes) == 660
    again = load(SceneConfig(prepared=str(tmp_path)), log=silent)
    for split in SPLITS:
        np.testing.assert_array_equal(whole(again, split).images, whole(shapes, split).images)
        np.testing.assert_array_equal(whole(again, split).labels, whole(shapes, split).labels)


def test_no_colour_tells_the_class_of_a_shape(shapes):
    images, labels = whole(shapes, "train")
    means = np.stack([images[labels == shape].mean(0) for shape in range(1, 5)])
    spread = np.stack([images[labels == shape].std(0) for shape in range(1, 5)])
    assert (np.ptp(means, axis=0) < 0.5 * spread.min(0)).all()
