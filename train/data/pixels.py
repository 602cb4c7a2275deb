"""Statistics of pixels, exact over any number of them, from counts by level."""

import numpy as np

__all__ = ["count_levels", "moments"]


def count_levels(pixels: np.ndarray) -> np.ndarray:
    """Counts the levels of each channel: uint8 (..., channels) to integers (channels, 256)."""
    channels = pixels.reshape(-1, pixels.shape[-1]).T
    return np.stack([np.bincount(channel, minlength=256) for channel in channels])


def moments(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation, in [0, 1], of pixels counted by level, (..., 256) to (...)."""
    levels, total = np.arange(256) / 255.0, counts.sum(-1)
    mean = (counts * levels).sum(-1) / total
    deviations = (levels - mean[..., None]) ** 2
    return mean, np.sqrt((counts * deviations).sum(-1) / total)
