"""Regions in which alternating steps descend: the constants of Theorems 4.1 and 5.1."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from unroll_jax.arguments import POSITIVE, checked, in_interval
from unroll_jax.certificates.per_example import Energy, batch_rank, gradient
from unroll_jax.numerics import compute_dtype
from unroll_jax.spectral import inner, norm, scale, widen

__all__ = [
    "Ball",
    "apollonian_ball",
    "descent_constant",
    "gradient_ratio",
    "in_descent_region",
    "in_proximal_region",
    "orthant_alignment",
    "proximal_constant",
]

Number = float | Float[Array, "..."]
NOT_NEGATIVE = in_interval("[0, inf]")
ZERO_TO_ONE = in_interval("[0, 1]")


class Ball(NamedTuple):
    """The boundary of S(C), and on which side of it S(C) lies.

    Attributes:
      centre: the centre, shaped as the minimisers.
      radius: a number, infinite if the boundary is a plane. The centre is then infinite
        wherever the minimisers differ.
      inside: True if S(C) is the ball. False if S(C) is all except the open ball.

    Example: see `apollonian_ball`.
    """

    centre: Float[Array, "*event"]
    radius: Float[Array, ""]
    inside: Bool[Array, ""]


def gradient_ratio(f: Energy, g: Energy, y: Any) -> Float[Array, "*batch"]:
    r"""Ratio of gradient norms: :math:`\delta(y) = |\nabla f(y)| / |\nabla h(y)|`.

    Here h = f + g.

    Args:
      f, g: ``y -> (*batch,)``, the half whose step is taken first and the other.
      y: the state, a pytree of arrays whose leading axes are the batch of ``f(y)``.

    Returns:
      One number per example: 0 where f is stationary, infinite where only h is.

    Source: Yang, Huang, Wipf (2022), Section 4.1. The text there defines delta as
    :math:`|\Delta_t| / |\nabla h|`. The proof, eq. 40, needs the ratio given here: with
    the text's, Theorem 4.1 is false (its bound would be 1, not C).

    Example:
      >>> import jax.numpy as jnp
      >>> f, g = (lambda y: 0.5 * jnp.sum(y**2)), (lambda y: jnp.sum(y))
      >>> float(gradient_ratio(f, g, jnp.array([1.0])))  # y / (y + 1)
      0.5
    """
    rank = batch_rank(f, y)
    part, rest = widen(gradient(f, y)), widen(gradient(g, y))
    of_f = norm(part, rank)
    of_h = norm(jax.tree.map(jnp.add, part, rest), rank)
    return jnp.where((of_f == 0.0) & (of_h == 0.0), 0.0, of_f / of_h)


@checked(f_step_size=NOT_NEGATIVE, g_step_size=POSITIVE, smoothness_g=NOT_NEGATIVE)
def descent_constant(
    f_step_size: Number, g_step_size: Number, smoothness_g: Number
) -> Float[Array, "..."]:
    r"""Bound on delta up to which a step descends.

    It is :math:`C = a_2 / (|a_2 - a_1| + a_1 a_2 L_g)`. A step
    :math:`u = y - a_1 \nabla f(y)`, :math:`y' = u - a_2 \nabla g(u)` with
    :math:`\delta(y) \le C` and :math:`a_2 \le 1 / L_h` has :math:`h(y') \le h(y)`. The
    proof uses only :math:`L_g`, a Lipschitz constant of the gradient of g, and
    :math:`h(y') \le h(y) + \nabla h(y)^T (y' - y) + L_h |y' - y|^2 / 2`. It needs
    neither convexity nor a Lipschitz gradient of f.

    Args:
      f_step_size, g_step_size, smoothness_g: a1 >= 0, a2 > 0 and L_g >= 0.

    Returns:
      C, infinite where the two steps are a gradient step of h.

    Source: Yang, Huang, Wipf (2022), Theorem 4.1, which has :math:`a_2 - a_1` and asks
    for :math:`a_1 \le a_2`. The absolute value removes that hypothesis. Without it the
    constant is too large for :math:`a_1 > a_2`.

    Example:
      >>> [
      ...     float(descent_constant(a1, 0.5, L_g))
      ...     for a1, L_g in [(0.25, 2.0), (0.5, 0.0)]
      ... ]
      [1.0, inf]
    """
    a1 = jnp.asarray(f_step_size, float)
    a2 = jnp.asarray(g_step_size, float)
    L_g = jnp.asarray(smoothness_g, float)
    # Divided by a2: products of small step sizes leave the range of float32.
    return 1.0 / (jnp.abs(a2 - a1) / a2 + a1 * L_g)


@checked(kappa=ZERO_TO_ONE)
def proximal_constant(
    f_step_size: Number, g_step_size: Number, smoothness_g: Number, kappa: Number
) -> Float[Array, "..."]:
    r"""Bound on delta up to which a step descends that ends in a prox.

    It is :math:`C' = C \sqrt{(1 - \kappa) / 2}`. A step
    :math:`y' = prox_{a_2 \phi}(u - a_2 \nabla g(u))` with :math:`a_2 \le 1 / L_h`,
    :math:`\delta(y) \le C'` and y in T(kappa) has
    :math:`(h + \phi)(y') \le (h + \phi)(y)`. See `in_proximal_region` for T(kappa) and
    its phi.

    Args:
      f_step_size, g_step_size, smoothness_g: as in `descent_constant`.
      kappa: in [0, 1], the share of the gradient step that the prox may take back.

    Returns:
      C', infinite where C is: the step is then one of proximal gradient descent on h +
      phi, which descends from everywhere.

    Source: Yang, Huang, Wipf (2022), Theorem 5.1, with lambda = a2, as Lemma D.4 needs:
    c_P lambda = 1. The print has the denominator of C under the root, which has the
    wrong units and is too large where :math:`a_2 - a_1 + a_1 a_2 L_g` is. The last line
    of eq. 57 loses a factor 2: :math:`C \sqrt{1 - \kappa}` would do. `certify` uses
    that.

    Example:
      >>> float(proximal_constant(0.25, 0.5, 2.0, kappa=0.5))  # C = 1, times 1 / 2
      0.5
    """
    constant = descent_constant(f_step_size, g_step_size, smoothness_g)
    square = (1.0 - jnp.asarray(kappa, float)) / 2.0
    # An infinite C stays infinite for kappa = 1 too, where the product would be NaN.
    unbounded = jnp.isinf(constant) & (square >= 0.0)
    return jnp.where(unbounded, jnp.inf, constant * jnp.sqrt(square))


def in_descent_region(
    y: Float[Array, "*shape"],
    minimiser_f: Float[Array, "*event"],
    minimiser_h: Float[Array, "*event"],
    *,
    constant: Number,
    smoothness_f: Number,
    convexity_h: Number,
) -> Bool[Array, "..."]:
    r"""Membership in the region S(C), where delta is at most C.

    .. math:: S(C) = \{ y : L_f |y - y_f^*| \le c_h C |y - y_h^*| \}

    Args:
      y: points. The axes before the shape of the minimisers are batch axes.
      minimiser_f, minimiser_h: :math:`y_f^*`, a stationary point of f, and
        :math:`y_h^*`, the minimiser of h.
      constant: C, as `descent_constant` or `proximal_constant`.
      smoothness_f, convexity_h: L_f, of the gradient of f, and c_h > 0, the strong
        convexity of h.

    Source: Yang, Huang, Wipf (2022), Lemma 4.3. The boundary is an Apollonian sphere,
    see `apollonian_ball`.

    Example:
      >>> import jax.numpy as jnp
      >>> y = jnp.array([[0.0], [1.5], [3.0]])
      >>> at_f, at_h = jnp.array([0.0]), jnp.array([3.0])
      >>> known = {"constant": 1.0, "smoothness_f": 1.0, "convexity_h": 1.0}
      >>> in_descent_region(y, at_f, at_h, **known).tolist()  # nearer to 0 than to 3
      [True, True, False]
    """
    rank = y.ndim - minimiser_f.ndim
    y, minimiser_f, minimiser_h = widen((y, minimiser_f, minimiser_h))
    to_f = norm(y - minimiser_f, rank)
    to_h = norm(y - minimiser_h, rank)
    within = smoothness_f * to_f <= convexity_h * constant * to_h
    # An infinite C holds for every state, the minimiser of h included.
    return within | (jnp.isinf(constant) & ~jnp.isnan(to_f))


@checked(ratio=NOT_NEGATIVE)
def apollonian_ball(
    minimiser_f: Float[Array, "*event"],
    minimiser_h: Float[Array, "*event"],
    ratio: Number,
) -> Ball:
    r"""The ball that bounds S(C).

    Its boundary is :math:`|y - y_f^*| = r |y - y_h^*|` with :math:`r = c_h C / L_f`.

    .. math:: centre = \frac{y_f^* - r^2 y_h^*}{1 - r^2} ,
              \qquad radius = \frac{r |y_f^* - y_h^*|}{|1 - r^2|} .

    Args:
      minimiser_f, minimiser_h: :math:`y_f^*` and :math:`y_h^*`, of one shape.
      ratio: r >= 0.

    Returns:
      The `Ball`. For r < 1 it holds :math:`y_f^*`, for r > 1 it holds :math:`y_h^*`.
      For r = 1 the boundary is the plane half way between the two, and centre and
      radius are the limit from r < 1. For an infinite r the ball is the point
      :math:`y_h^*`.

    Source: Yang, Huang, Wipf (2022), Section 4.1 and Fig. 1. The text centres the ball
    on :math:`y_f^*` or :math:`y_h^*`. It holds that point, but its centre lies on the
    line through both, beyond it.

    Example:
      >>> import jax.numpy as jnp
      >>> ball: Ball = apollonian_ball(jnp.array([0.0]), jnp.array([3.0]), 0.5)
      >>> ball.centre.tolist(), float(ball.radius)  # |y| = |y - 3| / 2 at 1 and -3
      ([-1.0], 2.0)
    """
    dtype = compute_dtype(minimiser_f, minimiser_h)
    at_f = minimiser_f.astype(dtype)
    at_h = minimiser_h.astype(dtype)
    r = jnp.asarray(ratio, dtype)

    # The ball of 1 / r is the same with the minimisers exchanged. Squares of a ratio of
    # at most 1 do not overflow.
    swapped = r > 1.0
    inner_point = jnp.where(swapped, at_h, at_f)
    outer_point = jnp.where(swapped, at_f, at_h)
    r = jnp.where(swapped, 1.0 / r, r)
    apart = inner_point - outer_point
    gap = (1.0 - r) * (1.0 + r)  # 1 - r^2

    # For r = 1 and equal minimisers the limit is their place, of radius 0.
    shift = jnp.where((gap == 0.0) & (apart == 0.0), 0.0, r**2 / gap * apart)
    centre = inner_point + shift
    length = norm(apart)
    radius = jnp.where((gap == 0.0) & (length == 0.0), 0.0, r / gap * length)
    return Ball(centre=centre, radius=radius, inside=~swapped & (gap > 0.0))


def orthant_alignment(p: Any, q: Any, *, batch_ndim: int = 0) -> Float[Array, "*batch"]:
    r"""Alignment of a step -p from q with the orthant.

    It is :math:`D(p; q) = \sum_i \min(q_i^2 - p_i^2, 0) / |p|^2`. It lies in [-1, 0]: 0
    where no entry of p is larger in size than the entry of q, -1 where q is 0.

    Args:
      p: the gradient step, :math:`a_2 \nabla h(y)` in the paper, a pytree of arrays.
      q: the point, of the same structure and shapes.
      batch_ndim: how many leading axes are batch axes.

    Returns:
      One number per example, 0 where p is 0.

    Source: Yang, Huang, Wipf (2022), Section 5.1: the squares are of single entries.
    Eq. 58 leaves the norm out.

    Example:
      >>> import jax.numpy as jnp
      >>> p, q = jnp.array([1.0, 2.0]), jnp.array([1.0, 3.0])
      >>> float(orthant_alignment(p, q)), float(orthant_alignment(p, jnp.zeros(2)))
      (0.0, -1.0)
    """
    p, q = widen((p, q))
    # D does not change with the units of p and q. With |p| = 1 squares stay in range.
    length = norm(p, batch_ndim)
    still = length == 0.0
    unit = 1.0 / jnp.where(still, 1.0, length)
    p = scale(unit, p)
    q = scale(unit, q)

    terms = jax.tree.map(lambda a, b: jnp.minimum(b**2 - a**2, 0.0), p, q)
    ones = jax.tree.map(jnp.ones_like, terms)
    total = inner(terms, ones, batch_ndim)
    return total / jnp.where(still, 1.0, inner(p, p, batch_ndim))


@checked(step_size=POSITIVE, kappa=ZERO_TO_ONE)
def in_proximal_region(
    h: Energy, y: Any, *, step_size: Number, kappa: Number
) -> Bool[Array, "*batch"]:
    r"""Membership in the region T(kappa), for phi = relu.

    .. math:: T(\kappa) = \{ y : D(a_2 \nabla h(y); y) \ge -\kappa \}

    There a step of proximal gradient descent on h + phi is at least
    :math:`\sqrt{1 - \kappa}` times as long as the gradient step (Lemma D.3). Theorem
    5.1 needs no more. This test holds only for the indicator of the nonnegative
    orthant. `certify` measures the ratio for any phi.

    Args:
      h, y: ``y -> (*batch,)``, the smooth part, and the state, a pytree of arrays.
      step_size, kappa: a2 > 0, and kappa in [0, 1].

    Source: Yang, Huang, Wipf (2022), Theorem 5.1 and Fig. 4. The paper claims that its
    result generalises beyond ReLU. With this D it does not: at the minimiser of h + phi
    for phi = l1, D can be 0 while delta is small.

    Example:
      >>> import jax.numpy as jnp
      >>> h = lambda y: 0.5 * jnp.sum((y - 3.0) ** 2, axis=-1)
      >>> y = jnp.array([[2.0], [0.1]])  # D is 0, and nearly -1
      >>> in_proximal_region(h, y, step_size=0.5, kappa=0.1).tolist()
      [True, False]
    """
    move = jax.tree.map(lambda leaf: step_size * leaf, widen(gradient(h, y)))
    return orthant_alignment(move, y, batch_ndim=batch_rank(h, y)) >= -kappa
