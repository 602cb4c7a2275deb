"""Meshes, fitted to devices and batch; the plan of a run on one; rules of sharding."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from tests.errors import one_line
from tests.train.conftest import CLIPS
from unroll_jax.train.__main__ import main
from unroll_jax.train.sharding import (
    AXES,
    describe_mesh,
    keep_rows,
    make_mesh,
    parse_mesh,
    shardings,
)


def test_axes_come_in_any_order():
    assert parse_mesh("fsdp=4, data=2") == {"fsdp": 4, "data": 2}
    mesh = make_mesh(None, batch_size=7, devices=jax.devices()[:1])
    assert dict(mesh.shape) == {"data": 1, "fsdp": 1, "tensor": 1}
    assert "(data=1)" in describe_mesh(mesh)
    y = np.ones((4, 3), np.float32)
    assert keep_rows(y) is y, "rows are kept on a mesh only"


EIGHT = [SimpleNamespace(process_index=0)] * 8
TWO_PROCESSES = [jax.devices()[0], SimpleNamespace(process_index=1)]


@pytest.mark.parametrize(
    ("text", "batch_size", "devices", "words"),
    [
        (
            "data=3",
            9,
            EIGHT,
            r"asks for 3 devices, which does not divide the 8 .*device_count=3",
        ),
        ("data=2,fsdp=4", 12, EIGHT, r"batch_size=12 .* 8 parts .* multiple of 8"),
        ("data=1", 8, TWO_PROCESSES, r"mesh=.*leaves process 1 without a device"),
    ],
)
def test_a_mesh_that_does_not_fit_is_named(text, batch_size, devices, words):
    with one_line(words):
        make_mesh(text, batch_size=batch_size, devices=devices)


def test_a_plan_tells_the_memory_of_a_step(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    load = "unroll_jax.train.tasks.video.task.load"
    monkeypatch.setattr(load, lambda config, *, log: CLIPS)
    words = "plan video-ut --batch-size 4 --model.num-layers 2 --mesh data=1"
    assert main(words.split()) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    weights = 3 * 2 * 16 * 16 * 4
    assert ["parameters", f"{weights:,}"] in rows
    assert list(tmp_path.iterdir()) == []


MIXED = AbstractMesh((2, 2, 2), AXES)


class State(NamedTuple):
    params: Any
    opt_state: Any
    multipliers: Any


def _params(**shapes):
    kernels = {
        name: {"kernel": np.zeros(shape, np.float32)} for name, shape in shapes.items()
    }
    return {"layers": kernels, "b": np.zeros(8, np.float32)}


def _specs(state, mesh=MIXED, **options):
    return jax.tree.map(
        lambda sharding: sharding.spec, shardings(state, mesh, **options)
    )


def test_moments_are_where_their_parameters_are():
    params, rule = (
        _params(query=(3, 8, 4), output=(3, 4, 8)),
        optax.chain(optax.clip(1.0), optax.adamw(1e-3)),
    )
    state = rule.init(params)
    specs = _specs(State(params, state, np.zeros(4, np.float32)))
    whole = PartitionSpec()
    expected = optax.tree.map_params(
        rule, lambda _, s: s, state, specs.params, transform_non_params=lambda _: whole
    )
    assert specs.opt_state == expected
    assert specs.params["layers"]["query"]["kernel"] == PartitionSpec(
        None, "fsdp", "tensor"
    )
    assert specs.params["layers"]["output"]["kernel"] == PartitionSpec(
        None, "tensor", "fsdp"
    )
    assert specs.multipliers == whole


def test_rows_of_attention_are_over_tensor():
    params = {"layers": {name: np.zeros((3, 8, 8), np.float32) for name in "VWU"}}
    specs = _specs(State(params, (), ())).params["layers"]
    assert specs["V"] == PartitionSpec(None, "tensor", "fsdp")
    assert specs["W"] == specs["U"] == PartitionSpec(None, ("fsdp", "tensor"), None)
    params, rule = _params(up=(8, 4)), optax.adafactor(1e-3, min_dim_size_to_factor=2)
    specs = _specs(State(params, rule.init(params), np.zeros((8, 4), np.float32)))
    assert specs.multipliers == PartitionSpec()
    factored = [spec for spec in jax.tree.leaves(specs.opt_state) if any(spec)]
    assert factored == [], "rows and columns of a factored moment are vectors"


def test_the_first_rule_counts():
    rules = ((r"up/kernel$", (None, "tensor")), (r"kernel$", ("fsdp",)))
    specs = _specs(State(_params(up=(5, 3, 4), down=(5, 3, 4)), (), ()), rules=rules)
    assert specs.params["layers"]["up"]["kernel"] == PartitionSpec(None, None, "tensor")
    assert specs.params["layers"]["down"]["kernel"] == PartitionSpec(None, None, "fsdp")


def test_parameters_that_do_not_fit_a_mesh_are_named():
    with pytest.raises(ValueError, match="more axes than layers/up/kernel"):
        _specs(
            State(_params(up=(4, 4)), (), ()),
            rules=((r"kernel$", ("fsdp", None, "tensor")),),
        )
    with one_line(r"fsdp = 2, which does not divide 7 .*\(7, 4\) of layers/up/kernel"):
        _specs(State(_params(up=(7, 4)), (), ()))
    with one_line("tensor=2, over which no parameter"):
        _specs(State(_params(plain=(8, 4)), (), ()))
