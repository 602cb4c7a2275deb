"""The configuration: ranges, rules across fields, options without an effect, and JSON."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unroll_jax.train.config.errors import UserError, on_command_line
from unroll_jax.train.config.fields import check_fields, differences, from_json, hints_of, to_json
from unroll_jax.train.config.run import RunConfig
from unroll_jax.train.config.video import VideoConfig
from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.registry import TASKS

# Types that only Python lets through, and numbers that float32 cannot work with.
WRONG = [
    ("method", "constraint", "must be 'plain' or 'constrained' or 'deep_supervision'"),
    ("steps", "5", "must be a whole number from 1 to 1000000000"),
    ("seed", 1.5, "must be a whole number"),
    ("steps", True, "must be a whole number"),
    ("overwrite", 1, "must be True or False"),
    ("constraints.first_alpha", "0.9", "must be in (0, 1), or None"),
    ("dual.every", "day", "must be a whole number from 1 to 1000000000, or 'epoch'"),
    ("constraints.alpha", 0.1, "must be a tuple (x, ...), where x is in (0, 1)"),
    ("constraints.alpha", ("0.1",), "must be in (0, 1)"),
    ("track", ("tensorbord",), "must be 'tensorboard'"),
    ("out", Path("runs"), "must be a string of UTF-8 without control characters, or None"),
    ("model", None, "must be ModelConfig"),
    *(("dual.cap", value, "must be finite, and 0 or of a size from 1e-15 to 1e+09") for value in (1e10, 1e-16)),
    ("model.dtype", "float64", " must be "),  # without JAX_ENABLE_X64
    ("dual.every", 7, " must be "),
    ("constraints.alpha", (), " must be "),
    ("dual.start", (0.0, 1.0), "must be one number, or one for each of 3 constraints"),
]


@pytest.mark.parametrize(("field", "value", "words"), WRONG)
def test_a_bad_value_is_one_line_with_its_field_and_value(changed, field, value, words):
    with pytest.raises(UserError) as caught:
        changed(**{field: value}).check()
    message = str(caught.value)
    assert field in message
    assert words in message
    assert str(value) in message
    assert "\n" not in message


def test_an_option_is_named_as_it_was_given(changed):
    config = changed(**{"dual.cap": 2.0, "dual.start": (5.0,)})
    with pytest.raises(UserError, match=r"^dual.start must be at most dual.cap=2.0, got"):
        config.check()
    with on_command_line(), pytest.raises(UserError, match=r"^--dual.start must be at most --dual.cap 2.0, got"):
        config.check()
    typed = on_command_line({"dual.start": "--start"}, only={"dual.start"})
    with typed, pytest.raises(UserError, match=r"^--start must be at most dual.cap=2.0, got"):
        config.check()


@dataclasses.dataclass(frozen=True)
class Options(RunConfig):
    """Options of a user's own types."""

    size: tuple[int, str] = (1, "m")
    names: dict[str, int] = dataclasses.field(default_factory=dict)
    other: Any = None
    rate: float = 1.0

    label = describe = lambda self: ""  # type: ignore[assignment]


def test_types_and_ranges_of_a_users_options_are_checked_too():
    right: list[dict[str, Any]] = [{}, {"other": 3}, {"rate": 1}, {"rate": np.float64(0.5)}, {"names": {"a": 1}}]
    for options in right:
        check_fields(Options(**options))
    wrong = {"size": [(1, 2), (1,), 1], "names": [1], "rate": ["1", True, None]}
    for name, value in [(name, value) for name, values in wrong.items() for value in values]:
        given: dict[str, Any] = {name: value}
        with pytest.raises(UserError, match=f"^{name} must be"):
            check_fields(Options(**given))


def _whole_numbers(config):
    for name, hint in hints_of(type(config)).items():
        value = getattr(config, name)
        if dataclasses.is_dataclass(value):
            yield from _whole_numbers(value)
        elif "int" in str(hint):
            yield name, hint


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_is_valid_its_whole_numbers_have_ranges_and_json_gives_it_back(experiment):
    config = EXPERIMENTS[experiment].config
    assert type(config) is TASKS[config.task].config
    config.check()
    assert not [name for name, hint in _whole_numbers(config) if "Ge(" not in str(hint)]
    assert from_json(type(config), to_json(config), source=Path("config.json")) == config


@pytest.mark.parametrize("task", [name for name, row in TASKS.items() if row.functions])
def test_no_field_is_left_unchecked(task):
    config = TASKS[task].config()
    for field in dataclasses.fields(config):
        with pytest.raises(UserError, match=f"^{field.name} must be"):
            check_fields(dataclasses.replace(config, **{field.name: object()}))


ALLOWED: list[dict[str, Any]] = [
    {"constraints.alpha": (0.2, 0.3)},
    {"dual.start": (0.0, 1.0, 2.0)},
    {"dual.start": (1.0, 2.0), "constraints.reference": None},
]


@pytest.mark.parametrize("fields", ALLOWED, ids=str)
def test_a_value_for_each_layer_or_constraint_is_allowed(changed, fields):
    config = changed(**fields)
    config.check()  # raises nothing
    assert all(holds for _, _, holds in config.rules())


@pytest.mark.parametrize("start", [(0.0, 2.0, 5.0), (5.0,)])
def test_multipliers_start_at_most_at_their_cap(changed, start):
    with pytest.raises(UserError, match=r"dual.start must be at most dual.cap=2.0, got"):
        changed(**{"dual.cap": 2.0, "dual.start": start}).check()


USED = {
    ("dual.proportional_gain", 2.0): {"dual.optimizer": "pi"},
    ("constraints.level", 0.9): {"constraints.bind": "tail"},
}


@pytest.mark.parametrize(("field", "value"), USED, ids=str)
def test_an_option_without_effect_is_an_error_that_names_what_it_is_for(changed, field, value):
    changed(**{field: value}, **USED[field, value]).check()
    other, choice = next(iter(USED[field, value].items()))
    with pytest.raises(UserError, match=f"^{field}={value} has no effect without {other}={choice}.*; leave it out"):
        changed(**{field: value}, **{"dual.optimizer": "adam"}).check()


def test_json_of_another_version_names_the_file_and_the_field(config):
    for values in ({**to_json(config), "momentum": 1}, {k: v for k, v in to_json(config).items() if k != "steps"}):
        with pytest.raises(UserError, match=r"config\.json.*(momentum|steps)"):
            from_json(VideoConfig, values, source=Path("config.json"))
    nested = to_json(config)
    del nested["dual"]["optimizer"]
    with pytest.raises(UserError, match="optimizer"):
        from_json(VideoConfig, nested, source=Path("config.json"))


def test_erm_is_the_former_name_of_plain(changed):
    assert changed(method="erm") == changed(method="plain")
    assert [name for name, _ in changed(method="both").variants()] == ["plain", "constrained"]
    assert from_json(VideoConfig, to_json(changed()) | {"method": "erm"}, source="config.json").method == "plain"


def test_differences_name_the_field_and_both_values(config, changed):
    other = changed(steps=7, **{"dual.optimizer": "adam", "constraints.alpha": (0.3,)})
    assert differences(to_json(config), to_json(config)) == []
    assert differences(to_json(config), json.loads(json.dumps(to_json(other), allow_nan=False))) == [
        "constraints.alpha was [0.22], is now [0.3]",
        "dual.optimizer was pi, is now adam",
        "steps was 6, is now 7",
    ]
    assert differences({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}) == ["a.c was None, is now 2"]
    assert differences({"d": 3}, {}) == ["d was 3, is now None"]
