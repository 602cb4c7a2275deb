import jax
import numpy as np
import pytest

from unroll_jax.train.tasks.image_models import flip, flip_and_shift, standardise

SHIFT = 4
augment = jax.jit(flip_and_shift)


@pytest.fixture
def batch():
    """Random images without black, so that a border shows; each its own."""
    return np.random.default_rng(0).integers(1, 256, (64, 12, 10, 3), np.uint8)


def candidates(image, shift):
    """Every image that a shift and a flip can make of one, by its place and whether it is mirrored."""
    height, width, _ = image.shape
    padded = np.zeros((height + 2 * shift, width + 2 * shift, 3), np.uint8)
    padded[shift : shift + height, shift : shift + width] = image
    for row in range(2 * shift + 1):
        for column in range(2 * shift + 1):
            window = padded[row : row + height, column : column + width]
            yield (row, column, False), window
            yield (row, column, True), window[:, ::-1]


def locate(result, image, shift):
    places = [place for place, window in candidates(image, shift) if np.array_equal(window, result)]
    assert len(places) == 1
    return places[0]


def test_every_image_is_a_shifted_and_perhaps_mirrored_copy_of_itself(batch, getkey):
    result = np.asarray(augment(getkey(), batch))
    assert (result.shape, result.dtype) == (batch.shape, np.uint8)
    places = [locate(r, image, SHIFT) for r, image in zip(result, batch, strict=True)]
    rows, columns, mirrored = zip(*places, strict=True)
    # 64 draws of 9: each end is missed with probability (8/9)^64 = 0.0005; the key is fixed.
    assert {0, 2 * SHIFT} <= set(rows)
    assert {0, 2 * SHIFT} <= set(columns)
    assert 16 < sum(mirrored) < 48


def test_augmentation_depends_on_the_key_alone(batch, getkey):
    key = getkey()
    one, same, other = (np.asarray(augment(each, batch)) for each in (key, key, getkey()))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_a_scene_and_its_labels_are_mirrored_alike(batch, getkey):
    images, labels = map(np.asarray, jax.jit(flip)(getkey(), batch, batch[..., 1]))
    np.testing.assert_array_equal(images[..., 1], labels)
    mirrored = [np.array_equal(image, scene[:, ::-1]) for image, scene in zip(images, batch, strict=True)]
    kept = [np.array_equal(image, scene) for image, scene in zip(images, batch, strict=True)]
    assert 16 < sum(mirrored) < 48
    assert sum(mirrored) + sum(kept) == len(batch)


def test_normalised_train_pixels_have_mean_0_and_variance_1(batch):
    pixels = batch / 255.0
    mean, std = pixels.mean((0, 1, 2)), pixels.std((0, 1, 2))
    result = np.asarray(jax.jit(standardise)(np.float32(pixels), mean, std))
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, (pixels - mean) / std, atol=1e-5)
    np.testing.assert_allclose(result.mean((0, 1, 2)), 0.0, atol=1e-4)
    np.testing.assert_allclose(result.std((0, 1, 2)), 1.0, atol=1e-4)
