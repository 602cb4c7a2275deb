"""What a text classifier is worth: every layer on held-out data, at every strength of noise."""

from typing import Any

import jax
import numpy as np

from train.constrained import feasibility, noise_figures, noise_levels, ratio_figures
from train.text.config import TextEncoderConfig, TextUnrolledConfig
from train.text.early_exit import evaluate_exits
from train.text.material import TextMaterial
from train.text.reading import make_split_reading
from train.text.task import Task

__all__ = ["area_under", "evaluate_text"]


def area_under(accuracies: dict[float, float]) -> float | None:
    """Area under accuracies by gamma, by trapezoids and unnormalised: over [0, 2] it is at most 2; None under one."""
    gammas = sorted(accuracies)
    if len(gammas) < 2:
        return None
    return float(np.trapezoid([accuracies[gamma] for gamma in gammas], gammas))


def evaluate_text(
    config: TextEncoderConfig | TextUnrolledConfig,
    task: Task,
    material: TextMaterial,
    params: Any,
    multipliers: Any,
    slacks: Any = None,
) -> dict[str, Any]:
    """Everything reports need of one trained model, on the test split; JSON values.

    The area is over ``test_gammas`` alone, so that runs of different training noise compare. Figures of layers are at
    the noise of training. Multipliers and slacks are those of training, in plain units; None stands for the slacks that
    multipliers imply.
    """
    split_reading = make_split_reading(task, material)
    readings = {gamma: split_reading(params, "test", gamma) for gamma in noise_levels(config)}
    accuracies = {gamma: float(reading.accuracies()[-1]) for gamma, reading in readings.items()}
    at_training = readings[float(config.train_gamma)]
    validation = split_reading(params, "validation", config.train_gamma)
    noise = noise_figures(config)
    return {
        "method": config.method,
        **noise,
        "num_layers": task.model.num_layers,
        "seed": config.seed,
        "num_examples": material.tokens.num_examples("test"),
        "class_names": list(material.class_names),
        "accuracy": {str(gamma): accuracy for gamma, accuracy in accuracies.items()},
        "area": area_under({gamma: accuracies[gamma] for gamma in noise["test_gammas"]}),
        "error_rates": (1.0 - at_training.accuracies()).tolist(),
        "embedding_std": material.embedding_std,
        "noise": config.noise,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        **feasibility(config, task.bounds, at_training.losses, multipliers, slacks),
        **ratio_figures(at_training.losses),
        "early_exit": evaluate_exits(config, task, material, params, validation, at_training),
    }
