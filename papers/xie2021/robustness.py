"""Accuracy of image classifiers under noise and attacks, and certified accuracy."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from optax.projections import projection_l2_ball
from pydantic import Field

from unroll_jax.train.config.options import Count, Levels, options
from unroll_jax.train.core.evaluate import NOISE_SEED
from unroll_jax.train.core.task import Params, Row, Task
from unroll_jax.train.sharding import gathered
from unroll_jax.train.tasks.common import on_batches, to_unit
from unroll_jax.train.tasks.images.models import lipschitz_bound
from unroll_jax.train.tasks.images.options import is_certifiable

# Total length of an attack's steps, in radii: from any start they can reach the far
# side of the ball.
REACH = 2.5

Images = Float[Array, "batch height width channels"]
# images, labels, numbers of the examples
Batch = tuple[np.ndarray, np.ndarray, np.ndarray]


@options
class RobustnessConfig:
    """Evaluate image classifiers under noise and attacks on the pixels, in [0, 1]."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, whose evaluation.json gets the figures."""
    noises: Levels = ()
    """Standard deviations of Gaussian noise."""
    attacks: Levels = ()
    """Radii of a projected-gradient attack (PGD), in the Euclidean norm of all pixels
    of an image; OptEq and plain networks get the certified accuracy too."""
    attack_steps: Annotated[int, Field(ge=1, le=10**4)] = 20
    """Gradient steps of the attack."""
    attack_examples: Count = 1000
    """Number of attacked examples, evenly spread over the test split."""

    @property
    def levels(self) -> dict[str, tuple[float, ...]]:
        """Strengths of noise, and radii of attacks."""
        return {"noises": self.noises, "attacks": self.attacks}


def robustness(task: Task, params: Params, config: RobustnessConfig) -> Row:
    """Accuracies on the test split by level of noise and radius of attack.

    Noise and starts of attacks belong to the examples: they are the same for every run,
    level (scaled) and batch size.

    Returns:
      ``noise_accuracy`` and ``attack_accuracy`` by level; with the latter
      ``attacked_examples``, ``attack_steps`` and the accuracy on these examples without
      an attack, and for certifiable networks ``lipschitz_bound`` and
      ``certified_accuracy`` of the whole split.
    """
    params = gathered(params)
    figures = Row()
    if config.noises:
        figures |= _noise_accuracy(task, params, config)
    if config.attacks:
        figures |= _attack_accuracy(task, params, config)
        if is_certifiable(task.options.network):
            figures |= _certified_accuracy(task, params, config)
    return figures


def _noise_accuracy(task: Task, params: Params, config: RobustnessConfig) -> Row:
    def right(params: Params, batch: Batch, level: Array) -> Array:
        images, labels, _ = batch
        pixels = to_unit(images)
        draw = jax.vmap(lambda key: jax.random.normal(key, pixels.shape[1:]))
        noise = draw(_keys(batch))
        return right_answers(task.inner.logits(params, pixels + level * noise), labels)

    measure = on_batches(right)
    shares = {}
    for level in sorted(map(float, config.noises)):
        parts = [measure(params, batch, level)[:n] for batch, n in _batches(task)]
        shares[str(level)] = float(np.mean(np.concatenate(parts)))
    return {"noise_accuracy": shares}


def _attack_accuracy(task: Task, params: Params, config: RobustnessConfig) -> Row:
    def try_attack(params: Params, batch: Batch, radius: Array) -> tuple[Array, Array]:
        images, labels, _ = batch
        outcome = attack(
            lambda pixels: task.inner.logits(params, pixels),
            to_unit(images),
            jnp.asarray(labels),
            _keys(batch),
            radius,
            num_steps=config.attack_steps,
        )
        return outcome.right, outcome.robust

    measure = on_batches(try_attack)
    count = min(config.attack_examples, task.inner.data.num_examples("test"))
    right = np.zeros(0)
    shares = {}
    for radius in sorted(map(float, config.attacks)):
        parts = []
        for batch, rows in _batches(task, count):
            parts.append([part[:rows] for part in measure(params, batch, radius)])
        right, robust = map(np.concatenate, zip(*parts, strict=True))
        shares[str(radius)] = float(np.mean(robust))
    return {
        "attack_accuracy": shares,
        "attacked_examples": count,
        "attack_steps": config.attack_steps,
        "attacked_clean_accuracy": float(np.mean(right)),
    }


def _certified_accuracy(task: Task, params: Params, config: RobustnessConfig) -> Row:
    spec = task.inner.spec
    network = task.options.network
    bound = float(lipschitz_bound(network, params, spec.shape[:2], spec.std))
    if task.options.lipschitz is not None:
        bound = min(bound, task.options.lipschitz)

    def margins_of(params: Params, batch: Batch) -> Array:
        images, labels, _ = batch
        return _margins(task.inner.logits(params, to_unit(images)), labels)

    measure = on_batches(margins_of)
    margins = [measure(params, batch)[:rows] for batch, rows in _batches(task)]
    radii = certified_radius(np.concatenate(margins), bound)
    shares = {
        str(radius): float(np.mean(radii > radius))
        for radius in sorted(map(float, config.attacks))
    }
    return {"lipschitz_bound": bound, "certified_accuracy": shares}


def certified_radius(
    margin: Float[np.ndarray, "*batch"], lipschitz: float
) -> Float[np.ndarray, "*batch"]:
    r"""Returns the radius :math:`margin / (\sqrt 2 L)` in which the class is constant.

    ``margin`` is the logit of the class minus the largest other. It is a difference of
    two logits, which changes by at most :math:`\sqrt 2` times as much as all of them.

    Source: Tsuzuku, Sato, Sugiyama (2018), "Lipschitz-margin training", Proposition 1.
    """
    return margin / (np.sqrt(2.0) * lipschitz)


def _margins(
    logits: Float[Array, "batch classes"], labels: Any
) -> Float[Array, " batch"]:
    """The logit of the label minus the largest other, at most 0 for wrong answers."""
    of_label = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    label_logit = jnp.max(logits, axis=-1, where=of_label, initial=-jnp.inf)
    return label_logit - jnp.max(logits, axis=-1, where=~of_label, initial=-jnp.inf)


def _keys(batch: Batch) -> Array:
    *_, numbers = batch
    root = jax.random.key(NOISE_SEED)
    fold = jax.vmap(lambda number: jax.random.fold_in(root, number))
    return fold(jnp.asarray(numbers))


def _batches(task: Task, most: int | None = None) -> Iterator[tuple[Batch, int]]:
    """Yields batches of the test split, and how many of their rows count.

    All batches have one size, so that one program serves them. Examples are evenly
    spread over the split.
    """
    total = task.inner.data.num_examples("test")
    size = task.options.batch_size
    count = total if most is None else min(most, total)
    chosen = np.arange(count) * total // count
    for start in range(0, len(chosen), size):
        numbers = chosen[start : start + size]
        batch = task.inner.data.read("test", numbers)
        images, labels, numbered = (
            np.resize(np.asarray(part), (size, *np.shape(part)[1:]))
            for part in (batch.images, batch.labels, numbers.astype(np.int32))
        )
        yield (images, labels, numbered), len(numbers)


class Attacked(NamedTuple):
    """Results of an attack, example by example.

    Attributes:
      images: the last images tried, pixels in [0, 1].
      right: True if the image itself is classified correctly.
      robust: True if the image and all images tried are classified correctly.
    """

    images: Images
    right: Bool[Array, " batch"]
    robust: Bool[Array, " batch"]


def attack(
    logits: Callable[[Images], Float[Array, "batch classes"]],
    images: Images,
    labels: Int[Array, " batch"],
    keys: PRNGKeyArray,
    radius: Float[Array, ""] | float,
    *,
    num_steps: int,
) -> Attacked:
    r"""Searches misclassified images near the given ones, by ascent on cross entropy.

    .. math::

       x_{k+1} = P \Bigl( x_k + \frac{2.5 r}{K}
       \frac{\nabla \ell(x_k)}{|\nabla \ell(x_k)|_2} \Bigr) ,

    where P projects onto the ball of radius r around the image, and then onto [0, 1].
    The second projection does not leave the ball, whose centre is in [0, 1]. Every
    point on the way counts, so that more steps do not make an attack weaker. The ascent
    is on :math:`\log \sum_{j \ne y} e^{z_j} - z_y`, whose softplus is the cross
    entropy. It has the same direction, and a gradient even if float32 rounds the
    probability of the label to 1.

    Args:
      logits: ``pixels in [0, 1] -> logits`` of the whole model.
      images: Pixels in [0, 1].
      labels: Their classes.
      keys: Keys of the random starts, one for each image.
      radius: r, in the Euclidean norm of all pixels of an image; positive.
      num_steps: K.

    Source: Madry et al. (2018), "Towards deep learning models resistant to adversarial
    attacks", Section 2.1.
    """

    def loss(moved: Images) -> tuple[Float[Array, ""], Bool[Array, " batch"]]:
        outputs = logits(moved)
        return jnp.sum(_shortfalls(outputs, labels)), right_answers(outputs, labels)

    def step(
        _: Array, carry: tuple[Images, Bool[Array, " batch"]]
    ) -> tuple[Images, Bool[Array, " batch"]]:
        moved, robust = carry
        slope, right = jax.grad(loss, has_aux=True)(moved)
        moved = moved + REACH * radius / num_steps * _directions(slope)
        return project(moved, images, radius), robust & right

    right = right_answers(logits(images), labels)
    start = project(images + _starts(keys, images, radius), images, radius)
    moved, robust = jax.lax.fori_loop(0, num_steps, step, (start, right))
    return Attacked(moved, right, robust & right_answers(logits(moved), labels))


def project(moved: Images, images: Images, radius: Float[Array, ""] | float) -> Images:
    """Projects ``moved`` onto the ball around each image, and then onto [0, 1]."""
    shift = jax.vmap(projection_l2_ball, (0, None))(moved - images, radius)
    return jnp.clip(images + shift, 0.0, 1.0)


def right_answers(
    logits: Float[Array, "batch classes"], labels: Any
) -> Bool[Array, " batch"]:
    """Returns whether the largest logit is the label's, and all are finite."""
    finite = jnp.all(jnp.isfinite(logits), axis=-1)
    return (jnp.argmax(logits, axis=-1) == labels) & finite


def _shortfalls(logits: Array, labels: Array) -> Float[Array, " batch"]:
    """The logsumexp of the other logits minus the label's.

    The cross entropy is its softplus.
    """
    of_label = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    others = jax.nn.logsumexp(logits, axis=-1, where=~of_label)
    return others - jnp.sum(jnp.where(of_label, logits, 0.0), axis=-1)


def _starts(
    keys: PRNGKeyArray, images: Images, radius: Float[Array, ""] | float
) -> Images:
    """Steps in random directions, of a random length up to the radius."""

    def draw(key: PRNGKeyArray) -> Array:
        of_direction, of_length = jax.random.split(key)
        shape = (1, *images.shape[1:])
        direction = _directions(jax.random.normal(of_direction, shape, images.dtype))
        return jax.random.uniform(of_length) * direction[0]

    return radius * jax.vmap(draw)(keys)


def _directions(slopes: Images) -> Images:
    """Normalises slopes to length 1. Slopes that are 0 or not finite become 0."""
    length = jnp.sqrt(jnp.sum(slopes**2, axis=(1, 2, 3), keepdims=True))
    known = jnp.isfinite(length) & (length > 0.0)
    return jnp.where(known, slopes, 0.0) / jnp.where(known, length, 1.0)
