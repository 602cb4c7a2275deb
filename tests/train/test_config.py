"""The configuration: ranges, rules across fields, options without an effect, and
JSON."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.errors import assert_names, one_line
from unroll_jax.train.config.errors import UserError, on_command_line
from unroll_jax.train.config.fields import check_fields, differences, from_json, to_json
from unroll_jax.train.config.run import RunConfig
from unroll_jax.train.config.video import VideoConfig
from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.registry import TASKS

# Types that only Python lets through, and numbers that float32 cannot work with.
BAD: dict[str, tuple[Any, ...]] = {
    "method": ("constraint",),
    "steps": ("5", True, 0),
    "seed": (1.5, -1),
    "overwrite": (1,),
    "constraints.first_alpha": ("0.9", 0.0),
    "constraints.alpha": (0.1, ("0.1",), ()),
    "constraints.floor": (-1.0,),
    "constraints.warmup_steps": (-1, 1.5),
    "dual.every": ("day", 7),
    "dual.cap": (1e10, 1e-16),
    "dual.start": ((0.0, 1.0),),
    "layer_weights": ((), (-0.5,)),
    "out": (Path("runs"),),
    "model": (None,),
    "model.dtype": ("float64",),  # without JAX_ENABLE_X64
}
LAST = {"constraints.last": 0.1, "constraints.reference": None}
# multipliers would never move
UNMOVED = {"steps": 6, "constraints.warmup_steps": 3, "dual.every": 4}
# Options that rule out the value of the last one.
RULED_OUT: list[dict[str, Any]] = [
    {"dual.cap": 2.0, "dual.start": (5.0,)},
    {"layer_weighting": "layerskip"},
    {"method": "all", "layer_weights": (0.0,)},
    {"method": "all", "layer_weights": (0.1, 0.2)},
    {"model.num_layers": 1, "method": "all"},
    {"constraints.bounds": "cumulative", "constraints.reference": None},
    {"constraints.last": 0.1, "constraints.reference": 0.4},
    {**LAST, "constraints.floor": 0.2},
    {**LAST, "layer_weights": (0.0,)},
    {"constraints.alpha": (0.1, 0.2), "constraints.first_alpha": 0.5},
    {"dual.optimizer": "adam", "dual.proportional_gain": 2.0},
    {"steps": 6, "constraints.warmup_steps": 6},
    UNMOVED,
]


@pytest.mark.parametrize(
    ("field", "value"), [(name, value) for name in BAD for value in BAD[name]], ids=str
)
def test_a_bad_value_is_one_line_with_its_field_and_value(changed, field, value):
    with one_line(f"^{field} must be", str(value)):
        changed(**{field: value}).check()


@pytest.mark.parametrize("fields", RULED_OUT, ids=str)
def test_a_value_that_another_option_rules_out_is_one_line_that_names_its_field(
    changed, fields
):
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


@dataclasses.dataclass(frozen=True)
class Options(RunConfig):
    """Options of a user's own types."""

    size: tuple[int, str] = (1, "m")
    names: dict[str, int] = dataclasses.field(default_factory=dict)
    rate: float = 1.0
    label = describe = lambda self: ""  # type: ignore[assignment]


def test_types_and_ranges_of_a_users_options_are_checked_too():
    for rate in (1, np.float64(0.5)):
        check_fields(Options(names={"a": 1}, rate=rate))
    wrong: list[dict[str, Any]] = [
        {"size": (1, 2)},
        {"size": (1,)},
        {"names": 1},
        {"rate": True},
        {"rate": None},
    ]
    for options in wrong:
        (name,) = options
        with one_line(f"^{name} must be"):
            check_fields(Options(**options))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_is_valid_and_json_gives_it_back(experiment):
    config = EXPERIMENTS[experiment].config
    assert type(config) is TASKS[config.task].config
    config.check()
    assert (
        from_json(type(config), to_json(config), source=Path("config.json")) == config
    )


@pytest.mark.parametrize("task", [name for name, row in TASKS.items() if row.functions])
def test_no_field_is_left_unchecked(task):
    config = TASKS[task].config()
    for field in dataclasses.fields(config):
        with one_line(f"^{field.name} must be"):
            check_fields(dataclasses.replace(config, **{field.name: object()}))


def test_a_value_for_each_layer_or_constraint_or_of_an_option_in_use_is_allowed(
    changed,
):
    allowed: list[dict[str, Any]] = [
        {"constraints.alpha": (0.2, 0.3)},
        {"dual.start": (0.0, 1.0, 2.0)},
        {"dual.start": (1.0, 2.0), "constraints.reference": None},
        {"dual.optimizer": "pi", "dual.proportional_gain": 2.0},
        {"constraints.floor": 0.2},
        {**UNMOVED, "dual.start": (0.5,)},
        {**UNMOVED, "method": "plain"},
    ]
    for config in (changed(**fields) for fields in allowed):
        config.check()  # raises nothing
        assert all(holds for _, _, holds in config.rules())


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


def test_a_field_that_one_side_lacks_differs():
    assert differences({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}) == [
        "a.c was None, is now 2"
    ]
    assert differences({"d": 3}, {}) == ["d was 3, is now None"]
