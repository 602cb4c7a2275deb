"""The frame of tasks of tokens, with noise on their embeddings, scored by accuracy."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from ..core.task import Params, Row
from .common import L, LayeredTask, Trial


class TokenTask(LayeredTask[L]):
    """A task of tokens with noise on their embeddings, scored by accuracy; readings
    have the ``accuracies`` of layers. Data have ``embedding_std``, the deviation of
    clean embeddings and unit of noise, and the model's needs as JSON.
    """

    score = "accuracy"

    def __init__(self, config: L, data: Any):
        super().__init__(config, data, spec=data)

    @classmethod
    def rebuild(cls, config: L, spec: Row) -> Self:
        """Returns the task that `model_spec` describes, without its texts."""
        return cls(config, cls.spec_type.from_json(**spec))

    def data_fingerprint(self) -> Row:
        """Returns figures that change when the texts or the pretrained weights do."""
        return self.data.data_fingerprint()

    def variance(self, gamma: float) -> float:
        """Returns the variance of the noise of a strength."""
        if gamma == 0.0:
            return 0.0  # without reading the train split
        size = gamma * self.data.embedding_std
        return size**2 if self.config.noise == "deviation" else size  # pyright: ignore (options of tokens have it)

    def score_of(self, reading: Any, split: str) -> float:
        """Returns the accuracy of the last layer."""
        return float(reading.accuracies[-1])

    def row_of(self, reading: Any) -> Row:
        """Returns accuracy, and error rates of layers."""
        return {
            "accuracy": self.score_of(reading, "validation"),
            "error_rates": (1.0 - reading.accuracies).tolist(),
        }

    def further_figures(self, params: Params, readings: Mapping[Trial, Any]) -> Row:
        """Returns the area under the accuracy over ``test_gammas`` only, to compare
        runs, and error rates."""
        gammas = map(float, self.config.test_gammas)
        return {
            "area": area_under(
                {
                    gamma: self.score_of(readings[Trial(gamma)], "test")
                    for gamma in gammas
                }
            ),
            "error_rates": (1.0 - readings[self.training_trial].accuracies).tolist(),
            "embedding_std": self.data.embedding_std,
            "noise": self.config.noise,  # pyright: ignore (as above)
        }


def area_under(accuracies: Mapping[float, float]) -> float | None:
    """Returns the area under accuracies by gamma, by trapezoids: over [0, 2] at most
    2; None for one gamma."""
    gammas = sorted(accuracies)
    return (
        None
        if len(gammas) < 2
        else float(np.trapezoid([accuracies[gamma] for gamma in gammas], gammas))
    )


def area_words(evaluation: Row) -> str:
    """Describes the area under the accuracy; "" where there is one gamma."""
    low, high = evaluation["test_gammas"][0], evaluation["test_gammas"][-1]
    return (
        ""
        if evaluation["area"] is None
        else f"area {evaluation['area']:.3f} over gamma {low:g} to {high:g}, "
    )
