"""Noise, attacks and certificates on the pixels of images: against closed forms, and
against one another."""

import dataclasses
import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from papers.xie2021.__main__ import main
from papers.xie2021.robustness import RobustnessConfig, attack, robustness
from tests.supervised.conftest import in_memory, small, start, traced
from unroll_jax.train.config.options import with_value
from unroll_jax.train.core.evaluate import read
from unroll_jax.train.tasks.images.models import lipschitz_bound, scores
from unroll_jax.train.tasks.images.options import is_certifiable

pytestmark = [pytest.mark.xdist_group("images"), pytest.mark.nightly]
__all__ = ["in_memory", "start"]  # fixtures
RADII = (0.05, 0.3, 1.0)


def of_network(config, **options):
    for name, value in options.items():
        config = with_value(config, f"network.{name}", value)
    return config


def linear(weights):
    return lambda pixels: jnp.stack(
        [jnp.einsum("bhwc,hwc->b", pixels, weights), jnp.zeros(len(pixels))], axis=-1
    )


def test_an_attack_on_linear_models_breaks_what_is_near():
    """Within the ball and the box."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(3, 3, 1))
    images = rng.uniform(0.4, 0.6, size=(16, 3, 3, 1))
    margins = np.einsum("bhwc,hwc->b", images, weights)
    labels = (margins < 0.0).astype(np.int32)
    distances = np.abs(margins) / np.linalg.norm(weights)
    run = jax.jit(functools.partial(attack, linear(weights), num_steps=20))
    keys = jax.random.split(jax.random.key(0), 16)
    for radius in np.array([0.5, 1.0, 1.5]) * np.median(distances):
        apart = np.abs(distances / radius - 1.0) > 1e-3
        result = run(images, labels, keys, radius)
        assert np.asarray(result.right).all()
        moves = np.asarray(result.images) - images
        lengths = np.linalg.norm(moves.reshape(16, -1), axis=1)
        assert np.all(lengths <= radius * (1.0 + 1e-5))
        assert np.all((result.images >= 0.0) & (result.images <= 1.0))
        robust = np.asarray(result.robust)[apart]
        assert_array_equal(robust, (distances > radius)[apart])


def test_nan_is_never_right_and_leaves_no_ball():
    """A model without an equilibrium returns NaN, and argmax would return class 0. A
    slope of NaN moves nothing."""
    images, labels = np.full((2, 2, 2, 1), 0.5, np.float32), np.zeros(2, np.int32)
    keys = jax.random.split(jax.random.key(0), 2)
    model = lambda pixels: jnp.nan * linear(np.ones((2, 2, 1)))(pixels)
    result = attack(model, images, labels, keys, 0.5, num_steps=3)
    assert np.isfinite(result.images).all()
    assert not np.asarray(result.right).any()
    assert not np.asarray(result.robust).any()


def test_an_attack_finds_its_way_where_the_answer_is_sure():
    """In float32 the probability of the label is 1 there, and the cross entropy has
    no slope."""
    weights = np.full((2, 2, 1), 25.0, np.float32)
    images, labels = np.full((1, 2, 2, 1), 0.6, np.float32), np.zeros(1, np.int32)
    keys = jax.random.split(jax.random.key(0), 1)
    result = attack(linear(weights), images, labels, keys, 0.5, num_steps=5)
    assert_allclose(result.images, images - 0.25, atol=0.02)


def test_attacks_cost_accuracy_and_certificates_promise_less():
    config = small("image-opteq")
    task, _, init, step = traced(config)
    state = init()
    for _, batch in zip(range(20), task.batches(0, 0, None), strict=False):
        state, _ = step(state, batch)
    options = RobustnessConfig((), attacks=RADII, attack_steps=4)
    figures = robustness(task, state.params, options)
    clean = figures["attacked_clean_accuracy"]
    reading = read(task, state.params, "test", task.trial)
    assert clean == pytest.approx(scores(reading["confusion"]).accuracy)
    left = [figures["attack_accuracy"][str(radius)] for radius in RADII]
    assert figures["attacked_examples"] == 10
    assert clean > 0.6
    assert left == sorted(left, reverse=True)
    assert left[-1] < clean
    for radius, share in figures["certified_accuracy"].items():
        assert share <= figures["attack_accuracy"][radius]


def test_no_two_images_break_the_lipschitz_bound():
    first, second = (
        np.random.default_rng(2).uniform(size=(2, 16, 4, 4, 1)).astype(np.float32)
    )
    second = np.concatenate([second[:8], first[8:] + 0.01 * second[8:]])
    convolutional = {"convolutional": True, "stem": (3,), "tol": 1e-6}
    for config in (
        of_network(small("image-opteq"), tol=1e-6),
        of_network(small("image-opteq"), **convolutional, skip=0.6, input_layers=(2,)),
        of_network(small("image-dnn"), convolutional=True, stem=(3, 3), features=None),
    ):
        task, _, init, _ = traced(config)
        params = init().params
        bound = lipschitz_bound(config.network, params, (4, 4), task.inner.spec.std)
        logits = jax.jit(task.inner.logits)
        moved = np.linalg.norm(
            np.asarray(logits(params, first) - logits(params, second)), axis=1
        )
        slopes = moved / np.linalg.norm((first - second).reshape(16, -1), axis=1)
        assert math.isfinite(bound)
        assert 0.0 < np.max(slopes) <= bound


def test_logits_are_scaled_down_to_the_lipschitz_limit():
    free = small("image-opteq")
    images = np.random.default_rng(3).uniform(size=(8, 4, 4, 1)).astype(np.float32)
    task, _, init, _ = traced(free)
    params = init().params
    bound = lipschitz_bound(free.network, params, (4, 4), task.inner.spec.std)
    logits = task.inner.logits(params, images)
    for share in (0.1, 10.0):
        held = dataclasses.replace(free, lipschitz=share * float(bound))
        scaled = task.make(held).inner.logits(params, images)
        assert_allclose(scaled, min(1.0, share) * logits, rtol=1e-5)


def test_only_certified_norms_are_certified():
    network = small("image-opteq").network
    changes = (
        {"max_norm": None},
        {"norm_steps": 3},
        {"way": "averaged"},
        {"regulariser": "half_square"},
    )
    assert [
        is_certifiable(dataclasses.replace(network, **change)) for change in changes
    ] == [False] * 4
    assert is_certifiable(dataclasses.replace(network, way="unrolled"))


@pytest.mark.usefixtures("in_memory")
def test_a_run_is_evaluated_with_disturbed_pixels(start, tmp_path, capsys):
    start(small("image-dnn"), "image-dnn")
    folder = tmp_path / "run"
    before = json.loads((folder / "evaluation.json").read_text())
    assert main([str(folder), "--noises", "0.2"]) == 0
    assert main([str(folder), "--attacks", "0.3", "0.1", "--attack-steps", "3"]) == 0
    content = (folder / "evaluation.json").read_text()
    evaluation = json.loads(content)
    for name in ("attack_accuracy", "certified_accuracy"):
        assert list(evaluation[name]) == ["0.1", "0.3"]
    assert list(evaluation["noise_accuracy"]) == ["0.2"]
    assert before.items() <= evaluation.items()
    assert main([str(folder), "--noises", "0"]) == 2
    assert "--noises" in capsys.readouterr().err
    assert (folder / "evaluation.json").read_text() == content
