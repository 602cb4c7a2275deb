"""Accuracy of image classifiers under noise and attacks on the pixels, and certified
against any attack."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from annotated_types import Ge, Le
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from optax.projections import projection_l2_ball

from unroll_jax.train.config.fields import Count, Positive, check_fields, check_rules
from unroll_jax.train.config.images import is_certifiable
from unroll_jax.train.sharding.mesh import gathered
from unroll_jax.train.task import Params, Row
from unroll_jax.train.tasks.common import NOISE_SEED, on_batches, to_unit
from unroll_jax.train.tasks.image_models import lipschitz_bound
from unroll_jax.train.tasks.images import ImageTask

# Length of an attack's steps over the radius, over all steps: from any start the far
# side of the ball is reached.
REACH = 2.5

Images = Float[Array, "batch height width channels"]
# images, labels, numbers of the examples
Batch = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class RobustnessConfig:
    """Evaluate runs of image classifiers under noise and attacks on the pixels,
    which are in [0, 1]."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, whose evaluation.json gets the figures."""
    noises: tuple[Positive, ...] = ()
    """Standard deviations of Gaussian noise."""
    attacks: tuple[Positive, ...] = ()
    """Radii of a projected-gradient attack (PGD), in the Euclidean norm of all pixels
    of an image; OptEq and plain networks have the certified accuracy too.
    """
    attack_steps: Annotated[int, Ge(1), Le(10**4)] = 20
    """Gradient steps of the attack."""
    attack_examples: Count = 1000
    """Number of examples of the test split that are attacked, evenly spread over it."""

    def check(self) -> None:
        """Checks every value, and that levels differ."""
        check_fields(self)
        each = "positive and finite, each once"
        check_rules(
            self,
            (
                (name, each, len(set(levels)) == len(levels))
                for name, levels in self.levels.items()
            ),
        )

    @property
    def levels(self) -> dict[str, tuple[float, ...]]:
        """Strengths of noise, and radii of attacks."""
        return {"noises": self.noises, "attacks": self.attacks}


def robustness(task: ImageTask, params: Params, config: RobustnessConfig) -> Row:
    """Accuracies on the test split by level of noise and radius of attack.

    Noise and starts of attacks belong to the examples: they are the same for every run,
    level (scaled) and batch size.

    Returns:
      ``noise_accuracy`` and ``attack_accuracy`` by level; with the latter
      ``attacked_examples``, ``attack_steps`` and the accuracy on these examples without
      an attack, and for certifiable networks ``lipschitz_bound`` and
      ``certified_accuracy`` of the whole split.
    """
    params, figures = gathered(params), Row()
    if config.noises:
        figures |= _noisy(task, params, config)
    if config.attacks:
        figures |= _attacked(task, params, config)
        if is_certifiable(task.config.network):
            figures |= _certified(task, params, config)
    return figures


def _noisy(task: ImageTask, params: Params, config: RobustnessConfig) -> Row:
    def right(params: Params, batch: Batch, level: Array) -> Array:
        pixels = to_unit(batch[0])
        noise = jax.vmap(lambda key: jax.random.normal(key, pixels.shape[1:]))(
            _keys(batch)
        )
        return right_answers(task.logits(params, pixels + level * noise), batch[1])

    measure = on_batches(right)
    shares = {
        str(level): float(
            np.mean(
                np.concatenate(
                    [
                        measure(params, batch, level)[:count]
                        for batch, count in _batches(task)
                    ]
                )
            )
        )
        for level in sorted(map(float, config.noises))
    }
    return {"noise_accuracy": shares}


def _attacked(task: ImageTask, params: Params, config: RobustnessConfig) -> Row:
    def stands(params: Params, batch: Batch, radius: Array) -> tuple[Array, Array]:
        steps = config.attack_steps
        outcome = attack(
            lambda pixels: task.logits(params, pixels),
            to_unit(batch[0]),
            jnp.asarray(batch[1]),
            _keys(batch),
            radius,
            num_steps=steps,
        )
        return outcome.right, outcome.stands

    measure, shares = on_batches(stands), dict[str, float]()
    most, right = (
        min(config.attack_examples, task.data.num_examples("test")),
        np.zeros(0),
    )
    for radius in sorted(map(float, config.attacks)):
        several = [
            [part[:count] for part in measure(params, batch, radius)]
            for batch, count in _batches(task, most)
        ]
        right, standing = (
            np.concatenate(parts) for parts in zip(*several, strict=True)
        )
        shares[str(radius)] = float(np.mean(standing))
    clean = float(np.mean(right))
    of = {
        "attacked_examples": most,
        "attack_steps": config.attack_steps,
        "attacked_clean_accuracy": clean,
    }
    return {"attack_accuracy": shares, **of}


def _certified(task: ImageTask, params: Params, config: RobustnessConfig) -> Row:
    free = float(
        lipschitz_bound(task.config.network, params, task.spec.shape[:2], task.spec.std)
    )
    bound = free if task.lipschitz is None else min(free, task.lipschitz)
    measure = on_batches(
        lambda params, batch: _margins(task.logits(params, to_unit(batch[0])), batch[1])
    )
    margins = np.concatenate(
        [measure(params, batch)[:count] for batch, count in _batches(task)]
    )
    radii = certified_radius(margins, bound)
    shares = {
        str(radius): float(np.mean(radii > radius))
        for radius in sorted(map(float, config.attacks))
    }
    return {"lipschitz_bound": bound, "certified_accuracy": shares}


def certified_radius(
    margin: Float[np.ndarray, "*batch"], lipschitz: float
) -> Float[np.ndarray, "*batch"]:
    r"""Returns the radius in which pixels can move without changing the class:
    :math:`margin / (\sqrt 2 L)`.

    ``margin`` is the logit of the class less the largest other. It is a difference of
    two logits, which moves by at most :math:`\sqrt 2` times as much as all of them.

    Source: Tsuzuku, Sato, Sugiyama (2018), "Lipschitz-margin training", Proposition 1.
    """
    return margin / (np.sqrt(2.0) * lipschitz)


def _margins(
    logits: Float[Array, "batch classes"], labels: Any
) -> Float[Array, " batch"]:
    """The logit of the label less the largest other; not above 0 where the answer is
    wrong."""
    of_label = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    label_logit, others = (
        jnp.max(jnp.where(those, logits, -jnp.inf), axis=-1)
        for those in (of_label, ~of_label)
    )
    return label_logit - others


def _keys(batch: Batch) -> Array:
    root = jax.random.key(NOISE_SEED)
    return jax.vmap(lambda number: jax.random.fold_in(root, number))(
        jnp.asarray(batch[2])
    )


def _batches(task: ImageTask, most: int | None = None) -> Iterator[tuple[Batch, int]]:
    """Yields batches of examples evenly spread over the test split, all of one size,
    and how many rows count."""
    total, size = task.data.num_examples("test"), task.config.batch_size
    count = total if most is None else min(most, total)
    chosen = np.arange(count) * total // count
    for begun in range(0, len(chosen), size):
        numbers = chosen[begun : begun + size]
        batch = task.data.read("test", numbers)
        parts = (batch.images, batch.labels, numbers.astype(np.int32))
        filled = [
            np.resize(np.asarray(part), (size, *np.shape(part)[1:])) for part in parts
        ]
        yield (filled[0], filled[1], filled[2]), len(numbers)


class Attacked(NamedTuple):
    """Results of an attack, example by example.

    Attributes:
      images: The last images tried, pixels in [0, 1].
      right: Whether the image itself is classified rightly.
      stands: True if the image and all images tried are classified correctly.
    """

    images: Images
    right: Bool[Array, " batch"]
    stands: Bool[Array, " batch"]


def attack(
    logits: Callable[[Images], Float[Array, "batch classes"]],
    images: Images,
    labels: Int[Array, " batch"],
    keys: PRNGKeyArray,
    radius: Float[Array, ""] | float,
    *,
    num_steps: int,
) -> Attacked:
    r"""Looks for images near the given ones that are misclassified, by ascent on the
    cross entropy.

    .. math:: x_{k+1} = P \Bigl( x_k + \frac{2.5 r}{K} \frac{\nabla \ell(x_k)}{|\nabla \ell(x_k)|_2} \Bigr) ,

    where P projects onto the ball of radius r around the image, and then onto [0, 1],
    which leaves no ball whose centre is in [0, 1]. Every point on the way counts: an
    attack of more steps is not weaker for overshooting. The ascent is on
    :math:`\log \sum_{j \ne y} e^{z_j} - z_y`, whose softplus is the cross entropy: it
    has the same direction, and a gradient also where float32 rounds the probability of
    the label to 1.

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
        moved, stands = carry
        slope, right = jax.grad(loss, has_aux=True)(moved)
        return (
            confined(
                moved + REACH * radius / num_steps * _directions(slope), images, radius
            ),
            stands & right,
        )

    right = right_answers(logits(images), labels)
    start = confined(images + _starts(keys, images, radius), images, radius)
    moved, stands = jax.lax.fori_loop(0, num_steps, step, (start, right))
    return Attacked(moved, right, stands & right_answers(logits(moved), labels))


def confined(moved: Images, images: Images, radius: Float[Array, ""] | float) -> Images:
    """The nearest to ``moved`` in the ball around each image, and of that the
    nearest in [0, 1]."""
    shift = jax.vmap(projection_l2_ball, (0, None))(moved - images, radius)
    return jnp.clip(images + shift, 0.0, 1.0)


def right_answers(
    logits: Float[Array, "batch classes"], labels: Any
) -> Bool[Array, " batch"]:
    """Returns whether the largest logit is the label's; never where logits are not
    finite."""
    return (jnp.argmax(logits, axis=-1) == labels) & jnp.all(
        jnp.isfinite(logits), axis=-1
    )


def _shortfalls(logits: Array, labels: Array) -> Float[Array, " batch"]:
    """Returns the gap from the label's logit to the others, softly; the cross
    entropy is its softplus."""
    of_label = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    others = jax.nn.logsumexp(logits, axis=-1, where=~of_label)
    return others - jnp.sum(jnp.where(of_label, logits, 0.0), axis=-1)


def _starts(
    keys: PRNGKeyArray, images: Images, radius: Float[Array, ""] | float
) -> Images:
    """Steps in random directions, as long as random shares of the radius."""

    def draw(key: PRNGKeyArray) -> Array:
        way, share = jax.random.split(key)
        return (
            jax.random.uniform(share)
            * _directions(jax.random.normal(way, (1, *images.shape[1:]), images.dtype))[
                0
            ]
        )

    return radius * jax.vmap(draw)(keys)


def _directions(slopes: Images) -> Images:
    """Normalises slopes to length 1; 0 where the slope is 0 or not finite."""
    length = jnp.sqrt(jnp.sum(slopes**2, axis=(1, 2, 3), keepdims=True))
    known = jnp.isfinite(length) & (length > 0.0)
    return jnp.where(known, slopes, 0.0) / jnp.where(known, length, 1.0)
