"""Meshes: parsed, fitted to devices and batch, and the plan of a run on one."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from unroll_jax.train.__main__ import main
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.sharding.mesh import describe_mesh, keep_rows, make_mesh, parse_mesh


def test_axes_come_in_any_order_and_have_size_1_unless_named():
    assert parse_mesh("fsdp=4, data=2") == {"fsdp": 4, "data": 2}
    mesh = make_mesh(None, batch_size=7, devices=jax.devices()[:1])
    assert dict(mesh.shape) == {"data": 1, "fsdp": 1, "tensor": 1}
    assert "(data=1)" in describe_mesh(mesh)


@pytest.mark.parametrize(
    ("text", "batch_size", "words"),
    [
        ("data=3", 9, r"asks for 3 devices, which does not divide the 8 .*device_count=3"),
        ("data=4,tensor=4", 8, "asks for 16 devices"),
        ("data=2,fsdp=4", 12, r"batch_size=12 .* 8 parts .* multiple of 8"),
    ],
)
def test_a_mesh_that_does_not_fit_devices_or_batch_names_both_numbers_and_the_way_out(text, batch_size, words):
    with pytest.raises(UserError, match=words):
        make_mesh(text, batch_size=batch_size, devices=range(8))


def test_every_process_has_a_device():
    devices = [jax.devices()[0], SimpleNamespace(process_index=1)]
    for text, batch_size in (("data=1", 8), (None, 7)):
        with pytest.raises(UserError, match=r"mesh=.*leaves process 1 without a device"):
            make_mesh(text, batch_size=batch_size, devices=devices)


def test_without_a_text_devices_are_as_many_as_divide_a_part_of_the_batch(monkeypatch):
    def made(shape, axes, types, devices):
        return SimpleNamespace(shape=shape, devices=np.array(devices))

    monkeypatch.setattr(jax, "make_mesh", made)
    devices = [SimpleNamespace(process_index=0)] * 8
    assert make_mesh(None, batch_size=8, devices=devices).shape == (8, 1, 1)
    assert make_mesh(None, batch_size=8, accumulate=4, devices=devices).shape == (2, 1, 1)


def test_rows_are_kept_only_on_a_mesh():
    y = np.ones((4, 3), np.float32)
    assert keep_rows(y) is y


def test_a_plan_tells_the_memory_of_a_step_and_runs_none(clips, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("unroll_jax.train.tasks.video.load", lambda config, *, log: clips)
    assert main(["plan", "video-ut", "--batch-size", "4", "--model.num-layers", "2", "--mesh", "data=1"]) == 0
    text = capsys.readouterr().out
    assert "on 1 device (data=1)" in text
    rows = [line.split() for line in text.splitlines()]
    weights = 3 * 2 * 16 * 16 * 4
    assert ["parameters", f"{weights:,}"] in rows
    assert list(tmp_path.iterdir()) == []
