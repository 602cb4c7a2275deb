"""Accuracy on disturbed pixels of the test split: under noise, under attacks, and certified against any attack."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..config.disturbances import Disturbance
from ..config.images import ImageTaskConfig, SupervisedConfig
from ..config.networks import is_certifiable
from ..data.pictures import NOT_COUNTED
from ..sharding.mesh import gathered
from ..task import Params, Row
from .attacks import attack, right_answers
from .certified import certified_radius, lipschitz_bound
from .common import NOISE_SEED, on_batches
from .disturbances import disturbance_figures, disturbed
from .facts import MANY
from .scores import confusion, scores

Batch = tuple[np.ndarray, np.ndarray, np.ndarray]  # images, labels, numbers of the examples
Logits = Callable[[Params, Array], Array]


def robustness(config: SupervisedConfig, data: Any, logits: Logits, params: Params) -> Row:
    """Scores on the test split by disturbance, level of noise and radius of attack, as far as the options ask for them.

    Noise and starts of attacks belong to the examples: they are the same for every run, level (scaled) and batch size.

    Args:
      config: all options; of these, scenes have disturbances alone.
      data: with a test split.
      logits: what the model says of pixels in [0, 1].
      params: of the model.

    Returns:
      ``disturbed_accuracy``, or of scenes ``disturbed_intersection_over_union``, by label; ``noise_accuracy`` and
      ``attack_accuracy`` by level; with the latter ``attacked_examples``, ``attack_steps`` and the accuracy on these
      examples without an attack, and for certifiable networks ``lipschitz_bound`` and ``certified_accuracy`` of the
      whole split.
    """
    params = gathered(params)
    figures = disturbance_figures(
        config.test_disturbances, config.best_by, lambda one: _disturbed(config, data, logits, params, one)
    )
    if not isinstance(config, ImageTaskConfig):
        return figures
    if config.test_noises:
        figures |= _noisy(config, data, logits, params)
    if config.test_attacks:
        figures |= _attacked(config, data, logits, params)
        if is_certifiable(config.network):
            figures |= _certified(config, data, logits, params)
    return figures


def _disturbed(config: SupervisedConfig, data: Any, logits: Logits, params: Params, one: Disturbance) -> float:
    """The score that the best checkpoint is best in."""

    def matrix(params: Params, batch: Batch) -> Array:
        disturb = lambda pixels, key: disturbed(pixels, 0.0, one, key, axes=(0, 1))  # noqa: E731
        return confusion(logits(params, jax.vmap(disturb)(_pixels(batch), _keys(batch))), jnp.asarray(batch[1]))

    measure, matrices = on_batches(matrix), []
    for (images, labels, numbers), count in _batches(config, data):
        labels = np.where(np.arange(len(labels)).reshape(-1, *[1] * (labels.ndim - 1)) < count, labels, NOT_COUNTED)
        matrices.append(measure(params, (images, labels, numbers)))
    return float(getattr(scores(np.sum(matrices, axis=0)), config.best_by))


def _noisy(config: ImageTaskConfig, data: Any, logits: Logits, params: Params) -> Row:
    def right(params: Params, batch: Batch, level: Array) -> Array:
        pixels = _pixels(batch)
        noise = jax.vmap(lambda key: jax.random.normal(key, pixels.shape[1:]))(_keys(batch))
        return right_answers(logits(params, pixels + level * noise), batch[1])

    measure = on_batches(right)
    shares = {
        str(level): _mean(measure(params, batch, level)[:count] for batch, count in _batches(config, data))
        for level in sorted(map(float, config.test_noises))
    }
    return {"noise_accuracy": shares}


def _attacked(config: ImageTaskConfig, data: Any, logits: Logits, params: Params) -> Row:
    def stands(params: Params, batch: Batch, radius: Array) -> tuple[Array, Array]:
        answer, steps = lambda pixels: logits(params, pixels), config.attack_steps
        outcome = attack(answer, _pixels(batch), jnp.asarray(batch[1]), _keys(batch), radius, num_steps=steps)
        return outcome.right, outcome.stands

    measure, shares = on_batches(stands), dict[str, float]()
    most, right = min(config.attack_examples, data.num_examples("test")), np.zeros(0)
    for radius in sorted(map(float, config.test_attacks)):
        several = [
            [part[:count] for part in measure(params, batch, radius)] for batch, count in _batches(config, data, most)
        ]
        right, standing = (np.concatenate(parts) for parts in zip(*several, strict=True))
        shares[str(radius)] = float(np.mean(standing))
    clean = float(np.mean(right))
    of = {"attacked_examples": most, "attack_steps": config.attack_steps, "attacked_clean_accuracy": clean}
    return {"attack_accuracy": shares, **of}


def _certified(config: ImageTaskConfig, data: Any, logits: Logits, params: Params) -> Row:
    free = float(lipschitz_bound(config.network, params, data.shape[:2], data.std))
    bound = free if config.lipschitz is None else min(free, config.lipschitz)
    measure = on_batches(lambda params, batch: _margins(logits(params, _pixels(batch)), batch[1]))
    margins = np.concatenate([measure(params, batch)[:count] for batch, count in _batches(config, data)])
    radii = certified_radius(margins, bound)
    shares = {str(radius): float(np.mean(radii > radius)) for radius in sorted(map(float, config.test_attacks))}
    return {"lipschitz_bound": bound, "certified_accuracy": shares}


def _margins(logits: Float[Array, "batch classes"], labels: Any) -> Float[Array, " batch"]:
    """The logit of the label less the largest other; not above 0 where the answer is wrong."""
    of_label = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    label_logit, others = (jnp.max(jnp.where(those, logits, -jnp.inf), axis=-1) for those in (of_label, ~of_label))
    return label_logit - others


def _pixels(batch: Batch) -> Array:
    return jnp.asarray(batch[0]).astype(jnp.float32) / 255.0


def _keys(batch: Batch) -> Array:
    root = jax.random.key(NOISE_SEED)
    return jax.vmap(lambda number: jax.random.fold_in(root, number))(jnp.asarray(batch[2]))


def _batches(config: SupervisedConfig, data: Any, most: int = MANY) -> Iterator[tuple[Batch, int]]:
    """Batches of examples evenly spread over the split, whose classes may follow each other, and how many are theirs.

    All are of one size, so that one compiles.
    """
    total, size = data.num_examples("test"), config.batch_size
    chosen = np.arange(min(most, total)) * total // min(most, total)
    for begun in range(0, len(chosen), size):
        numbers = chosen[begun : begun + size]
        batch = data.read("test", numbers)
        parts = (batch.images, batch.labels, numbers.astype(np.int32))
        filled = [np.resize(np.asarray(part), (size, *np.shape(part)[1:])) for part in parts]
        yield (filled[0], filled[1], filled[2]), len(numbers)


def _mean(parts: Iterator[np.ndarray]) -> float:
    return float(np.mean(np.concatenate(list(parts))))
