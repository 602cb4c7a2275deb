"""Floors of sparse coding, without training of layers: ISTA and FISTA of as many steps, and a linear map."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..config.sparse_coding import SparseCodingConfig
from ..data.codes import CodeData
from ..data.lasso import fista
from .common import NOISE_SEED

# Ridge penalties that the linear map is chosen among, times the number of images.
PENALTIES = tuple(10.0**power for power in range(-6, 1))

Coder = Callable[[np.ndarray], np.ndarray]  # images (n, pixels) in [0, 1] -> codes (n, atoms)


def floors(config: SparseCodingConfig, data: CodeData) -> dict[str, dict[str, float]]:
    """Relative errors on the test split at every noise level of coders that cost no more than the network, by name.

    FISTA takes as many steps as there are layers; the linear map is fitted by least squares at the noise of training,
    with the ridge penalty that is best on the validation split. Codes of zeros have the error 1.
    """
    coders: dict[str, Coder] = {
        "FISTA": lambda images: fista(images, data.dictionary, config.data.sparsity, config.model.num_layers),
        "linear map": linear_coder(data, config.train_gamma),
    }
    return {
        name: {str(gamma): error(coder, data, "test", gamma) for gamma in config.noise_levels}
        for name, coder in coders.items()
    }


def linear_coder(data: CodeData, gamma: float) -> Coder:
    """The affine map of images to codes with the least squares at a noise level, and a penalty chosen on validation."""
    from sklearn.linear_model import Ridge  # takes a second, and is needed only to evaluate

    images, codes = noisy(data, "train", gamma)
    models = [Ridge(penalty * len(images)).fit(images, codes) for penalty in PENALTIES]
    return min((model.predict for model in models), key=lambda coder: error(coder, data, "validation", gamma))


def error(coder: Coder, data: CodeData, split: str, gamma: float) -> float:
    """The mean of |z - z*|^2 over that of |z*|^2, at a noise level."""
    images, codes = noisy(data, split, gamma)
    return float(np.sum((coder(images) - codes) ** 2, dtype=np.float64) / np.sum(codes**2, dtype=np.float64))


def noisy(data: CodeData, split: str, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """Images of a split in [0, 1] with noise, the same at every call, and their codes."""
    whole = data.whole(split)
    clean = np.float32(whole.images) / np.float32(255.0)
    noise: Any = np.random.default_rng(NOISE_SEED).standard_normal(clean.shape, np.float32)
    return clean + np.float32(gamma * data.pixel_std) * noise, whole.codes
