"""Options of sparse coding: each value that is allowed, and those that are not."""

import dataclasses

import pytest

from tests.sparse_coding.conftest import SMALL, small
from unroll_jax.train.cli import configured
from unroll_jax.train.config.data import CodeConfig
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.config.fields import value_of, with_value
from unroll_jax.train.experiments import EXPERIMENTS


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("model.start", -0.1, "model.start must be finite and at least 0, got -0.1"),
        ("data.sparsity", 0.0, "data.sparsity must be positive and finite, got 0.0"),
        ("data.validation_share", 1.0, r"data.validation_share must be in \(0, 1\), got 1.0"),
        ("data.validation_share", 0.2, "data.validation_share=0.2 has no effect without data.source=cifar10"),
        (
            "test_layer_noises",
            (0.1, 0.1),
            r"test_layer_noises must be positive and finite, each once, got \(0.1, 0.1\)",
        ),
        ("constraints.alpha", (0.1, 0.2), "constraints.alpha must be one number, or one for each layer"),
    ],
    ids=str,
)
def test_values_that_cannot_be_are_refused(field, value, words):
    with pytest.raises(UserError, match=words):
        with_value(SMALL, field, value).check()


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("data.source", {name: name for name in ("digits", "cifar10", "image_folder")}),
        ("data.dictionary", {name: name for name in ("learned", "random", "cosine")}),
        ("data.atoms", {"None": None, "100": 100}),
        ("data.sparsity", {"0.05": 0.05, "2": 2.0}),
        ("model.weights", {name: name for name in ("ista", "noise")}),
        ("model.start", {"0": 0.0, "0.5": 0.5}),
        ("layer-noise", {"0": 0.0, "0.1": 0.1}),
        ("method", {name: name for name in ("erm", "constrained", "deep_supervision", "both", "all")}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_that_are_allowed_are_read(option, meant):
    for text, value in meant.items():
        _, config = configured("run", ["sparse-coding", f"--{option}", text])
        config.check()
        assert value_of(config, option) == value


def test_a_share_may_be_held_out_of_cifar10():
    config = small(data=CodeConfig(source="cifar10", validation_share=0.3))
    config.check()
    assert config.data.validation_share == 0.3


def test_run_folders_tell_runs_apart():
    labels = {
        small(**fields).label()
        for fields in ({}, {"train_gamma": 0.1}, {"layer_noise": 0.1}, {"seed": 1}, {"method": "erm"})
    }
    assert len(labels) == 5
    assert small().label() == "digits-constrained-L3-gamma0.0-seed0"


@pytest.mark.parametrize("name", ["sparse-coding", "hadou2023-cifar10"])
def test_experiments_can_be_run_by_every_method(name):
    alone = ("erm", "constrained", "deep_supervision")
    runs = {**{method: [method] for method in alone}, "both": ["erm", "constrained"], "all": sorted(alone)}
    for method, methods in runs.items():
        config = dataclasses.replace(EXPERIMENTS[name].config, method=method)
        config.check()
        assert sorted(variant.method for _, variant in config.variants()) == sorted(methods)
