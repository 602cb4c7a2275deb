"""Losses, noise and floors of sparse coding, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.errors import one_line
from tests.models.test_lista import soft
from tests.sparse_coding.conftest import BLOBS, SPARSITY, small, task_of
from tests.tasks import perturbed, trained_losses
from unroll_jax.train.config.sparse_coding import ListaConfig
from unroll_jax.train.data.codes import CodeBatch
from unroll_jax.train.tasks.common import Trial
from unroll_jax.train.tasks.sparse_coding import PENALTIES, linear_coder, noisy

pytestmark = pytest.mark.xdist_group("sparse-coding")


def codes_of(params, signals, lost=0):
    layers, z = [np.asarray(leaf) for leaf in params["params"]["layers"]], np.zeros((len(signals), 20))
    states = [z]
    for number, (A, B, theta) in enumerate(zip(*layers, strict=True), start=1):
        z = z if number == lost else soft(z @ A.T + signals @ B.T, np.abs(theta))
        states.append(z)
    return np.stack(states, axis=1)


def losses_of(params, split, lost=0):
    whole = BLOBS.whole(split)
    return 0.5 * np.sum((codes_of(params, whole.images / 255.0, lost) - whole.codes[:, None]) ** 2, axis=-1)


def test_losses_are_half_the_squared_errors_of_the_codes_at_every_layer():
    task = task_of(small())
    params = perturbed(task.init(jax.random.key(0)))
    batch = CodeBatch(*(jnp.asarray(part) for part in BLOBS.whole("validation")))
    actual, _ = jax.jit(lambda params: task.losses(params, task.sample_noise(batch, jax.random.key(1)), None))(params)
    np.testing.assert_allclose(actual, losses_of(params, "validation"), rtol=1e-4)
    for split in ("validation", "test"):
        np.testing.assert_allclose(task.reading(params, split, Trial(0.0)).losses, losses_of(params, split), rtol=1e-4)
    np.testing.assert_allclose(
        task.reading(params, "test", Trial(0.0, lost=2)).losses, losses_of(params, "test", 2), rtol=1e-4
    )


def test_what_is_drawn_has_the_strengths_of_training():
    task, batch = task_of(small(train_gamma=0.5, model=ListaConfig(num_layers=3, start=0.2))), BLOBS.whole("train")
    many = CodeBatch(*(jnp.asarray(np.repeat(part, 20, axis=0)) for part in batch))
    drawn = jax.jit(task.sample_noise)(many, jax.random.key(0))
    noise = np.asarray(drawn.signals) - np.repeat(batch.images, 20, axis=0) / 255.0
    assert np.std(noise) == pytest.approx(0.5 * BLOBS.pixel_std, rel=0.05)
    assert np.std(drawn.start) == pytest.approx(0.2, rel=0.05)
    np.testing.assert_array_equal(drawn.codes, many.codes)
    assert len(np.unique(drawn.keys, axis=0)) == len(many.codes)
    again = jax.jit(task.sample_noise)(many, jax.random.key(1))
    assert not np.any(np.asarray(again.signals) == np.asarray(drawn.signals))


def test_noise_on_layers_depends_on_the_image_alone_so_that_batches_may_be_parted():
    task = task_of(small(layer_noise=0.3))
    params = task.init(jax.random.key(0))
    batch = CodeBatch(*(jnp.asarray(part) for part in BLOBS.whole("validation")))

    @jax.jit
    def both(params):
        drawn = task.sample_noise(batch, jax.random.key(1))
        half = jax.tree.map(lambda rows: rows[:6], drawn)
        return task.losses(params, drawn, None)[0], task.losses(params, half, None)[0]

    whole, half = both(params)
    np.testing.assert_allclose(whole[:6], half, rtol=1e-5)
    clean = losses_of(params, "validation")
    np.testing.assert_allclose(whole[:, 0], clean[:, 0], rtol=1e-5)
    # Noise of every layer is in the last one's codes: at least 0.3^2 / 2 an atom.
    assert np.mean(whole[:, 1:] - clean[:, 1:]) > 0.5 * 0.3**2 * 20 * 0.7


@pytest.mark.parametrize("weights", ["ista", "noise"])
def test_ista_stands_beside_the_network_whatever_its_weights_start_as(weights):
    task = task_of(small(model=ListaConfig(num_layers=3, weights=weights)))
    curvature = np.linalg.norm(BLOBS.dictionary, 2) ** 2
    ista, drawn = (params["params"]["layers"] for params in (task.ista(), task.init(jax.random.key(0))))
    np.testing.assert_allclose(ista.B[1], BLOBS.dictionary / curvature, rtol=1e-5)
    np.testing.assert_allclose(ista.theta, SPARSITY / curvature, rtol=1e-5)
    np.testing.assert_allclose(np.std(drawn.A), np.std(ista.A) if weights == "ista" else 0.01, rtol=0.1)


def test_the_linear_map_is_that_of_least_squares_with_the_best_penalty():
    x, z = (np.float64(part) for part in noisy(BLOBS, "train", 0.3))
    centred, codes = x - x.mean(0), z - z.mean(0)
    held_out, expected = (np.float64(part) for part in noisy(BLOBS, "validation", 0.3))
    errors = {}
    for penalty in PENALTIES:
        weights = np.linalg.solve(centred.T @ centred + penalty * len(x) * np.eye(16), centred.T @ codes)
        predicted = (held_out - x.mean(0)) @ weights + z.mean(0)
        errors[np.sum((predicted - expected) ** 2)] = predicted
    np.testing.assert_allclose(linear_coder(BLOBS, 0.3)(held_out), errors[min(errors)], rtol=1e-2, atol=1e-3)


def test_steps_lower_the_loss():
    before, after = trained_losses(task_of(small(steps=30, model=ListaConfig(num_layers=3, weights="noise"))))
    assert after[-1] < 0.7 * before[-1]
    assert after[0] == before[0]


def test_codes_of_images_come_with_what_they_stand_for():
    task = task_of(small())
    params, images = task.init(jax.random.key(0)), BLOBS.whole("test").images[:3].reshape(3, 4, 4)
    predictions = task.predict(params, list(images))
    expected = codes_of(params, images.reshape(3, -1) / 255.0)[:, -1]
    np.testing.assert_allclose([one.code for one in predictions], expected, rtol=1e-4, atol=1e-6)
    shown = np.clip(255.0 * expected @ BLOBS.dictionary, 0, 255).reshape(3, 4, 4)
    np.testing.assert_allclose([one.image for one in predictions], shown, atol=1)
    single = task.predict(params, images[1])
    np.testing.assert_allclose(single.code, predictions[1].code, rtol=1e-5)
    noise = [task.predict(params, images[1], gamma=1.0, seed=seed).code for seed in (0, 0, 1)]
    np.testing.assert_array_equal(noise[0], noise[1])
    assert np.any(noise[0] != noise[2])
    assert np.any(noise[0] != single.code)
    for given, gamma, words in (([], 0.0, "needs images"), (images[1], -1.0, "gamma"), (images[1], 1e30, "gamma")):
        with one_line(words):
            task.predict(params, given, gamma=gamma)
    with one_line("batch_size must be at most the 48 images of the train split, got 49"):
        task_of(small(batch_size=49))
    broken = jax.tree.map(lambda leaf: leaf * np.nan, params)
    with one_line("images are not finite"):
        task.predict(broken, images[1])
