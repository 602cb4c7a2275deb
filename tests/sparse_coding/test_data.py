"""Dictionaries, codes of signals in them, and both prepared, against scikit-learn
and NumPy."""

import contextlib

import numpy as np
import pytest
from PIL import Image

from tests.errors import one_line
from tests.sparse_coding.conftest import BLOBS, SPARSITY, lasso
from tests.train.commands import quiet
from unroll_jax.train.data.pictures import LabelledImages, PictureSet
from unroll_jax.train.data.prepared import Source
from unroll_jax.train.tasks.images.data import IMAGES
from unroll_jax.train.tasks.sparse_coding import data as codes
from unroll_jax.train.tasks.sparse_coding.data import make_dictionary, solve_lasso
from unroll_jax.train.tasks.sparse_coding.options import CodeConfig

SIGNALS = BLOBS.whole("train").images / np.float32(255.0)


def test_fista_takes_as_many_steps_as_it_is_told():
    D, x = np.float64(BLOBS.dictionary), np.float64(SIGNALS)
    curvature, z, y, weight = (
        np.linalg.norm(D, 2) ** 2,
        np.zeros((len(x), len(D))),
        np.zeros((len(x), len(D))),
        1.0,
    )
    for _ in range(4):
        moved = y + (x - y @ D) @ D.T / curvature
        after = np.sign(moved) * np.maximum(np.abs(moved) - SPARSITY / curvature, 0.0)
        following = (1.0 + np.sqrt(1.0 + 4.0 * weight**2)) / 2.0
        y, z, weight = (
            after + (weight - 1.0) / following * (after - z),
            after,
            following,
        )
    np.testing.assert_allclose(
        solve_lasso(SIGNALS, BLOBS.dictionary, SPARSITY, 4)[0], z, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", ["learned", "random"])
def test_dictionaries_are_of_unit_length_and_the_same_each_time(name):
    first, again = (make_dictionary(name, 20, SIGNALS, SPARSITY) for _ in range(2))
    assert (first.shape, first.dtype) == ((20, 16), np.float32)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1.0, rtol=1e-6)


@pytest.fixture
def colours(monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (60, 4, 4, 3)).astype(np.uint8)
    labels = np.arange(40) % 2
    splits = {
        "train": LabelledImages(labels, lambda numbers: images[:40][numbers]),
        "test": LabelledImages(labels[:20], lambda numbers: images[40:][numbers]),
    }

    def opened(root, log):
        return contextlib.nullcontext(PictureSet(("a", "b"), (4, 4, 3), splits))

    monkeypatch.setitem(IMAGES, "digits", Source(lambda root: "colours", opened))
    return images


def test_prepared_images_come_with_solutions_of_the_lasso(colours, tmp_path):
    config = CodeConfig(
        dictionary="random", sparsity=0.2, validation_share=0.5, prepared=str(tmp_path)
    )
    data = codes.load(config, log=quiet)
    assert [data.num_examples(split) for split in ("train", "validation", "test")] == [
        20,
        20,
        20,
    ]
    assert data.spec.dictionary.shape == (19, 16)  # 1.2 times 16
    greys = [
        np.asarray(Image.fromarray(image).convert("L")).ravel()
        for image in colours[40:]
    ]
    np.testing.assert_array_equal(data.whole("test").images, greys)
    for split in data.square_norms:
        whole = data.whole(split)
        expected = lasso(whole.images / 255.0, data.spec.dictionary, 0.2)
        assert 0 < np.count_nonzero(expected) < expected.size
        np.testing.assert_allclose(whole.codes, expected, rtol=1e-3, atol=1e-4)
        assert data.square_norms[split] == pytest.approx(
            np.mean(np.sum(expected**2, axis=1)), rel=1e-3
        )
    assert data.spec.pixel_std == pytest.approx(
        np.std(data.whole("train").images / 255.0), rel=1e-6
    )
    batch = next(data.batches("train", batch_size=5, seed=0))
    rows = [
        np.flatnonzero((data.whole("train").images == image).all(axis=1))[0]
        for image in batch.images
    ]
    np.testing.assert_array_equal(batch.codes, data.whole("train").codes[rows])


def test_a_sparsity_that_leaves_nothing_is_refused(colours, tmp_path):
    config = CodeConfig(dictionary="random", sparsity=100.0, prepared=str(tmp_path))
    with one_line(r"at data.sparsity=100 every code of train is 0"):
        codes.load(config, log=quiet)
