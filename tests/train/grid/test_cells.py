"""Cells that share a task, and those that cannot: whatever a task reads when it is opened is its own."""

import dataclasses

import pytest

from unroll_jax.train.config.video import VideoConfig, VideoViTConfig, ViTOptions
from unroll_jax.train.grid.axes import Cell
from unroll_jax.train.grid.cells import Opened, compute, log_of


class Openings:
    """Stands in for `open_task`: tasks that remember what they were opened by."""

    def __init__(self):
        self.opened = []

    def __call__(self, config, log):
        self.opened.append(config)
        return self

    def with_config(self, config):
        return self


def cell(config, name="one"):
    return Cell(name, "video-ut", {}, config, None)


@pytest.mark.parametrize(
    ("first", "second", "openings"),
    [
        (VideoConfig(seed=0), VideoConfig(seed=1), 1),
        (VideoConfig(seed=0), VideoViTConfig(seed=0), 2),
        (VideoViTConfig(model=ViTOptions(dim=256)), VideoViTConfig(model=ViTOptions(dim=512)), 1),
        (VideoViTConfig(model=ViTOptions(pretrained="a")), VideoViTConfig(model=ViTOptions(pretrained="b")), 2),
        (
            VideoViTConfig(model=ViTOptions(pretrained="a")),
            VideoViTConfig(model=ViTOptions(pretrained="a", reading="linear")),
            2,
        ),
        (VideoConfig(), dataclasses.replace(VideoConfig(), data=dataclasses.replace(VideoConfig().data, root="x")), 2),
    ],
)
def test_cells_share_what_is_opened_alike_and_nothing_else(monkeypatch, first, second, openings):
    open_task = Openings()
    monkeypatch.setattr("unroll_jax.train.grid.cells.open_task", open_task)
    opened = Opened(lambda line: None)
    for config in (first, second):
        opened.task(cell(config))
    assert len(open_task.opened) == openings


def test_what_goes_wrong_in_one_cell_is_its_outcome_and_its_trace_is_in_the_log(monkeypatch, tmp_path):
    def refuse(config, log):
        raise ValueError("a device has no memory left\nand much more")

    monkeypatch.setattr("unroll_jax.train.grid.cells.open_task", refuse)
    lines = []
    state = compute(tmp_path, cell(VideoConfig()), Opened(lines.append), lines.append)
    assert state == ("failed", "ValueError: a device has no memory left")
    assert any("Traceback" in line for line in lines)
    assert not log_of(tmp_path, cell(VideoConfig())).exists()
