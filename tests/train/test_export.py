"""Exported runs: the same parameters bit for bit, and one clear error for whatever does not belong together."""

import dataclasses
import importlib
import json
import pkgutil
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open

import unroll_jax
from train.checkpoint import Checkpoints
from train.cli import main
from train.config import to_json
from train.constrained import init_state
from train.errors import UserError
from train.export import Exported, export, load_exported
from train.metrics import read_metrics
from train.runs import best_checkpoint
from train.structure import PARAMETER_TYPES, flatten
from train.tuning import Judgement
from train.video.task import video_task
from unroll_jax.energies.transformer import TransformerParams

pytestmark = [pytest.mark.xdist_group("video-runs"), pytest.mark.usefixtures("in_memory")]


@pytest.fixture
def run(finished):
    """A copy of a small constrained run."""
    return finished


@pytest.fixture
def exported(run):
    return export(run, log=lambda _: None)


def _best(run, config, clips):
    like = jax.eval_shape(lambda: init_state(config, video_task(config, clips)))
    with Checkpoints(run / "checkpoints", read_only=True) as checkpoints:
        return checkpoints.best(like)


def test_parameters_and_outputs_come_back_bit_for_bit(run, exported, config, clips):
    step, state, _ = _best(run, config, clips)
    found = load_exported(exported)
    assert found.config["step"] == step
    assert jax.tree.structure(found.params) == jax.tree.structure(jax.device_get(state.params))
    for leaf, other in zip(jax.tree.leaves(found.params), jax.tree.leaves(state.params), strict=True):
        assert leaf.dtype == other.dtype
        assert leaf.tobytes() == np.asarray(other).tobytes()
    task = video_task(config, clips)
    noisy = np.random.default_rng(0).uniform(size=clips.splits["test"].shape).astype(np.float32)
    outputs = jax.jit(lambda params: task.outputs(params, jnp.asarray(noisy), lambda y: y))
    assert np.asarray(outputs(found.params)).tobytes() == np.asarray(outputs(state.params)).tobytes()


def test_names_are_keys_joined_by_dots_and_any_reader_finds_the_arrays(run, exported, config, clips):
    params = jax.device_get(_best(run, config, clips)[1].params)
    layers = params["params"]["layers"]
    expected = {"params.layers.V": layers.V, "params.layers.W": layers.W, "params.layers.U": layers.U}
    with safe_open(exported / "model.safetensors", framework="numpy") as file:
        assert set(file.keys()) == set(expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(file.get_tensor(name), array)


def test_config_json_says_what_the_run_was_and_what_its_multipliers_are(run, exported, config, clips):
    step, state, _ = _best(run, config, clips)
    found = json.loads((exported / "config.json").read_text())
    assert found["experiment"] == "video-ut"
    assert found["config"] == to_json(config)
    assert found["multipliers"] == np.asarray(state.dual.multipliers).tolist()
    rows = [row for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "validation" and row["step"] == step]
    assert [found["validation"]] == rows
    assert found["feasible"] == rows[0]["feasible"]
    assert found["parameters"]["params.layers.V"] == {"shape": [2, 4, 16], "dtype": "float32"}
    assert str(run.parent) not in (exported / "config.json").read_text()


def test_an_infeasible_run_says_so_and_a_plain_one_has_no_multipliers(infeasible, both, tmp_path):
    log = []
    found = load_exported(export(infeasible[0], tmp_path / "steep", log=log.append)).config
    assert found["feasible"] is False
    assert any("NOT feasible" in line for line in log)
    found = load_exported(export(both / "erm", tmp_path / "plain", log=lambda _: None)).config
    assert (found["feasible"], found["multipliers"]) == (None, None)


@pytest.fixture
def exported_params(run, monkeypatch, tmp_path):
    """Exports parameters of one's own in place of those of the run."""
    best = best_checkpoint(run, log=lambda _: None)

    def go(params):
        found = best._replace(state=best.state._replace(params=params))
        monkeypatch.setattr("train.export.best_checkpoint", lambda folder, *, mesh, log: found)
        return export(run, tmp_path / "own", log=lambda _: None)

    return go


def test_every_dtype_and_shape_survives(exported_params):
    params = {
        "half": np.random.default_rng(0).normal(size=(3, 5)).astype(jnp.bfloat16),
        "deep": {
            "er": {
                "scalar": jnp.float32(0.1),
                "whole": jnp.asarray(np.arange(4)),
                "none": jnp.asarray(np.zeros((0, 3))),
            }
        },
        "turned": np.arange(12.0, dtype=np.float64).reshape(3, 4).T,
        "flags": np.array([True, False]),
        "several": [np.ones(2, np.float32), (np.zeros(1, np.int8), None)],
        "layer": TransformerParams(W_a=np.ones((2, 3), np.float32), W_f=np.eye(2, dtype=np.float32)),
        "odd": np.array([np.nan, -0.0, np.inf], np.float32),
    }
    found = load_exported(exported_params(params)).params
    assert jax.tree.structure(found) == jax.tree.structure(params)
    for leaf, other in zip(jax.tree.leaves(found), jax.tree.leaves(params), strict=True):
        assert (leaf.dtype, leaf.shape) == (other.dtype, other.shape)
        assert leaf.tobytes() == np.asarray(other).tobytes()


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"a.b": np.ones(2)}, "key 'a.b' in the whole is no name without dots"),
        ({"a": {"": np.ones(2)}}, "key '' in a is no name"),
        ({"a": {3: np.ones(2)}}, "key 3 in a is no name"),
        ({"a": {"b": 1.5}}, "a.b is a float"),
        ({"a": OrderedDict(b=np.ones(2))}, "a is a OrderedDict"),
        ({"a": Judgement(np.ones(2), None, 1.0)}, "a is a Judgement"),
        (np.ones(2), "the whole is a ndarray"),
    ],
)
def test_what_could_not_be_built_again_is_refused_by_its_name(params, words):
    with pytest.raises(UserError) as caught:
        flatten(params)
    assert words in str(caught.value)


def test_every_type_of_parameters_can_be_exported():
    found = set()
    for module in pkgutil.walk_packages(unroll_jax.__path__, "unroll_jax."):
        values = vars(importlib.import_module(module.name)).values()
        found |= {value for value in values if isinstance(value, type) and value.__name__.endswith("Params")}
    assert {cls for cls in found if hasattr(cls, "_fields")} == set(PARAMETER_TYPES.values())


def _edit(path, change):
    path.write_bytes(change(path.read_bytes()))


def _edit_json(path, change):
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def _model(change):
    return lambda out: _edit(out / "model.safetensors", change)


def _config(change):
    return lambda out: _edit_json(out / "config.json", change)


DAMAGE = {
    "truncated": (_model(lambda b: b[: len(b) // 2]), "is damaged"),
    "empty": (_model(lambda b: b""), "is damaged"),
    "longer": (_model(lambda b: b + b"0"), "is damaged"),
    "flipped": (_model(lambda b: b[:-3] + bytes([b[-3] ^ 1]) + b[-2:]), "sha256"),
    "missing": (lambda out: (out / "model.safetensors").unlink(), "cannot read"),
    "no config": (lambda out: (out / "config.json").unlink(), "is no exported folder"),
    "half a config": (lambda out: _edit(out / "config.json", lambda b: b[:100]), r"config\.json is damaged"),
    "another shape": (
        _config(lambda c: c["parameters"]["params.V"].update(shape=[2, 16, 4])),
        r"differs .* in params\.V",
    ),
    "another dtype": (_config(lambda c: c["parameters"]["params.V"].update(dtype="int32")), r"differs .* in params\.V"),
    "one less": (_config(lambda c: c["parameters"].pop("params.V")), r"params\.V"),
    "no parameters": (_config(lambda c: c.pop("parameters")), "missing 'parameters'"),
    "odd parameters": (_config(lambda c: c.update(parameters=[3])), "is damaged"),
    "no structure": (_config(lambda c: c.pop("structure")), "missing 'structure'"),
    "odd structure": (_config(lambda c: c.update(structure=[1])), "its structure is none"),
    "structure of another": (_config(lambda c: c.update(structure="params.T")), r"no array is called params\.T"),
    "unknown type": (_config(lambda c: c["structure"].update(type="os.system")), "has a os.system of params"),
    "no sum": (_config(lambda c: c.pop("sha256")), "missing 'sha256'"),
    "another format": (_config(lambda c: c.update(format="2")), "format must be"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_one_clear_line_with_the_way_out(exported_params, damage):
    V = np.random.default_rng(0).normal(size=(2, 4, 16)).astype(np.float32)
    out = exported_params({"params": {"V": V, "W": np.ones((3, 3), np.float32)}})
    change, words = DAMAGE[damage]
    assert isinstance(load_exported(out), Exported)
    change(out)
    with pytest.raises(UserError, match=words) as caught:
        load_exported(out)
    message = str(caught.value)
    assert "\n" not in message
    assert "export" in message
    assert str(out) in message


def test_files_of_two_exports_do_not_pass_for_one(exported_params, tmp_path):
    out = exported_params({"W": np.ones(3, np.float32)})
    before = (out / "config.json").read_bytes()
    exported_params({"W": np.zeros(3, np.float32)})  # over the first one
    assert load_exported(out).params["W"].tolist() == [0.0, 0.0, 0.0]
    (out / "config.json").write_bytes(before)  # what a kill between the two files leaves
    with pytest.raises(UserError, match="sha256"):
        load_exported(out)


def test_a_folder_of_something_else_is_left_alone(run, config, tmp_path):
    for out, kept in ((run, run / "config.json"), (tmp_path / "mine", tmp_path / "mine" / "config.json")):
        out.mkdir(exist_ok=True)
        if not kept.exists():
            kept.write_text('{"dear": 1}')
        before = kept.read_bytes()
        with pytest.raises(UserError, match="no export; pass an empty or a new folder"):
            export(run, out, log=lambda _: None)
        assert kept.read_bytes() == before
    (tmp_path / "file").write_text("dear")
    with pytest.raises(UserError, match="cannot write to --out"):
        export(run, tmp_path / "file", log=lambda _: None)


def test_the_command_exports_and_names_what_is_no_run(run, capsys, tmp_path):
    assert main(["export", str(run), "--out", str(tmp_path / "model")]) == 0
    assert "parameters in 3 arrays" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]
    assert load_exported(tmp_path / "model").config["experiment"] == "video-ut"
    assert main(["export", str(tmp_path / "nowhere")]) == 2
    assert "nowhere is no run folder" in capsys.readouterr().err
    assert main(["export"]) == 2
    assert "Missing" in capsys.readouterr().err


def test_an_export_beside_the_run_does_not_keep_it_from_being_used(run, exported, start, config):
    assert exported == run / "export"
    log = start(dataclasses.replace(config))
    assert any("finished already" in line for line in log)
