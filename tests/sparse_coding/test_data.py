"""Dictionaries, codes of signals in them, and both prepared, against scikit-learn
and NumPy."""

import contextlib

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from tests.energies.dust_reference import soft
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
    curvature = np.linalg.norm(D, 2) ** 2
    z = y = np.zeros((len(x), len(D)))
    weight = 1.0
    for _ in range(4):
        before = z
        z = soft(y + (x - y @ D) @ D.T / curvature, SPARSITY / curvature)
        following = (1.0 + np.sqrt(1.0 + 4.0 * weight**2)) / 2.0
        y = z + (weight - 1.0) / following * (z - before)
        weight = following
    codes, _ = solve_lasso(SIGNALS, BLOBS.dictionary, SPARSITY, 4)
    assert_allclose(codes, z, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["learned", "random"])
def test_dictionaries_are_of_unit_length_and_the_same_each_time(name):
    first, again = (make_dictionary(name, 20, SIGNALS, SPARSITY) for _ in range(2))
    assert (first.shape, first.dtype) == ((20, 16), np.float32)
    assert_array_equal(first, again)
    assert_allclose(np.linalg.norm(first, axis=1), 1.0, rtol=1e-6)


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
    options = {"dictionary": "random", "sparsity": 0.2, "validation_share": 0.5}
    data = codes.load(CodeConfig(**options, prepared=str(tmp_path)), log=quiet)
    assert data.spec.dictionary.shape == (19, 16)  # 1.2 times 16
    greys = [np.asarray(Image.fromarray(one).convert("L")).ravel() for one in colours]
    assert_array_equal(data.whole("test").images, greys[40:])
    for split in ("train", "validation", "test"):
        whole = data.whole(split)
        assert len(whole.images) == 20
        expected = lasso(whole.images / 255.0, data.spec.dictionary, 0.2)
        assert 0 < np.count_nonzero(expected) < expected.size
        assert_allclose(whole.codes, expected, rtol=1e-3, atol=1e-4)
        norm = np.mean(np.sum(expected**2, axis=1))
        assert data.square_norms[split] == pytest.approx(norm, rel=1e-3)
    deviation = np.std(data.whole("train").images / 255.0)
    assert data.spec.pixel_std == pytest.approx(deviation, rel=1e-6)
    batch = next(data.batches("train", batch_size=5, seed=0))
    known = {
        image.tobytes(): code for image, code in zip(*data.whole("train"), strict=True)
    }
    for image, code in zip(*batch, strict=True):
        assert_array_equal(code, known[image.tobytes()])


def test_a_sparsity_that_leaves_nothing_is_refused(colours, tmp_path):
    config = CodeConfig(dictionary="random", sparsity=100.0, prepared=str(tmp_path))
    with one_line(r"at data.sparsity=100 every code of train is 0"):
        codes.load(config, log=quiet)
