"""What tasks of tokens share: noise on embeddings, accuracy, and the area under it."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from ..core.task import Params, Reading, Row, Trial
from .common import feasibility_words, gaussian
from .text.options import TokensConfig

SCORE = "accuracy"


def noise_variance(options: TokensConfig, gamma: Any, embedding_std: float) -> Any:
    """Returns the variance of the noise of a strength. The standard deviation of clean
    embeddings is its unit."""
    size = gamma * embedding_std
    return size**2 if options.noise == "deviation" else size


def dropout_keys(options: Any, trial: Trial, key: jax.Array, rows: int) -> Any:
    """Returns a raw key of dropout for each row of a step of training; None for a
    reading, or without dropout."""
    if not trial.augment or getattr(options, "dropout", 0.0) == 0.0:
        return None
    return jax.random.key_data(jax.random.split(jax.random.fold_in(key, 2), rows))


def as_keys(raw: Any) -> Any:
    """Returns keys of dropout for a model; None for None."""
    return None if raw is None else jax.random.wrap_key_data(raw)


def draw_noise(
    options: TokensConfig,
    embedding_std: float,
    key: jax.Array,
    shape: tuple[int, ...],
    gamma: Any,
) -> Array | None:
    """Draws noise on embeddings, (batch, n, dim); None where its strength is known to
    be 0."""
    if isinstance(gamma, float) and gamma == 0.0:
        return None
    return gaussian(key, shape, noise_variance(options, gamma, embedding_std))


def accuracy(reading: Reading, split: str = "") -> float:
    """Returns the share of ``right`` ones, (samples, L + 1), of the last layer."""
    return float(np.mean(reading["right"][:, -1]))


def error_rates(reading: Reading) -> list[float]:
    """Returns the error rate of each layer."""
    return (1.0 - np.mean(reading["right"], axis=0)).tolist()


def validation_row(params: Params, reading: Reading) -> Row:
    """Returns accuracy, and error rates of layers."""
    return {SCORE: accuracy(reading), "error_rates": error_rates(reading)}


def noise_figures(
    options: TokensConfig,
    readings: Mapping[Trial, Reading],
    embedding_std: float,
    floors: Mapping[str, float],
) -> Row:
    """Returns the area under the accuracy over ``test_gammas`` only, to compare runs,
    error rates at the noise of training, and accuracies of floors without noise."""
    areas = {
        float(gamma): accuracy(readings[Trial(float(gamma))])
        for gamma in options.test_gammas
    }
    labels = [str(gamma) for gamma in options.noise_levels]
    return {
        "area": area_under(areas),
        "error_rates": error_rates(readings[Trial(float(options.train_gamma))]),
        "embedding_std": embedding_std,
        "noise": options.noise,
        "floors": {name: dict.fromkeys(labels, floors[name]) for name in floors},
        "floor_shares": dict.fromkeys(floors, 1.0),
    }


def area_under(accuracies: Mapping[float, float]) -> float | None:
    """Returns the area under accuracies by gamma, by trapezoids: over [0, 2] at most
    2; None for one gamma."""
    if len(accuracies) < 2:
        return None
    gammas = sorted(accuracies)
    return float(np.trapezoid([accuracies[gamma] for gamma in gammas], gammas))


def noise_words(evaluation: Row) -> str:
    """Describes the noise of training, the area under the accuracy, and feasibility."""
    area = ""
    if evaluation["area"] is not None:
        low, *_, high = evaluation["test_gammas"]
        area = f"area {evaluation['area']:.3f} over gamma {low:g} to {high:g}, "
    gamma = evaluation["train_gamma"]
    return f"at gamma {gamma}, {area}{feasibility_words(evaluation)}"
