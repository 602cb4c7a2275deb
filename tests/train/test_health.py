"""Collapsed runs are named in plain words, good ones left alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax.train.data.video import VideoSpec
from unroll_jax.train.tasks.common import Trial
from unroll_jax.train.tasks.video import VideoTask
from unroll_jax.train.tasks.video_models import describe_collapse

GOOD = {
    "dead": np.array([0.0, 0.02, 0.0, 0.0]),
    "spread": np.array([0.34, 0.25, 0.22, 0.21]),
    "layer_losses": np.array([4.7, 2.0, 1.1, 0.7]),
    "multipliers": np.array([0.0, 0.8, 0.3, 0.1]),
}


def _describe(**values):
    return describe_collapse(**{**GOOD, **{name: np.array(value) for name, value in values.items()}})


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"layer_losses": [4.7, 13.7, 9.8, 0.6], "multipliers": [0.0] * 4},  # plain: layers before the last are bad
        {"layer_losses": [4.7, 4.8, 4.9, 5.0]},  # untrained
        {"multipliers": [0.0, 12.0, 3.0, 1.0]},
        {"layer_losses": [16.6, 32.4, 14.9, 0.05], "spread": [11.8, 6.3, 1.4, 0.99]},  # a scene of little movement
    ],
)
def test_runs_without_a_collapse_are_not_flagged(values):
    assert _describe(**values) is None


def test_a_constant_output_is_a_collapse_even_where_it_is_better_than_the_noise():
    sentence = _describe(layer_losses=[15.7, 9.0, 8.0, 7.7], spread=[0.43, 0.1, 0.05, 0.001])
    assert "constant output" in str(sentence)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dead": [0.0, 0.1, 0.9, 1.0]}, ["dead units", "90% of layer 2"]),
        ({"spread": [0.34, 0.01, 0.0, 0.0]}, ["constant output", "layer 1"]),
        ({"multipliers": [0.0, 10.2, 9.0, 3.0]}, ["multipliers winding up", "10.2"]),
        (
            {"dead": [0, 0, 0, 1], "spread": [0.3, 0.2, 0.2, 0], "multipliers": [0, 9, 9, 9]},
            ["dead", "constant", "wind"],
        ),
    ],
)
def test_every_cause_of_a_collapse_is_named(values, words):
    sentence = _describe(layer_losses=[4.7, 9.1, 10.2, 10.9], **values)
    assert sentence is not None
    assert "output loss 10.90, input 4.70" in sentence
    assert "\n" not in sentence
    for word in words:
        assert word in sentence


class Batches:
    """Splits of given batches."""

    def __init__(self, batches):
        frames, pixels = batches[0].shape[1:]
        self.batches, self.spec = batches, VideoSpec(1.0, frames, pixels)

    def num_examples(self, split):
        return 1000

    def examples(self, split, *, batch_size):
        yield from self.batches


@pytest.fixture
def measured(changed):
    """``measured(batches, layer)``: what the task measures on them of a layer with the output ``layer(input)``."""

    def measure(batches, layer):
        class OneLayer(VideoTask):
            def outputs(self, params, noisy, record, perturb=None):
                return jax.tree.map(lambda *layers: jnp.stack(layers), record(noisy), record(layer(noisy)))

        task = OneLayer(changed(**{"model.rank": None, "train_gamma": 0.01}), Batches(batches))
        return task.reading(jnp.zeros(1), "test", Trial(0.0))

    return measure


def test_a_unit_that_one_batch_moves_is_not_dead(measured):
    """A layer of two units: the first is 0, black pixels move the second and white ones do not."""
    batches = [np.full((3, 2, 2), 255, np.uint8), np.zeros((3, 2, 2), np.uint8)]
    reading = measured(batches, lambda pixels: jnp.stack([jnp.zeros_like(pixels[..., 0]), 1.0 - pixels[..., 0]], -1))
    np.testing.assert_allclose(reading.dead, [0.0, 0.5])
    np.testing.assert_allclose(reading.losses[:3, 0], 0.0)


def test_health_measures_the_spread_over_samples(measured):
    draw = np.random.default_rng(0)
    output = draw.normal(size=(50, 3, 10)).astype(np.float32)
    black, grey = np.zeros(output.shape, np.uint8), draw.integers(0, 255, output.shape, np.uint8)
    spread, clean = np.std(output, axis=0).mean(), np.std(grey / 255.0, axis=0).mean()

    def constant(pixels):
        return np.broadcast_to(output[:1], output.shape)

    np.testing.assert_allclose(measured([grey], lambda _: output).spread, [1.0, spread / clean], rtol=1e-4)
    assert measured([grey], constant).spread[1] < 1e-4
    np.testing.assert_allclose(measured([black], constant).spread, 1.0, rtol=0.1)  # which is right where nothing moves
