"""Certified CIFAR-10 at a tiny size: parity with NumPy, and augmentation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from papers import certified_cifar as cifar
from tests.energies import potential_reference as reference


@pytest.fixture
def data():
    """Two classes, dark and bright images."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(2, dtype=np.int32), 20)
    levels = 60 + 120 * labels[:, None, None, None]
    pixels = levels + rng.integers(-40, 40, (40, 32, 32, 3))
    return cifar.Images(pixels.astype(np.uint8), labels)


@pytest.fixture
def small(monkeypatch):
    """One layer, and batches of 20 images."""
    monkeypatch.setattr(cifar, "LAYERS", 1)
    monkeypatch.setattr(cifar, "BATCH", 20)
    monkeypatch.setattr(cifar, "TEST_BATCH", 40)
    monkeypatch.setattr(cifar, "ATTACK_STEPS", 5)


@pytest.mark.nightly
def test_logits_are_those_of_numpy(small, data):
    params = cifar.init(jax.random.key(0))
    image = data.pixels[0] / 255.0
    computed = cifar.logits_of(params, jnp.asarray(image[None], jnp.float32))[0]

    blocks = image.reshape(8, 4, 8, 4, 3).transpose(0, 2, 1, 3, 4).reshape(8, 8, 48)
    z = np.concatenate([blocks, np.zeros((8, 8, 16))], axis=-1).ravel()
    (W,), (b,), (log_q,) = params["layers"]
    matrix, scaling = reference.matrix_and_scaling(W, log_q, (8, 8))
    z = z - 2.0 * reference.gradient(z, matrix, scaling, np.tile(b, 64))
    head = np.float64(params["head"])
    expected = z @ (head / np.linalg.norm(head, axis=0))
    assert_allclose(computed, expected, atol=1e-4)


def test_augmented_images_are_moved_or_mirrored_at_most():
    image = np.arange(32 * 32 * 3, dtype=np.float32).reshape(1, 32, 32, 3)
    padded = np.pad(image, ((0, 0), (4, 4), (4, 4), (0, 0)), mode="reflect")[0]
    cuts = [padded[i : i + 32, j : j + 32] for i in range(9) for j in range(9)]
    allowed = {cut.tobytes() for cut in cuts} | {cut[:, ::-1].tobytes() for cut in cuts}
    repeated = np.repeat(image, 30, axis=0)
    moved = np.asarray(jax.jit(cifar.augment)(jax.random.key(0), repeated))
    found = {each.tobytes() for each in moved}
    assert found <= allowed
    assert len(found) > 15
