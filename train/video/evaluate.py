"""Losses on held-out data: over a validation split while training, and the full evaluation of a run."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from train.constrained import feasibility, noise_figures, noise_levels, ratio_figures
from train.data import VideoData
from train.processes import fetch
from train.sharding import put_beside
from train.video.config import VideoConfig
from train.video.health import layer_health
from train.video.task import Task, add_noise, to_unit

__all__ = ["SplitLosses", "evaluate_video", "make_split_losses"]

# Sequences a batch of the evaluation: no gradient is kept, so more fit than in training.
BATCH_SIZE = 250
# The noise of the evaluation is the same for every run, method and level (scaled), so that runs compare like with like.
NOISE_SEED = 20260101


class SplitLosses(NamedTuple):
    """Over a whole split at one noise level.

    Attributes:
      sample_losses: (N, L + 1) loss of every sequence at every layer.
      dead: (L + 1,) share of dead units.
      spread: (L + 1,) spread of the outputs over samples.
    """

    sample_losses: np.ndarray
    dead: np.ndarray
    spread: np.ndarray


def make_split_losses(task: Task, data: VideoData) -> Any:
    """A function ``(params, split, gamma) -> SplitLosses``, compiled once."""

    @jax.jit
    def batch_losses(params: Any, batch: jax.Array, variance: jax.Array, key: jax.Array) -> Any:
        clean = to_unit(batch)
        noisy = add_noise(clean, variance, key)
        return task.outputs(
            params, noisy, lambda y: (0.5 * jnp.mean(jnp.sum((y - clean) ** 2, -1), -1), layer_health(y))
        )

    def split_losses(params: Any, split: str, gamma: float) -> SplitLosses:
        losses, healths = [], []
        for index, batch in enumerate(data.examples(split, batch_size=BATCH_SIZE)):
            key = jax.random.fold_in(jax.random.key(NOISE_SEED), index)
            sample, health = fetch(batch_losses(params, put_beside(params, batch), gamma * data.pixel_std, key))
            losses.append(sample.T)
            healths.append(health)
        # A unit is dead if it is in every batch; the smallest share bounds that from above.
        dead = np.min([health.dead for health in healths], axis=0)
        spread = np.mean([health.spread for health in healths], axis=0)
        return SplitLosses(np.concatenate(losses), dead, spread)

    return split_losses


def evaluate_video(
    config: VideoConfig, task: Task, data: VideoData, params: Any, multipliers: Any, slacks: Any = None
) -> dict[str, Any]:
    """Everything reports need of one trained model, on the test split; JSON values.

    RMSE is over all pixels of all sequences, on the 0-255 scale, without clipping. Lists over layers have null where
    there is nothing to say: the bound of layer 0 without a reference, ratios to an input without noise. Bounds and
    violations are those stated; complementary slackness is of the tightened ones, which the multipliers enforced.
    Multipliers and slacks are those of training, in plain units; None stands for the slacks that multipliers imply.
    """
    split_losses = make_split_losses(task, data)
    by_gamma = {gamma: split_losses(params, "test", gamma).sample_losses for gamma in noise_levels(config)}
    at_training = by_gamma[float(config.train_gamma)]
    return {
        "method": config.method,
        **noise_figures(config),
        "num_layers": config.model.num_layers,
        "seed": config.seed,
        "num_sequences": len(at_training),
        "rmse": {str(gamma): _rmse(losses[:, -1], data) for gamma, losses in by_gamma.items()},
        "noisy_rmse": {str(gamma): _rmse(losses[:, 0], data) for gamma, losses in by_gamma.items()},
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        **feasibility(config, task.bounds, at_training, multipliers, slacks),
        **ratio_figures(at_training),
    }


def _rmse(losses: np.ndarray, data: VideoData) -> float:
    """From 1/2 |error|^2 a frame's patch to the root mean squared error of a pixel on the 0-255 scale."""
    return float(255.0 * np.sqrt(2.0 * np.mean(losses, dtype=np.float64) / data.token_dim))
