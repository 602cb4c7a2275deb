"""The configuration: what it accepts, and how it survives JSON."""

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unroll_jax.train.config.errors import UserError
from unroll_jax.train.config.fields import check_types, differences, from_json, to_json
from unroll_jax.train.config.run import RunConfig
from unroll_jax.train.config.video import VideoConfig
from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.main import fit
from unroll_jax.train.registry import TASKS

BAD_VALUES = {
    "steps": [0, -1],
    "batch_size": [0],
    "validate_every": [0],
    "seed": [-1, 2**32],
    "train_gamma": [-0.1, float("nan"), float("inf")],
    "test_gammas": [(0.1, -0.1), (float("inf"),)],
    "model.num_layers": [0],
    "model.dtype": ["float64"],  # without JAX_ENABLE_X64
    "model.mixing": [-0.1, 1.1],
    "model.attention_scale": [0.0],
    "primal.learning_rate": [0.0, float("nan")],
    "primal.warmup_share": [1.0, -0.1],
    "primal.clip_norm": [0.0],
    "dual.optimizer": ["momentum", ""],
    "dual.learning_rate": [-1e-3, 0.0],
    "dual.proportional_gain": [-1.0],
    "dual.every": [0, 7],
    "dual.smoothing": [1.0, -0.1],
    "dual.nu": [1.0, -1.0],
    "dual.start": [(-1.0,), (1.0, 1.0), (float("nan"),)],
    "dual.cap": [0.0, float("inf")],
    "dual.frozen": [(3,), (-1,)],
    "dual.freeze_after": [-1],
    "constraints.alpha": [(0.0,), (1.0,), (1.5,), (-0.2,), (float("nan"),), (), (0.2, 0.2, 0.2)],
    "constraints.reference": [0.0, -1.0, float("inf")],
    "constraints.resilience": [0.0, float("inf")],
    "constraints.margin": [-0.1, 1.0],
    "constraints.first_margin": [-0.1, 1.0],
    "constraints.tolerance": [-0.01, float("nan")],
    "constraints.warmup_steps": [-1, 6],
    "constraints.level": [1.0, -0.1],
    "constraints.leeway": [-0.1],
    "constraints.slack_rate": [0.0],
    "accumulate": [0, 3],
    "average": [0.0, 1.0],
    "profile": ["5", "0:1", "3:0", "a:b", "-1:2"],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in BAD_VALUES for value in BAD_VALUES[field]])
def test_a_bad_value_is_refused_by_its_option_and_value(changed, field, value):
    with pytest.raises(UserError) as caught:
        changed(**{field: value}).check()
    message = str(caught.value)
    assert f"--{field.replace('_', '-')}" in message
    assert str(value) in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        (
            "method",
            "constraint",
            "--method must be 'erm' or 'constrained' or 'deep_supervision' or 'both' or 'all', got 'constraint'",
        ),
        ("steps", "5", "--steps must be a whole number, got '5'"),
        ("seed", 1.5, "--seed must be a whole number, got 1.5"),
        ("steps", True, "--steps must be a whole number, got True"),
        ("overwrite", 1, "--overwrite must be True or False, got 1"),
        ("average", "0.9", "--average must be a number, or None, got '0.9'"),
        ("dual.every", "day", "--dual.every must be a whole number, or 'epoch', got 'day'"),
        ("remat", "all", "--remat must be 'none' or 'everything' or 'dots' or 'dots_without_batch', got 'all'"),
        ("constraints.alpha", 0.1, "--constraints.alpha must be a tuple (x, ...), where x is a number, got 0.1"),
        ("constraints.alpha", ("0.1",), "where x is a number, got ('0.1',)"),
        ("track", ("tensorbord",), "where x is 'tensorboard' or 'wandb' or 'mlflow', got ('tensorbord',)"),
        ("out", Path("runs"), "--out must be a string, or None, got PosixPath('runs')"),
        ("model", None, "--model must be ModelConfig, got None"),
    ],
)
def test_a_value_of_another_type_is_refused_from_python_before_a_folder_is_made(changed, tmp_path, field, value, words):
    with pytest.raises(UserError) as caught:
        fit(changed(**{field: value}), out=tmp_path / "run")
    assert words in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_types_that_only_options_of_a_users_own_have_are_checked_too():
    @dataclasses.dataclass(frozen=True)
    class Options(RunConfig):
        size: tuple[int, str] = (1, "m")
        names: dict[str, int] = dataclasses.field(default_factory=dict)
        other: Any = None
        rate: float = 1.0

        check = label = describe = lambda self: None  # type: ignore[assignment]

    right: list[dict[str, Any]] = [
        {},
        {"other": 3},
        {"rate": 1},
        {"rate": np.float64(0.5)},
        {"names": {"a": 1}},
    ]
    for options in right:
        check_types(Options(**options))
    wrong = {"size": [(1, 2), (1,), 1], "names": [1], "rate": ["1", True, None]}
    for name, value in [(name, value) for name, values in wrong.items() for value in values]:
        given: dict[str, Any] = {name: value}
        with pytest.raises(UserError, match=f"--{name} must be"):
            check_types(Options(**given))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_default_is_of_its_type_and_none_is_left_out(experiment):
    config = EXPERIMENTS[experiment].config
    check_types(config)
    for field in dataclasses.fields(config):
        with pytest.raises(UserError, match=f"--{field.name.replace('_', '-')} must be"):
            check_types(dataclasses.replace(config, **{field.name: object()}))


def test_every_experiment_has_a_valid_configuration():
    for experiment in EXPERIMENTS.values():
        assert type(experiment.config) is TASKS[experiment.config.task].config
        experiment.config.check()


def test_no_noise_is_for_plain_training_alone(changed):
    changed(train_gamma=0.0, method="erm").check()
    with pytest.raises(UserError, match="--train-gamma 0"):
        changed(train_gamma=0.0, method="both").check()


def test_one_alpha_a_layer_is_allowed(changed):
    changed(**{"constraints.alpha": (0.2, 0.3)}).check()
    with pytest.raises(UserError, match=r"--constraints\.alpha"):
        changed(**{"constraints.alpha": (0.2, 0.3, 0.4)}).check()


def test_json_gives_back_the_configuration(changed):
    config = changed(
        method="erm", **{"constraints.alpha": (0.1, 0.3), "constraints.reference": None, "model.dtype": "bfloat16"}
    )
    values = json.loads(json.dumps(to_json(config), allow_nan=False))
    assert from_json(VideoConfig, values, source=Path("config.json")) == config


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_json_gives_back_every_default(experiment):
    config = EXPERIMENTS[experiment].config
    assert from_json(type(config), to_json(config), source=Path("config.json")) == config


def test_json_of_another_version_names_the_file_and_the_field(config):
    for values in ({**to_json(config), "momentum": 1}, {k: v for k, v in to_json(config).items() if k != "steps"}):
        with pytest.raises(UserError, match=r"config\.json.*(momentum|steps)"):
            from_json(VideoConfig, values, source=Path("config.json"))
    nested = to_json(config)
    del nested["dual"]["optimizer"]
    with pytest.raises(UserError, match="optimizer"):
        from_json(VideoConfig, nested, source=Path("config.json"))


def test_differences_name_the_field_and_both_values(config, changed):
    other = changed(steps=7, **{"dual.optimizer": "adam", "constraints.alpha": (0.3,)})
    assert differences(to_json(config), to_json(config)) == []
    assert differences(to_json(config), to_json(other)) == [
        "constraints.alpha was [0.22], is now [0.3]",
        "dual.optimizer was pi, is now adam",
        "steps was 6, is now 7",
    ]


def test_a_field_that_one_configuration_lacks_is_a_difference():
    assert differences({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}) == ["a.c was None, is now 2"]
    assert differences({"d": 3}, {}) == ["d was 3, is now None"]


def test_every_field_has_a_docstring_which_is_its_help():
    groups = [type(getattr(VideoConfig(), field.name)) for field in dataclasses.fields(VideoConfig)]
    for cls in (VideoConfig, *filter(dataclasses.is_dataclass, groups)):
        sources = (inspect.getsource(base) for base in cls.__mro__[:-1])
        lines = [line.strip() for source in sources for line in source.splitlines()]
        for field in dataclasses.fields(cls):
            if field.default_factory is not dataclasses.MISSING:
                continue  # a group, documented by its class
            place = next(i for i, line in enumerate(lines) if line.startswith(f"{field.name}:"))
            assert lines[place + 1].startswith('"""'), f"{cls.__name__}.{field.name}"


@pytest.mark.parametrize(("reference", "layer"), [(8.0, 0), (None, 1)])
def test_the_bound_on_the_input_is_frozen_only_where_there_is_one(changed, reference, layer):
    change = {"constraints.reference": reference, "dual.frozen": (layer,)}
    changed(**change).check()
    with pytest.raises(UserError, match=r"--dual.frozen must be layers in"):
        changed(**{**change, "dual.frozen": (layer - 1,)}).check()


def test_freezing_before_the_end_of_the_warm_up_is_refused(changed):
    with pytest.raises(UserError, match=r"--dual.freeze-after must be at least --constraints.warmup-steps 3, got 2"):
        changed(**{"dual.freeze_after": 2, "constraints.warmup_steps": 3}).check()


def test_explicit_slacks_need_a_cost(changed):
    changed(**{"constraints.slacks": "explicit", "constraints.resilience": 1.0}).check()
    with pytest.raises(UserError, match=r"--constraints.slacks explicit .* --constraints.resilience"):
        changed(**{"constraints.slacks": "explicit"}).check()


USED = {
    ("dual.nu", 0.5): {"dual.optimizer": "nu_pi"},
    ("dual.proportional_gain", 2.0): {"dual.optimizer": "pi"},
    ("constraints.level", 0.9): {"constraints.bind": "tail"},
    ("constraints.leeway", 0.1): {"constraints.bind": "positive"},
    ("constraints.slack_rate", 0.1): {"constraints.slacks": "explicit", "constraints.resilience": 2.0},
    ("constraints.slack_restarts", False): {"constraints.slacks": "explicit", "constraints.resilience": 2.0},
}


@pytest.mark.parametrize(("field", "value"), USED, ids=str)
def test_an_option_without_effect_is_refused_with_what_it_is_for(changed, field, value):
    changed(**{field: value}, **USED[field, value]).check()
    unused = {"dual.optimizer": "adam"}
    name, (other, choice) = field.replace("_", "-"), next(iter(USED[field, value].items()))
    option = "--constraints.no-slack-restarts" if value is False else f"--{name} {value}"
    with pytest.raises(UserError, match=f"{option} has no effect without --{other} {choice}.*; leave it out"):
        changed(**{field: value}, **unused).check()


def test_multipliers_start_at_most_at_their_cap_but_for_frozen_ones(changed):
    fields = {"dual.cap": 2.0, "dual.start": (0.0, 2.0, 5.0)}
    for refused in (fields, {**fields, "dual.start": (5.0,)}, {**fields, "dual.frozen": (1,)}):
        with pytest.raises(UserError, match=r"--dual.start must be at most --dual.cap 2.0, but for frozen layers, got"):
            changed(**refused).check()
    changed(**fields, **{"dual.frozen": (2,)}).check()
    shifted = {"dual.cap": 2.0, "dual.start": (0.0, 5.0), "constraints.reference": None}
    changed(**shifted, **{"dual.frozen": (2,)}).check()


def test_one_start_a_constraint_is_allowed(changed):
    changed(**{"dual.start": (0.0, 1.0, 2.0)}).check()
    changed(**{"dual.start": (1.0, 2.0), "constraints.reference": None}).check()
    with pytest.raises(UserError, match=r"--dual\.start"):
        changed(**{"dual.start": (1.0, 2.0)}).check()
