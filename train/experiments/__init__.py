"""Every experiment by name: what it shows, and its configuration."""

from ..config.run import Experiment
from ..config.video import VideoConfig
from .images import SUPERVISED
from .sparse_coding import SPARSE_CODING
from .text import TEXT

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
    **SUPERVISED,
    **SPARSE_CODING,
    **TEXT,
}
