"""Every experiment by name: what it shows, and its configuration."""

from ..config.constraints import ConstraintConfig
from ..config.data import DataConfig
from ..config.run import Experiment
from ..config.video import VideoConfig
from .images import SUPERVISED
from .language import LANGUAGE
from .sparse_coding import DEMO, SPARSE_CODING
from .text import TEXT

EXPERIMENTS: dict[str, Experiment] = {
    "demo": DEMO,
    "video-ut": Experiment(
        config=VideoConfig(),
        summary="unrolled transformer denoising video, one method (or both) on a source of yours",
        paper="Porras-Valenzuela, Hadou, Ribeiro, Section 4, Table 3",
        expect="feasible at every layer; about 2 minutes at 3 layers on 2 cores",
    ),
    "ucsd-ut": Experiment(
        config=VideoConfig(
            data=DataConfig(source="frames"),
            constraints=ConstraintConfig(first_alpha=0.81, alpha=(0.22,), reference=5.5, first_margin=0.05),
        ),
        summary="unrolled transformer on UCSD Ped2, constraints as chosen on its validation clips; needs --data.root",
        paper="Porras-Valenzuela, Hadou, Ribeiro, Section 4, Table 3",
        expect="3 layers, RMSE at gamma 0.15 and 0.5: plain 7.5 and 16.7, constrained 7.7 and 14.6; 3 minutes",
    ),
    **SUPERVISED,
    **SPARSE_CODING,
    **TEXT,
    **LANGUAGE,
}
