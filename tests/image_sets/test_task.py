"""Losses, trials, floors and seeds of sets of images, against NumPy."""

import dataclasses

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal

from tests.errors import one_line
from tests.image_sets.conftest import changed
from tests.reference import unrolled_layer
from tests.tasks import assert_resumes, drawn, perturbed, without_data
from tests.train.commands import quiet, read
from unroll_jax.train.core.evaluate import read as read_split
from unroll_jax.train.core.task import Trial
from unroll_jax.train.main import fit
from unroll_jax.train.tasks.floors import LINEAR, ClassGaussians
from unroll_jax.train.tasks.image_sets.options import BOUNDS, INPUT_LOSS
from unroll_jax.train.tasks.image_sets.task import (
    MEAN,
    MIXTURE,
    floors,
    make,
)

pytestmark = pytest.mark.xdist_group("image-sets")


@pytest.fixture(scope="module")
def params(task):
    return perturbed(drawn(task))


def test_losses_are_half_the_squared_errors_at_every_layer(task, params, data):
    sets = data.draw("train", 400, seed=0)

    @jax.jit
    def run(sets, params):
        noisy = task.corrupt(sets, task.trial, jax.random.key(0))
        return noisy, task.losses(params, noisy, task.trial)[0]

    noisy, losses = jax.device_get(run(sets, params))
    layers = [np.asarray(leaf, np.float64) for leaf in params["params"]["layers"]]
    for place in range(5):
        outputs = [np.float64(noisy.noisy[place])]
        for weights in zip(*layers, strict=True):
            outputs.append(unrolled_layer(outputs[-1], *weights))
        errors = np.stack(outputs) - sets[place] / 255.0
        expected = 0.5 * np.sum(errors**2, axis=-1).mean(axis=-1)
        assert_allclose(losses[place], expected, rtol=1e-4)
    variance = 0.2 * data.spec.pixel_std
    assert np.var(noisy.noisy - noisy.clean) == pytest.approx(variance, rel=0.02)


def test_trials_are_levels_of_noise_and_disturbed_layers(task, params):
    trials = (Trial(0.2), Trial(0.2, lost=1), Trial(0.2, layer_noise=0.1))
    plain, lost, noisy = (
        read_split(task, params, "test", trial)["losses"] for trial in trials
    )
    assert plain.shape == (400, 3)
    assert_array_equal(lost[:, 0], lost[:, 1])
    assert_allclose(plain[:, 0], lost[:, 0], rtol=1e-6)
    added = np.mean(noisy[:, 1] - plain[:, 1])
    assert added == pytest.approx(0.5 * 16 * 0.1**2, rel=0.05)
    kinds = ("", "layer_noise_", "lost_layer_")
    assert set(task.trials) == {f"{kind}half_squared_error" for kind in kinds}


def test_the_mixture_of_gaussians_has_the_posterior_mean_of_scipy():
    rng = np.random.default_rng(0)
    classes = [
        rng.normal(size=(30, 4)) @ rng.normal(size=(4, 4)) + 3 * place
        for place in range(2)
    ]
    noisy, variance, ridge = rng.normal(size=(6, 4)) + 1.5, 0.3, 0.1
    moments = [
        (one.mean(0), np.cov(one.T, bias=True) + ridge * np.eye(4)) for one in classes
    ]
    densities = np.stack(
        [
            multivariate_normal(mean, C + variance * np.eye(4)).pdf(noisy)
            for mean, C in moments
        ]
    )
    means = [
        mean + (noisy - mean) @ np.linalg.solve(C + variance * np.eye(4), C)
        for mean, C in moments
    ]
    expected = np.einsum("kn,kni->ni", densities / densities.sum(0), np.stack(means))
    assert_allclose(
        ClassGaussians.fit(classes, ridge)(noisy, variance), expected, rtol=1e-8
    )
    assert_allclose(ClassGaussians.fit(classes, ridge)(noisy, 0.0), noisy, rtol=1e-8)


def test_floors_have_the_noise_of_the_networks(task, params, data):
    variance = 0.2 * data.spec.pixel_std
    scores = floors(data, variance, (("0.2", variance), ("0.0", 0.0)))
    assert set(scores) == {LINEAR, MEAN, MIXTURE}
    clean = np.concatenate([*data.examples("test", batch_size=400)]) / 255.0
    spread = (
        0.5 * np.sum((clean - clean.mean(axis=1, keepdims=True)) ** 2, axis=-1).mean()
    )
    assert scores[MEAN]["0.0"] == pytest.approx(spread, rel=1e-5)
    assert scores[MEAN]["0.2"] == pytest.approx(
        spread + 0.5 * 16 * variance / 4, rel=0.05
    )
    assert scores[MIXTURE]["0.0"] == pytest.approx(0.0, abs=1e-6)
    assert scores[MIXTURE]["0.2"] < scores[LINEAR]["0.2"] < 0.5 * 16 * variance
    assert scores[LINEAR]["0.2"] > scores[LINEAR]["0.0"] > 0


@pytest.mark.nightly
def test_seeds_of_each_method_are_run_folders(config, folders, tmp_path):
    seeds = changed(config, method="both", seeds=2)
    runs = fit(seeds, out=tmp_path / "demo", experiment="demo", log=quiet)
    assert [run.name.rpartition("-")[2] for run in runs] == ["0", "1"] * 2
    summary = read(tmp_path / "demo" / "report" / "summary.json")
    found = [(run["method"], run["seed"]) for run in summary["runs"]]
    assert sorted(found) == [
        (method, seed) for method in ("constrained", "plain") for seed in (0, 1)
    ]
    for run in summary["runs"]:
        assert set(run["half_squared_error"]) == {"0.0", "0.2", "0.4"}
        assert {LINEAR, MEAN, MIXTURE} <= set(run["floors"])
    assert set(read(runs[-1] / "evaluation.json")["lost_layer_half_squared_error"]) == {
        "1",
        "2",
    }
    pictures = [next((folders / "dots").iterdir()), np.zeros((9, 9), np.uint8)]
    with without_data(
        runs[-1], tmp_path / "model", "unroll_jax.train.tasks.image_sets.task.load"
    ) as models:
        denoised, same = (model.predict(pictures, gamma=0.1) for model in models)
    assert (denoised.shape, denoised.dtype) == ((2, 4, 4), np.uint8)
    assert_array_equal(denoised, same)
    config = dict(seeds.variants())["constrained-1"]
    assert_resumes(
        config, runs[-1], tmp_path / "again", experiment="demo", steps=(2, 4)
    )


def test_bounds_are_in_proportion_to_the_input(config, data):
    """Digits have 1.804 at the noise of training, for which the defaults were
    chosen. Given bounds stay."""

    def bounds_of(given, **fields):
        options = changed(config, constraints=given, **fields)
        return make(options, data).options.constraints

    wide = {"train_gamma": 3.0 * config.train_gamma}
    far = bounds_of(BOUNDS, **wide)
    loss = 0.5 * data.spec.size**2 * config.train_gamma * data.spec.pixel_std
    expected = 3.0 * loss / INPUT_LOSS * np.array([1.85, 0.4])
    assert_allclose([far.reference, far.floor], expected, rtol=1e-3)
    assert bounds_of(BOUNDS).reference > loss
    given = dataclasses.replace(BOUNDS, reference=500.0)
    assert bounds_of(given, **wide) == given
    with one_line(r"constraints.reference=0.01 is below the loss of the noisy input"):
        bounds_of(dataclasses.replace(BOUNDS, reference=0.01))
