"""The experiments on video by name: models, on the built-in clips and on UCSD Ped2."""

from ..config.constraints import ConstraintConfig
from ..config.data import DataConfig
from ..config.run import Experiment
from ..config.video import VideoConfig, VideoDustConfig, VideoRunConfig, VideoViTConfig

UCSD = DataConfig(source="video")
PAPER = "Porras-Valenzuela, Hadou, Ribeiro, Section 4, Table 3"


def _denoising(config: VideoRunConfig, summary: str, expect: str) -> Experiment:
    return Experiment(config, summary, PAPER, expect)


VIDEO: dict[str, Experiment] = {
    "video-ut": _denoising(
        VideoConfig(),
        "unrolled transformer denoising video, one method (or both) on a source of yours",
        "feasible at every layer; about 2 minutes at 3 layers on 2 cores",
    ),
    "ucsd-ut": _denoising(
        VideoConfig(
            data=UCSD,
            constraints=ConstraintConfig(first_alpha=0.81, alpha=(0.22,), reference=5.5, first_margin=0.05),
        ),
        "unrolled transformer on UCSD Ped2, constraints as chosen on its validation clips; needs --data.root",
        "3 layers, RMSE at gamma 0.15 and 0.5: plain 7.5 and 16.7, constrained 7.7 and 14.6; 3 minutes",
    ),
    "video-dust": _denoising(
        VideoDustConfig(),
        "DUST, sparse codes of patches that attend to one another, denoising video",
        "feasible, 43% below its tightest bound; RMSE at gamma 0.15: 11.0 (linear layer 12.0); 3 minutes on one core",
    ),
    "ucsd-dust": _denoising(
        VideoDustConfig(
            data=UCSD, constraints=ConstraintConfig(first_alpha=0.22, alpha=(0.22,), reference=1.0, first_margin=0.05)
        ),
        "DUST on UCSD Ped2, constraints as chosen on its validation clips; needs --data.root",
        "RMSE at gamma 0.15: 9.3 plain, 9.1 constrained, feasible (600 steps, 3 seeds; docs/video.md); 1 minute",
    ),
    "video-vit": _denoising(
        VideoViTConfig(),
        "a vision transformer denoising the frames of video, drawn or pretrained",
        "drawn: feasible, 51% below its tightest bound; RMSE at gamma 0.15: 10.7 (linear layer 12.0); 3 to 5 minutes "
        "on one core",
    ),
    "ucsd-vit": _denoising(
        VideoViTConfig(
            data=UCSD, constraints=ConstraintConfig(first_alpha=0.22, alpha=(0.22,), reference=0.5, first_margin=0.05)
        ),
        "a small vision transformer on the frames of UCSD Ped2, constraints as chosen on its validation clips; needs "
        "--data.root",
        "RMSE at gamma 0.15: 8.7 plain, 8.4 constrained, feasible (600 steps, 3 seeds; docs/video.md); 1 minute",
    ),
}
