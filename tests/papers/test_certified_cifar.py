"""Certified CIFAR-10 at a tiny size: parity with NumPy, certificates and attacks, and
the table."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

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


def test_the_network_has_fewer_than_500_000_parameters():
    params = jax.eval_shape(cifar.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 262_922


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
    np.testing.assert_allclose(computed, expected, atol=1e-4)


def test_augmented_images_are_moved_or_mirrored_at_most():
    image = np.arange(32 * 32 * 3, dtype=np.float32).reshape(1, 32, 32, 3)
    padded = np.pad(image, ((0, 0), (4, 4), (4, 4), (0, 0)), mode="reflect")[0]
    cuts = [padded[i : i + 32, j : j + 32] for i in range(9) for j in range(9)]
    allowed = {cut.tobytes() for cut in cuts} | {cut[:, ::-1].tobytes() for cut in cuts}
    repeated = jnp.repeat(jnp.asarray(image), 30, axis=0)
    moved = np.asarray(cifar.augment(jax.random.key(0), repeated))
    found = {each.tobytes() for each in moved}
    assert found <= allowed
    assert len(found) > 15


@pytest.mark.nightly
def test_attacks_find_no_counterexample_of_a_certificate(small, data):
    params = cifar.train(cifar.CifarConfig(0.3, 0.1, epochs=50), data, 0)
    clean, *shares = cifar.certified(params, data)
    attacks = cifar.attacked(params, data)
    assert clean == 1.0
    assert shares[2] > 0.8
    assert shares == sorted(shares, reverse=True)
    by_limit = dict(zip(cifar.RADII, shares, strict=True))
    for limit, accuracy in zip(cifar.ATTACKS, attacks, strict=True):
        assert by_limit[limit] <= accuracy


def test_the_command_prints_a_table(monkeypatch, capsys, data):
    monkeypatch.setattr(cifar, "load", lambda config: (data, data, data))
    monkeypatch.setattr(cifar, "train", lambda setting, data, seed: seed)
    monkeypatch.setattr(
        cifar, "certified", lambda params, data: np.full(7, 0.5 + 0.1 * params)
    )
    monkeypatch.setattr(cifar, "attacked", lambda params, data: np.full(3, 0.9))
    assert cifar.main(["--seeds", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("| offset 0.6, temperature 0.2 | 55.0 (50.0 to 60.0) |")
    assert lines[-1].endswith("| 90.0 (90.0 to 90.0) |")
    assert cifar.main(["--search"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + 2 * len(cifar.TRIALS)


def test_wrong_options_are_one_line(monkeypatch, capsys, tmp_path):
    assert cifar.main(["--temperature", "0"]) == 2
    assert "--temperature must be" in capsys.readouterr().err
    monkeypatch.setenv("UNROLL_DATA", str(tmp_path))
    assert cifar.main([]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert f"--root {tmp_path}" in message


@pytest.mark.nightly
def test_a_folder_of_images_is_read_and_split(monkeypatch, tmp_path):
    monkeypatch.setenv("UNROLL_PREPARED", str(tmp_path / "prepared"))
    rng = np.random.default_rng(0)
    for split, count in (("train", 20), ("test", 3)):
        for name in ("cat", "dog"):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (32, 32, 3), np.uint8)
                Image.fromarray(pixels).save(folder / f"{number:02}.png")
    config = cifar.CifarConfig(root=str(tmp_path / "images"), images=10)
    train, validation, test = cifar.load(config)
    assert [len(part.labels) for part in (train, validation, test)] == [10, 4, 6]
    assert test.pixels.shape == (6, 32, 32, 3)
    assert test.labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_images_are_evenly_spread_over_the_classes(data):
    few = cifar.evenly(data, 4)
    assert few.labels.tolist() == [0, 0, 1, 1]
    np.testing.assert_array_equal(few.pixels, data.pixels[[0, 10, 20, 30]])


def test_the_chosen_setting_is_a_trial():
    chosen = dataclasses.replace(cifar.CifarConfig(), epochs=cifar.TRIALS[0].epochs)
    assert chosen in cifar.TRIALS
