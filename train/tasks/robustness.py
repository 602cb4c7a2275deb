"""Accuracy of image classifiers under disturbances, noise and attacks, and certified against any attack."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from optax.projections import projection_l2_ball

from ..config.disturbances import Disturbance, disturbances
from ..config.images import ImageTaskConfig, SupervisedConfig
from ..config.networks import is_certifiable
from ..data.pictures import NOT_COUNTED
from ..sharding.mesh import gathered
from ..task import Params, Row
from .common import on_batches
from .image_models import certified_radius, lipschitz_bound
from .image_scores import confusion, scores
from .noise import NOISE_SEED, disturbed, to_unit

# Length of an attack's steps over the radius, over all steps: from any start the far side of the ball is reached.
REACH = 2.5

Images = Float[Array, "batch height width channels"]
Batch = tuple[np.ndarray, np.ndarray, np.ndarray]  # images, labels, numbers of the examples
Logits = Callable[[Params, Array], Array]


def robustness(config: SupervisedConfig, data: Any, logits: Logits, params: Params) -> Row:
    """Scores on the test split by disturbance, level of noise and radius of attack, as the options tell.

    Noise and starts of attacks belong to the examples: they are the same for every run, level (scaled) and batch size.

    Args:
      config: All options; scenes have disturbances alone.
      data: Images with a test split.
      logits: ``(params, pixels in [0, 1]) -> logits``.
      params: Parameters of the model.

    Returns:
      ``disturbed_accuracy``, or of scenes ``disturbed_intersection_over_union``, by label; ``noise_accuracy`` and
      ``attack_accuracy`` by level; with the latter ``attacked_examples``, ``attack_steps`` and the accuracy on these
      examples without an attack, and for certifiable networks ``lipschitz_bound`` and ``certified_accuracy`` of the
      whole split.
    """
    params = gathered(params)
    several = disturbances(config.test_disturbances)
    scored = {one.label: _disturbed(config, data, logits, params, one) for one in several}
    figures: Row = {f"disturbed_{config.best_by}": scored} if scored else {}
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
    """Returns the score that selects the best checkpoint."""

    def disturb(pixels: Array, key: Array) -> Array:
        return disturbed(pixels, 0.0, one, key, axes=(0, 1))

    def matrix(params: Params, batch: Batch) -> Array:
        return confusion(logits(params, jax.vmap(disturb)(to_unit(batch[0]), _keys(batch))), jnp.asarray(batch[1]))

    measure, matrices = on_batches(matrix), []
    for (images, labels, numbers), count in _batches(config, data):
        labels = np.where(np.arange(len(labels)).reshape(-1, *[1] * (labels.ndim - 1)) < count, labels, NOT_COUNTED)
        matrices.append(measure(params, (images, labels, numbers)))
    return float(getattr(scores(np.sum(matrices, axis=0)), config.best_by))


def _noisy(config: ImageTaskConfig, data: Any, logits: Logits, params: Params) -> Row:
    def right(params: Params, batch: Batch, level: Array) -> Array:
        pixels = to_unit(batch[0])
        noise = jax.vmap(lambda key: jax.random.normal(key, pixels.shape[1:]))(_keys(batch))
        return right_answers(logits(params, pixels + level * noise), batch[1])

    measure = on_batches(right)
    shares = {
        str(level): float(
            np.mean(np.concatenate([measure(params, batch, level)[:count] for batch, count in _batches(config, data)]))
        )
        for level in sorted(map(float, config.test_noises))
    }
    return {"noise_accuracy": shares}


def _attacked(config: ImageTaskConfig, data: Any, logits: Logits, params: Params) -> Row:
    def stands(params: Params, batch: Batch, radius: Array) -> tuple[Array, Array]:
        steps = config.attack_steps
        outcome = attack(
            lambda pixels: logits(params, pixels),
            to_unit(batch[0]),
            jnp.asarray(batch[1]),
            _keys(batch),
            radius,
            num_steps=steps,
        )
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
    measure = on_batches(lambda params, batch: _margins(logits(params, to_unit(batch[0])), batch[1]))
    margins = np.concatenate([measure(params, batch)[:count] for batch, count in _batches(config, data)])
    radii = certified_radius(margins, bound)
    shares = {str(radius): float(np.mean(radii > radius)) for radius in sorted(map(float, config.test_attacks))}
    return {"lipschitz_bound": bound, "certified_accuracy": shares}


def _margins(logits: Float[Array, "batch classes"], labels: Any) -> Float[Array, " batch"]:
    """The logit of the label less the largest other; not above 0 where the answer is wrong."""
    of_label = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    label_logit, others = (jnp.max(jnp.where(those, logits, -jnp.inf), axis=-1) for those in (of_label, ~of_label))
    return label_logit - others


def _keys(batch: Batch) -> Array:
    root = jax.random.key(NOISE_SEED)
    return jax.vmap(lambda number: jax.random.fold_in(root, number))(jnp.asarray(batch[2]))


def _batches(config: SupervisedConfig, data: Any, most: int | None = None) -> Iterator[tuple[Batch, int]]:
    """Yields batches of examples evenly spread over the test split, all of one size, and how many rows count."""
    total, size = data.num_examples("test"), config.batch_size
    count = total if most is None else min(most, total)
    chosen = np.arange(count) * total // count
    for begun in range(0, len(chosen), size):
        numbers = chosen[begun : begun + size]
        batch = data.read("test", numbers)
        parts = (batch.images, batch.labels, numbers.astype(np.int32))
        filled = [np.resize(np.asarray(part), (size, *np.shape(part)[1:])) for part in parts]
        yield (filled[0], filled[1], filled[2]), len(numbers)


class Attacked(NamedTuple):
    """Results of an attack, example by example.

    Attributes:
      images: The last images tried, pixels in [0, 1].
      right: Whether the image itself is classified rightly.
      stands: Whether the image and all images tried are classified rightly.
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
    r"""Looks for images near the given ones that are misclassified, by ascent on the cross entropy.

    .. math:: x_{k+1} = P \Bigl( x_k + \frac{2.5 r}{K} \frac{\nabla \ell(x_k)}{|\nabla \ell(x_k)|_2} \Bigr) ,

    where P projects onto the ball of radius r around the image, and then onto [0, 1], which leaves no ball whose centre
    is in [0, 1]. Every point on the way counts, so that an attack of more steps is not weaker for overshooting.
    The ascent is on :math:`\log \sum_{j \ne y} e^{z_j} - z_y`, whose softplus is the cross entropy: it has the same
    direction, and a gradient also where float32 rounds the probability of the label to 1.

    Args:
      logits: ``pixels in [0, 1] -> logits`` of the whole model.
      images: Pixels in [0, 1].
      labels: Their classes.
      keys: Keys of the random starts, one for each image.
      radius: r, in the Euclidean norm of all pixels of an image; positive.
      num_steps: K.

    Source: Madry et al. (2018), "Towards deep learning models resistant to adversarial attacks", Section 2.1.
    """

    def loss(moved: Images) -> tuple[Float[Array, ""], Bool[Array, " batch"]]:
        outputs = logits(moved)
        return jnp.sum(_shortfalls(outputs, labels)), right_answers(outputs, labels)

    def step(_: Array, carry: tuple[Images, Bool[Array, " batch"]]) -> tuple[Images, Bool[Array, " batch"]]:
        moved, stands = carry
        slope, right = jax.grad(loss, has_aux=True)(moved)
        return confined(moved + REACH * radius / num_steps * _directions(slope), images, radius), stands & right

    right = right_answers(logits(images), labels)
    start = confined(images + _starts(keys, images, radius), images, radius)
    moved, stands = jax.lax.fori_loop(0, num_steps, step, (start, right))
    return Attacked(moved, right, stands & right_answers(logits(moved), labels))


def confined(moved: Images, images: Images, radius: Float[Array, ""] | float) -> Images:
    """The nearest to ``moved`` in the ball around each image, and of that the nearest in [0, 1]."""
    shift = jax.vmap(projection_l2_ball, (0, None))(moved - images, radius)
    return jnp.clip(images + shift, 0.0, 1.0)


def right_answers(logits: Float[Array, "batch classes"], labels: Any) -> Bool[Array, " batch"]:
    """Returns whether the largest logit is the label's; never where logits are not finite."""
    return (jnp.argmax(logits, axis=-1) == labels) & jnp.all(jnp.isfinite(logits), axis=-1)


def _shortfalls(logits: Array, labels: Array) -> Float[Array, " batch"]:
    """Returns the gap from the label's logit to the others, softly; the cross entropy is its softplus."""
    of_label = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    others = jax.nn.logsumexp(logits, axis=-1, where=~of_label)
    return others - jnp.sum(jnp.where(of_label, logits, 0.0), axis=-1)


def _starts(keys: PRNGKeyArray, images: Images, radius: Float[Array, ""] | float) -> Images:
    """Steps in random directions, as long as random shares of the radius."""

    def draw(key: PRNGKeyArray) -> Array:
        way, share = jax.random.split(key)
        return jax.random.uniform(share) * _directions(jax.random.normal(way, (1, *images.shape[1:]), images.dtype))[0]

    return radius * jax.vmap(draw)(keys)


def _directions(slopes: Images) -> Images:
    """Normalises slopes to length 1; 0 where the slope is 0 or not finite."""
    length = jnp.sqrt(jnp.sum(slopes**2, axis=(1, 2, 3), keepdims=True))
    known = jnp.isfinite(length) & (length > 0.0)
    return jnp.where(known, slopes, 0.0) / jnp.where(known, length, 1.0)
