"""Projected-gradient attacks on images: the worst that is found in a ball around each, by ascent on the loss."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from optax.projections import projection_l2_ball

# Of the radius, over all steps: from any start the far side of the ball is reached, with room to turn.
REACH = 2.5

Images = Float[Array, "batch height width channels"]
Logits = Callable[[Images], Float[Array, "batch classes"]]


class Attacked(NamedTuple):
    """Results of an attack, example by example.

    Attributes:
      images: the last images tried, pixels in [0, 1].
      right: whether the image itself is classified rightly.
      stands: whether the image and everything tried is classified rightly.
    """

    images: Images
    right: Bool[Array, " batch"]
    stands: Bool[Array, " batch"]


def attack(
    logits: Logits,
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
    The cross entropy is the softplus of :math:`\log \sum_{j \ne y} e^{z_j} - z_y`. This is what is climbed: it has the
    same direction of ascent, and a gradient also where float32 rounds the probability of the label to 1.

    Args:
      logits: what the whole model says of pixels in [0, 1].
      images: pixels in [0, 1].
      labels: their classes.
      keys: of the random start, one for each image.
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
