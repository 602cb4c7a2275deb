"""Every experiment by name: what it shows, and its configuration."""

from typing import NamedTuple

from train.config import VideoConfig

__all__ = ["EXPERIMENTS", "Experiment"]


class Experiment(NamedTuple):
    """One row of the table.

    Attributes:
      config: the defaults, which command-line options override.
      summary: one line for `python -m train list`.
      paper: where it comes from.
      expect: what a run should end with, and how long it takes.
    """

    config: VideoConfig
    summary: str
    paper: str
    expect: str


EXPERIMENTS: dict[str, Experiment] = {
    "demo": Experiment(
        config=VideoConfig(method="both", out="runs/demo"),
        summary="3-layer unrolled transformer on built-in clips, plain and constrained, compared",
        paper="Porras-Valenzuela, Hadou, Ribeiro, Section 4",
        expect="feasible at every layer; under 8 minutes on 2 cores",
    ),
    "video-ut": Experiment(
        config=VideoConfig(),
        summary="unrolled transformer denoising video, one method (or both) on a source of yours",
        paper="Porras-Valenzuela, Hadou, Ribeiro, Section 4, Table 3",
        expect="feasible at every layer; about 2 minutes at 3 layers on 2 cores",
    ),
}
