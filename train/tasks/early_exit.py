"""Early exit from layers whose losses descend: the improvement to come, predicted from the entropy of a layer."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression

# Accuracy that the chosen threshold may cost on validation data, with the standard error of that: half a point.
TOLERATED = 0.005
NUM_THRESHOLDS = 40


class Predictor(NamedTuple):
    """Predicts the improvement of a text's loss behind layer l, f_l - f_L, from the entropy of the layer's prediction.

    It is an isotonic regression on validation data, layer by layer. A text leaves at the first layer after which little
    is predicted: where every layer lowers the loss, predictions fall with depth.
    """

    entropies: tuple[np.ndarray, ...]  # of layers 0..L-1, rising
    improvements: tuple[np.ndarray, ...]  # the nats predicted at these; between them it is interpolated

    def __call__(self, layer: int, entropies: Any) -> Any:
        """The improvement predicted at a layer; the last has none to come."""
        return np.interp(entropies, self.entropies[layer], self.improvements[layer])

    def all(self, entropies: np.ndarray) -> np.ndarray:
        """That of texts at all layers but the last, (N, L), from entropies (N, L + 1)."""
        return np.stack([self(layer, entropies[:, layer]) for layer in range(len(self.entropies))], axis=1)


def calibrate(losses: np.ndarray, entropies: np.ndarray) -> Predictor:
    """Fits the predictor of every layer to losses and entropies of validation texts, (N, L + 1)."""
    knots = [_fit(entropies[:, layer], losses[:, layer] - losses[:, -1]) for layer in range(losses.shape[1] - 1)]
    return Predictor(*zip(*knots, strict=True))


def exit_layers(predicted: np.ndarray, threshold: float) -> np.ndarray:
    """The first layer of each text whose predicted improvement (N, L) is under the threshold, else the last, L."""
    under = predicted < threshold
    return np.where(under.any(axis=1), under.argmax(axis=1), predicted.shape[1])


def exit_curve(predicted: np.ndarray, correct: np.ndarray, thresholds: Sequence[float]) -> dict[str, list[float]]:
    """Mean depth and accuracy at every threshold, from predicted improvements (N, L) and correct ones (N, L + 1)."""
    depths, accuracies = [], []
    for threshold in thresholds:
        layers = exit_layers(predicted, threshold)
        depths.append(float(layers.mean()))
        accuracies.append(float(np.mean(correct[np.arange(len(layers)), layers])))
    return {"thresholds": list(map(float, thresholds)), "mean_depths": depths, "accuracies": accuracies}


def calibrate_crosswise(losses: np.ndarray, entropies: np.ndarray) -> np.ndarray:
    """Predicts each half of the texts from the other, (N, L), so that no text is predicted by itself."""
    predicted = np.empty(losses[:, :-1].shape)
    for half, other in ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))):
        predicted[half] = calibrate(losses[other], entropies[other]).all(entropies[half])
    return predicted


def cost_of_exit(layers: np.ndarray, correct: np.ndarray) -> tuple[float, float]:
    """Returns the accuracy lost by leaving at these layers (N,), and its standard error; ``correct`` is (N, L + 1)."""
    lost = correct[:, -1].astype(float) - correct[np.arange(len(layers)), layers]
    return float(lost.mean()), float(lost.std() / np.sqrt(len(lost)))


def choose_threshold(predicted: np.ndarray, correct: np.ndarray, thresholds: Sequence[float]) -> float:
    """The threshold of least depth whose cost, with its standard error, is `TOLERATED` at most."""
    layers = [exit_layers(predicted, threshold) for threshold in thresholds]
    kept = [place for place, exits in enumerate(layers) if sum(cost_of_exit(exits, correct)) <= TOLERATED]
    # A threshold below all predictions lets none leave, and costs nothing.
    return float(thresholds[min(kept, key=lambda place: layers[place].mean())])


def thresholds_of(predicted: np.ndarray) -> list[float]:
    """Returns thresholds, from no text leaving early to all leaving at layer 0."""
    levels = np.unique(np.quantile(predicted, np.linspace(0.0, 1.0, NUM_THRESHOLDS)))
    return [float(levels[0]), *levels[1:].tolist(), float(np.nextafter(levels[-1], np.inf))]


def _fit(entropies: np.ndarray, improvements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the steps of the isotonic regression; texts of equal entropy are one point."""
    values, where, counts = np.unique(entropies.astype(np.float64), return_inverse=True, return_counts=True)
    means = np.bincount(where, improvements.astype(np.float64)) / counts
    fitted = np.asarray(isotonic_regression(means, weights=counts).x)
    step = np.diff(fitted) != 0.0
    ends = np.concatenate([[True], step]) | np.concatenate([step, [True]])
    return values[ends], fitted[ends]
