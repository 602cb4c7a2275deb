"""Exported runs: the same parameters bit for bit, and one clear error for what does
not belong together."""

import contextlib
import json
from collections import OrderedDict
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from safetensors import safe_open
from safetensors.numpy import save_file

from tests.errors import one_line
from tests.tasks import assert_same_bits
from tests.train.commands import files_of, flip_a_bit, quiet, read, refused
from tests.train.conftest import traced_state, traced_task
from unroll_jax import multipliers_of
from unroll_jax.energies.transformer_parts import TransformerParams
from unroll_jax.train import load
from unroll_jax.train.__main__ import main
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.config.options import to_json
from unroll_jax.train.core.checkpoint import Checkpoints
from unroll_jax.train.core.metrics import read_metrics
from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.exporting import export
from unroll_jax.train.loading import (
    FORMAT,
    Export,
    claim,
    is_export,
    read_export,
    restored,
)

pytestmark = [
    pytest.mark.xdist_group("video-runs"),
    pytest.mark.usefixtures("in_memory"),
]


@pytest.fixture
def best(finished, config, clips):
    with Checkpoints(finished / "checkpoints", read_only=True) as checkpoints:
        task = traced_task(config, clips)
        return checkpoints.best(traced_state(task, make_plan(task)))


def test_parameters_come_back_bit_for_bit_by_their_names(
    finished, both, best, exported, config
):
    model = load(exported)
    assert_same_bits(model.params, best.state.params)
    assert (model.card["step"], model.card["config"]) == (best.step, to_json(config))
    prices = multipliers_of(best.state.opt_state)
    kind = "violation/"
    names = [name for name in model.card["validation"] if name.startswith(kind)]
    ours = [float(prices[name.removeprefix(kind)]) for name in names]
    assert model.card["multipliers"] == ours
    rows = read_metrics(finished / "metrics.jsonl")
    assert model.card["validation"] in rows
    assert str(both) not in (exported / "config.json").read_text()
    layers = jax.device_get(best.state.params)["params"]["layers"]
    with safe_open(exported / "model.safetensors", framework="numpy") as file:
        assert set(file.keys()) == {f"params.layers.{name}" for name in "VWU"}
        assert_array_equal(file.get_tensor("params.layers.V"), layers.V)


@pytest.fixture
def exported_params(finished, best, monkeypatch, tmp_path):
    def go(params):
        checkpoint = best._replace(state=best.state._replace(params=params))
        monkeypatch.setattr(
            "unroll_jax.train.exporting.best_checkpoint", lambda *_, **__: checkpoint
        )
        return export(finished, tmp_path / "own", log=quiet)

    return go


def test_every_dtype_and_shape_survives(exported_params):
    params = {
        "half": np.random.default_rng(0).normal(size=(3, 5)).astype(jnp.bfloat16),
        "deep": {"er": {"scalar": jnp.float32(0.1), "none": np.zeros((0, 3))}},
        "turned": np.arange(12.0).reshape(3, 4).T,
        "flags": np.array([True, False]),
        "several": [np.ones(2, np.float32), (np.zeros(1, np.int8), None), {}],
        "dotted.key": {"": np.zeros(2), "ordered": OrderedDict(b=np.ones(3))},
        "whole": {3: np.arange(2), 20: np.zeros(2)},
        "layer": TransformerParams(np.ones((2, 3), np.float32), np.eye(2)),
        "odd": np.array([np.nan, -0.0, np.inf], np.float32),
    }
    own = SimpleNamespace(init=lambda key: jax.tree.map(jnp.zeros_like, params))
    with jax.enable_x64(True):
        arrays = read_export(exported_params(params)).arrays
        assert_same_bits(restored(own, arrays), params)


def _config(change):
    def damage(out):
        values = read(out / "config.json")
        change(values)
        (out / "config.json").write_text(json.dumps(values))

    return damage


DAMAGE = {
    "flipped": (lambda out: flip_a_bit(out / "model.safetensors"), "sha256"),
    "half a config": (
        lambda out: (out / "config.json").write_text('{"format'),
        r"config\.json is damaged",
    ),
    "another shape": (
        _config(lambda c: c["parameters"]["params.V"].update(shape=[2, 4])),
        r"differs .* in params\.V",
    ),
    "no facts": (_config(lambda c: c.pop("facts")), "missing 'facts'"),
    "of version 0.1": (
        _config(lambda c: c.update(format="unroll_jax 1")),
        "format must be .*export the run again",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_one_clear_line_with_the_way_out(exported_params, damage):
    out = exported_params(
        {
            "params": {
                "V": np.ones((2, 4, 16), np.float32),
                "W": np.ones((3, 3), np.float32),
            }
        }
    )
    change, words = DAMAGE[damage]
    assert isinstance(read_export(out), Export)
    change(out)
    assert is_export(out)
    with one_line(words, "export", str(out)):
        read_export(out)


@pytest.mark.parametrize(
    ("metadata", "files", "ours"),
    [
        (
            {"format": "pt", "unroll_jax": FORMAT},
            ["tokenizer.json", "chat_template.jinja"],
            True,
        ),
        (None, ["model.partial"], True),  # killed before the parameters
        # saved by transformers over an export
        ({"format": "pt"}, ["config.json", "tokenizer.json"], False),
        (None, ["README.md"], False),
    ],
)
def test_a_folder_that_is_not_ours_is_left_alone(tmp_path, metadata, files, ours):
    if metadata is not None:
        save_file({"W": np.ones(2)}, tmp_path / "model.safetensors", metadata)
    for name in files:
        (tmp_path / name).write_text('{"model_type": "llama"}')
    before = files_of(tmp_path)
    with (
        contextlib.nullcontext()
        if ours
        else pytest.raises(UserError, match="holds files of something else")
    ):
        claim(tmp_path)
    assert files_of(tmp_path) == before


def test_the_command_exports_over_an_earlier_export(finished, start, config, capsys):
    assert main(["export", str(finished), "--mesh", "data=1"]) == 0
    out = finished / "export"
    names = {"README.md", "config.json", "model.safetensors"}
    assert {path.name for path in out.iterdir()} == names
    assert read_export(out).config == config, "it says nothing of the devices"
    assert any("finished already" in line for line in start(config))
    before = files_of(out)
    assert main(["export", str(finished)]) == 0
    assert files_of(out) == before
    words = ("export", str(finished), "--format", "transformers")
    assert "is for language models" in refused(capsys, *words)
    assert not (finished / "transformers").exists()
