"""Options: types and ranges of fields, rules across them, and JSON."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.errors import assert_names, one_line
from unroll_jax.train.config import errors
from unroll_jax.train.config.errors import UserError, on_command_line
from unroll_jax.train.config.options import (
    Text,
    differences,
    from_json,
    options,
    to_json,
)
from unroll_jax.train.config.run import RunConfig
from unroll_jax.train.registry import EXPERIMENTS, TASKS
from unroll_jax.train.tasks.own.options import OwnConfig
from unroll_jax.train.tasks.video.options import VideoConfig

LAST = {"constraints.last": 0.1, "constraints.reference": None}
# Options that rule out the value of the last one.
RULED_OUT: list[dict[str, Any]] = [
    {"method": "all", "layer_weights": (0.1, 0.2)},
    {"model.num_layers": 1, "method": "all"},
    {"constraints.bounds": "cumulative", "constraints.reference": None},
    {**LAST, "layer_weights": (0.0,)},
    {"steps": 6, "constraints.warmup_steps": 6},
    {"method": "all", "layer_weighting": "layerskip", "layer_weights": (0.1, 0.2)},
    {"batch_size": 4, "accumulate": 3},
    {"test_disturbances": ("rain=1",)},
    {"constraints.resilience": None, "constraints.slacks": "explicit"},
]


@pytest.mark.parametrize("fields", RULED_OUT, ids=str)
def test_a_value_that_another_option_rules_out_is_named(changed, fields):
    assert_names(UserError, lambda **fields: changed(**fields).check(), fields)


def test_an_option_is_named_as_it_was_given(changed):
    config = changed(**{"dual.cap": 2.0, "dual.start": (5.0,)})
    with one_line(r"^dual.start must be at most dual.cap=2.0, got"):
        config.check()
    with (
        on_command_line(),
        one_line(r"^--dual.start must be at most --dual.cap 2.0, got"),
    ):
        config.check()
    typed = on_command_line({"dual.start": "--start"}, only={"dual.start"})
    with typed, one_line(r"^--start must be at most dual.cap=2.0, got"):
        config.check()


@options
class Options(RunConfig):
    """Options of a user's own types."""

    size: tuple[int, str] = (1, "m")
    names: dict[str, int] = dataclasses.field(default_factory=dict)
    rate: float = 1.0
    place: Text = "here"
    label = describe = lambda self: ""  # type: ignore[assignment]


WRONG: list[dict[str, Any]] = [
    {"size": (1, 2)},
    {"size": (1,)},
    {"names": 1},
    {"rate": True},
    {"rate": None},
    {"rate": float("nan")},
    {"place": "\x1b[31m"},
    {"place": "\udcff"},
]


@pytest.mark.parametrize("fields", WRONG, ids=ascii)
def test_types_and_ranges_of_a_users_options_are_checked_too(fields):
    for rate in (1, np.float64(0.5)):
        assert Options(names={"a": 1}, rate=rate).rate == rate
    (name,) = fields
    with one_line(f"^{name} must be"):
        Options(**fields)
    with one_line(f"^{name} must be"):
        dataclasses.replace(Options(), **fields)


def test_an_unknown_option_is_one_line():
    with one_line("^there is no option stesp"):
        OwnConfig(stesp=3)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_is_valid_and_json_gives_it_back(experiment):
    config = EXPERIMENTS[experiment].config
    assert type(config) is TASKS[config.task].config
    config.check()
    assert (
        from_json(type(config), to_json(config), source=Path("config.json")) == config
    )


def test_an_option_that_an_earlier_version_lacked_has_its_default(changed):
    values = to_json(changed())
    del values["ema"], values["dual"]["cap"]
    assert from_json(VideoConfig, values, source="config.json") == changed()


@pytest.mark.parametrize("task", [name for name, row in TASKS.items() if row.functions])
def test_no_field_is_left_unchecked(task):
    config = TASKS[task].config()
    for field in dataclasses.fields(config):
        with one_line(f"^{field.name} must be"):
            dataclasses.replace(config, **{field.name: object()})


def test_a_value_for_each_layer_or_constraint_is_allowed(
    changed,
):
    allowed: list[dict[str, Any]] = [
        {"constraints.alpha": (0.2, 0.3)},
        {"dual.start": (0.0, 1.0, 2.0)},
        {"dual.start": (1.0, 2.0), "constraints.reference": None},
        {"constraints.floor": 0.2},
        {"layer_weighting": "layerskip"},
    ]
    for config in (changed(**fields) for fields in allowed):
        config.check()  # raises nothing


# Of a default that another option rules out: both options, and what follows.
RESOLVED: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"steps": 6, "dual.every": 4}, []),
    (
        {"steps": 6, "constraints.warmup_steps": 3, "dual.every": 4},
        ["dual.every was 4, is now 3"],
    ),
    ({"steps": 6, "dual.every": 9, "dual.start": (0.5,)}, []),
    ({"steps": 6, "dual.every": 9, "method": "plain"}, []),
    (
        {"constraints.last": 0.1, "constraints.reference": 0.4},
        ["constraints.reference was 0.4, is now None"],
    ),
]


@pytest.mark.parametrize(("fields", "lines"), RESOLVED, ids=str)
def test_a_default_that_another_option_rules_out_is_resolved(changed, fields, lines):
    config = changed(**fields)
    assert differences(to_json(config), to_json(config.resolved())) == lines
    config.resolved().check()


def test_erm_is_the_former_name_of_plain(changed):
    assert changed(method="erm") == changed(method="plain")
    assert [name for name, _ in changed(method="both").variants()] == [
        "plain",
        "constrained",
    ]
    assert (
        from_json(
            VideoConfig, to_json(changed()) | {"method": "erm"}, source="config.json"
        ).method
        == "plain"
    )


def test_an_error_without_words_is_named_by_its_type():
    assert errors.one_line(ValueError("\n")) == "ValueError"
