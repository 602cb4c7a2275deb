"""Data sets of the training application: one source a file, prepared once, read in reproducible batches."""

from train.data.sources import SOURCES, DataConfig
from train.data.video import VideoData, load, prepare

__all__ = ["SOURCES", "DataConfig", "VideoData", "load", "prepare"]
