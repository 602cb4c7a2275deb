"""Video denoising: unrolled transformers, plain and under descent constraints."""

from train.video.config import VideoConfig
from train.video.kind import VIDEO

__all__ = ["VIDEO", "VideoConfig"]
