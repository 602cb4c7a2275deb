"""Certified radii of predictions, and the losses that train for them."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Integer

from unroll_jax.arguments import POSITIVE, at_least, check, checked, require
from unroll_jax.arrays import check_dtype
from unroll_jax.certificates.lipschitz_bound import LipschitzBound
from unroll_jax.numerics import compute_dtype
from unroll_jax.spectral import norm

__all__ = ["as_places", "certified_radius", "margin_loss"]

# Classes whose differences to all others are in memory at a time.
CLASSES_AT_ONCE = 32

Labels = Integer[Array, "*batch"] | Integer[np.ndarray, "*batch"]


def certified_radius(
    logits: Float[Array, "*batch classes"],
    head: Float[Array, "d classes"] | None = None,
    *,
    labels: Labels | None = None,
    bound: float | LipschitzBound = 1.0,
) -> Float[Array, "*batch"]:
    r"""The Euclidean radius within which no disturbance of the input changes a
    prediction.

    For features f with the constant K and logits :math:`l = f(x) H + b`, the margin of
    class y over j is :math:`K |h_y - h_j|`-Lipschitz in the input:

    .. math:: r = \min_{j \ne y} \frac{l_y - l_j - e_{yj}}{K |h_y - h_j|} .

    With a `LipschitzBound`, :math:`e_{yj}` bounds the rounding errors of the margin at
    the input and at any other in the ball: no input in the ball is computed to have
    another class, by the same program. With a number the radius is of exact arithmetic.

    Args:
      logits: (*batch, classes).
      head: H, whose columns :math:`h_j` weigh the features, as it enters the product;
        None if the logits are f: distances are then :math:`\sqrt 2`, as for a head with
        orthonormal columns.
      labels: y, integers (*batch,); None takes the predictions. With labels a radius is
        negative where another class has a larger logit: the share of radii above r is
        the certified accuracy at r.
      bound: K, positive, or `lipschitz` of the layers before the head (of all, for a
        head of None) in the dtype of the logits, and for the same examples.

    Returns:
      Radii in float32 at least, up to that of the bound: 0 for ties, NaN where a logit
      is not finite or a label is no class. They are differentiable.

    Source: Tsuzuku, Sato, Sugiyama (2018), "Lipschitz-margin training"; with distances
    of columns Singla, Singla, Feizi (2022), "Improved deterministic l2 robustness on
    CIFAR-10 and CIFAR-100". Columns of norm 1 do not make the distance :math:`\sqrt 2`.

    Example:
      >>> import jax.numpy as jnp
      >>> head = jnp.array([[1.0, -1.0]])  # of one feature, which is 0.5
      >>> radius = certified_radius(jnp.array([0.5, -0.5]), head)
      >>> 0.499 < float(radius) <= 0.5
      True
    """
    classes = logits.shape[-1]
    _check_head(head, classes)
    if not isinstance(bound, LipschitzBound):
        check("bound", bound, POSITIVE)
        bound = LipschitzBound(bound, 0.0, 0.0, math.inf)

    dtype = compute_dtype(logits, head)
    wide = logits.astype(dtype)
    places = jnp.argmax(wide, axis=-1) if labels is None else as_places(labels, wide)
    margins = jnp.take_along_axis(wide, places[..., None], axis=-1) - wide
    distances, errors = _pairs(wide, head, places, bound)

    # 0 where rounding could decide, and negative where the class is not predicted
    sure = jnp.where(margins > 0.0, jax.nn.relu(margins - errors), margins)
    apart = distances > 0.0
    scaled = sure / (bound.constant * jnp.where(apart, distances, 1.0))
    # Classes with equal columns differ by their biases, for every input.
    constant = jnp.where(sure == 0.0, 0.0, jnp.sign(sure) * jnp.inf)
    radii = jnp.where(apart | jnp.isnan(distances), scaled, constant)
    other = places[..., None] != jnp.arange(classes, dtype=places.dtype)
    radius = jnp.min(jnp.where(other, radii, jnp.inf), axis=-1, initial=jnp.inf)
    radius = jnp.minimum(radius, jnp.asarray(bound.radius, dtype))

    known = (places >= 0) & (places < classes)
    return jnp.where(known & jnp.all(jnp.isfinite(wide), axis=-1), radius, jnp.nan)


@checked(offset=at_least(0.0), temperature=POSITIVE)
def margin_loss(
    logits: Float[Array, "*batch classes"],
    labels: Labels,
    head: Float[Array, "d classes"] | None = None,
    *,
    offset: float,
    temperature: float,
) -> Float[Array, "*batch"]:
    r"""Cross-entropy that asks for a margin,
    :math:`\tau \, CE((l - u \, e_y) / \tau, y)`.

    Without an offset a bounded network is trained for its margins up to a few
    temperatures. The offset u moves the margin at which samples stop to count: larger
    ones give larger certified radii and fewer correct predictions.

    Args:
      logits, labels: (*batch, classes), and integers (*batch,).
      head: H as in `certified_radius`; margins are then divided by
        :math:`|h_y - h_j| / \sqrt 2`, and so measured as radii. None leaves them.
      offset: u, at least 0, in units of the logits.
      temperature: tau, positive, in the same units.

    Returns:
      A loss per sample, in float32 at least; NaN where a label is no class.

    Source: Prach and Lampert (2022), "Almost-orthogonal layers for efficient
    general-purpose Lipschitz networks".

    Example:
      >>> import jax.numpy as jnp
      >>> loss = margin_loss(
      ...     jnp.array([1.0, 0.0]), jnp.array(0), offset=1.0, temperature=0.5
      ... )
      >>> round(float(loss), 4)  # temperature log 2: the margin is the offset
      0.3466
    """
    _check_head(head, logits.shape[-1])
    wide = logits.astype(compute_dtype(logits, head))
    places = as_places(labels, wide)
    margins = jnp.take_along_axis(wide, places[..., None], axis=-1) - wide
    if head is not None:
        distances = _distances(head.astype(wide.dtype))[places]
        margins = margins * math.sqrt(2.0) / jnp.where(distances > 0.0, distances, 1.0)
    other = places[..., None] != jnp.arange(wide.shape[-1], dtype=places.dtype)
    excess = jnp.where(other, offset - margins, 0.0 * margins) / temperature
    return temperature * jax.nn.logsumexp(excess, axis=-1)


def _pairs(
    logits: Array, head: Array | None, places: Array, bound: LipschitzBound
) -> tuple[Array, Array]:
    """Distances of the columns of the chosen class and of each class, and the rounding
    error of their margins at two inputs, both (*batch, classes) or broadcasting."""
    eps = float(jnp.finfo(logits.dtype).eps)
    error, size = (
        jnp.asarray(number, logits.dtype)[..., None]
        for number in (bound.error, bound.size)
    )
    # the rounding of a bias and of the margin
    of_logit = eps * jnp.abs(logits)
    if head is None:
        distances = jnp.full((1,), math.sqrt(2.0) * (1.0 + 4.0 * eps), logits.dtype)
    else:
        # Sums of d numbers are off by d / 2 machine epsilons, and the bias is at most
        # |l| + |h| |f|.
        wide = head.astype(logits.dtype)
        units = eps * (len(wide) + 4)
        distances = _distances(wide)[places] * (1.0 + units)
        of_logit = of_logit + 0.505 * units * norm(wide.T, batch_ndim=1) * size
    of_place = jnp.take_along_axis(of_logit, places[..., None], axis=-1)
    return distances, 2.0 * (distances * error + of_place + of_logit)


def _distances(head: Float[Array, "d classes"]) -> Float[Array, "classes classes"]:
    """The distances of the columns."""
    rows = head.T

    def of_class(row: Array) -> Array:
        return norm(row - rows, batch_ndim=1)

    # All differences at once would take classes^2 d numbers.
    return jax.lax.map(of_class, rows, batch_size=CLASSES_AT_ONCE)


def _check_head(head: Array | None, classes: int) -> None:
    if head is not None:
        fits = head.ndim == 2 and head.shape[-1] == classes
        require(fits, "head", f"be (d, {classes})", f"shape {head.shape}")


def as_places(labels: Any, logits: Array) -> Array:
    """Labels as indices, -1 made one that is out of range; a ValueError for known
    ones that are no class."""
    check_dtype("labels", labels, jnp.integer)
    shape = logits.shape[:-1]
    got = jnp.shape(labels)
    require(got == shape, "labels", f"have shape {shape}, as the logits", got)
    classes = logits.shape[-1]
    if not isinstance(labels, Tracer) and np.size(labels):
        # as NumPy's, as JAX traces the minimum of a constant under `jit`
        known = np.asarray(labels)
        ends = int(known.min()), int(known.max())
        inside = ends[0] >= 0 and ends[1] < classes
        require(inside, "labels", f"be in 0..{classes - 1}", f"{ends[0]} to {ends[1]}")
    labels = jnp.asarray(labels)
    if labels.dtype.itemsize < 4:
        # the number of classes, and their numbers, may not fit
        labels = labels.astype(jnp.int32)
    return jnp.where(labels < 0, classes, labels)
