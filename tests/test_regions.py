"""The constants and regions of Theorems 4.1 and 5.1 against loops, formulas and
pictures."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from tests.marks import in_float64
from tests.reference import compiled, gaussian, jax_array
from tests.test_curvature import symmetric
from unroll_jax import certificates as certified


def quadratic(A, b: Any = 0.0):
    return lambda y: (
        0.5 * jnp.sum(((y - b) @ jnp.asarray(A, y.dtype)) * (y - b), axis=-1)
    )


@in_float64
def test_the_gradient_ratio_is_the_quotient_of_the_norms():
    rng = np.random.default_rng(0)
    A = symmetric(rng, 4)
    B = symmetric(rng, 4)
    y = rng.normal(size=(2, 3, 4))
    of_f = (y - 1.0) @ A
    lengths = functools.partial(np.linalg.norm, axis=-1)
    expected = lengths(of_f) / lengths(of_f + y @ B)
    delta = compiled(
        lambda y: certified.gradient_ratio(quadratic(A, 1.0), quadratic(B), y)
    )(y)
    assert_allclose(delta, expected, rtol=1e-12)


def test_the_gradient_ratio_of_pytrees_and_zero_gradients():
    """It is 0 where f is stationary and infinite where only h is."""
    f = quadratic(np.eye(2))
    g = quadratic(np.eye(2), np.array([2.0, 0.0], np.float32))
    of_tree = lambda y: jnp.sum(y["a"] ** 2, -1) + y["b"] ** 2

    @compiled
    def measure(y, tree):
        ratios = [certified.gradient_ratio(f, half, y) for half in (g, f)]
        return ratios, certified.gradient_ratio(
            of_tree, lambda y: 3.0 * of_tree(y), tree
        )

    tree = {"a": np.ones((5, 2), np.float32), "b": np.arange(5.0, dtype=np.float32)}
    ratios, share = measure(np.array([[0.0, 0.0], [1.0, 0.0]], np.float32), tree)
    assert_array_equal(ratios, [[0.0, np.inf], [0.0, 0.5]])
    assert_allclose(share, 0.25, rtol=1e-6)


def test_the_constants_are_their_formulas():
    """Of alpha_1, alpha_2, L_g and kappa, also at their limits."""
    given = np.float32([
        [0.1, 0.2, 3.0, 0.5],
        [0.2, 0.1, 3.0, 0.0],
        [1e-25, 1e-25, 1.0, 0.0],
        [0.5, 0.5, 0.0, 0.0],
        [0.5, 0.5, 0.0, 0.5],
        [0.5, 0.5, 0.0, 1.0],
        [0.25, 0.5, 2.0, 1.0],
    ])  # fmt: skip
    C = [1.25, 0.1 / 0.16, 1e25, np.inf, np.inf, np.inf, 1.0]
    of_phi = [0.625, C[1] * 0.5**0.5, 1e25 * 0.5**0.5, np.inf, np.inf, np.inf, 0.0]

    @compiled
    @jax.vmap
    def constants(each):
        *rates, kappa = each
        return (
            certified.descent_constant(*rates),
            certified.proximal_constant(*rates, kappa),
        )

    descent, proximal = constants(given)
    assert_allclose(descent, C, rtol=1e-6)
    assert_allclose(proximal, of_phi, rtol=1e-6)


def test_the_region_s_is_bounded_by_the_apollonian_ball():
    """The two panels of Fig. 1, on states that are matrices."""
    rng = np.random.default_rng(2)
    event = (3, 2)
    at_f, at_h = rng.normal(size=(2, *event)).astype(np.float32)
    points = 4.0 * rng.normal(size=(500, *event)).astype(np.float32)

    @compiled
    def measure(points, at_f, at_h, ratio):
        return certified.in_descent_region(
            points, at_f, at_h, constant=2.0 * ratio, smoothness_f=3.0, convexity_h=1.5
        ), certified.apollonian_ball(at_f, at_h, ratio)

    for ratio in (0.7, 1.5):
        member, ball = measure(points, at_f, at_h, ratio)
        distance = np.linalg.norm(np.reshape(points - ball.centre, (500, -1)), axis=-1)
        assert bool(ball.inside) == (ratio < 1.0)
        assert_array_equal(member, (distance <= ball.radius) == ball.inside)
        assert 0 < np.sum(member) < 500
        held, other = (at_f, at_h) if ratio < 1.0 else (at_h, at_f)
        assert (
            np.linalg.norm(held - ball.centre)
            < ball.radius
            < np.linalg.norm(other - ball.centre)
        )
        # it holds the point, but is not centred on it
        assert np.linalg.norm(held - ball.centre) > 0.1 * ball.radius


ball_of = compiled(certified.apollonian_ball)


def test_the_ball_at_its_limits():
    """The minimiser of h, a half-space at ratio 1, a point if both minimisers are
    one."""
    at_f = jax_array([1.0, 2.0, 5.0])
    at_h = jax_array([3.0, 2.0, 4.0])
    apart = np.sqrt(5.0)
    for ratio, centre, radius in (
        (np.inf, at_h, 0.0),
        (1e20, at_h, 1e-20 * apart),
        (1e30, at_h, 1e-30 * apart),
        (1.0, [-np.inf, 2.0, np.inf], np.inf),
        (1.0 - 1e-4, [-1e4, 2.0, 5e3], 5e3 * apart),
    ):
        ball = ball_of(at_f, at_h, ratio)
        near = 1e-6 if ratio >= 1.0 else 1e-3
        assert_allclose(ball.centre, centre, rtol=near)
        assert_allclose(ball.radius, radius, rtol=near)
        assert ratio <= 1.0 or not ball.inside
    for ratio in (1e-20, 1.0, 1e20, np.inf):
        same = ball_of(at_f, at_f, ratio)
        assert_array_equal(same.centre, at_f, err_msg=str(ratio))
        assert same.radius == 0.0, ratio
    points = np.float32([at_f, at_h, 3 * [np.nan]])
    region = functools.partial(
        certified.in_descent_region, constant=jnp.inf, smoothness_f=1.0, convexity_h=1.0
    )
    assert_array_equal(compiled(region)(points, at_f, at_h), [True, True, False])


def test_the_alignment_is_the_sum_over_single_coordinates():
    p, q = gaussian(2, 7, 4, 3, seed=1)

    @compiled
    def align(p, q):
        return certified.orthant_alignment(p, q, batch_ndim=1)

    alignment = align(p, q)
    expected = np.sum(np.minimum(q**2 - p**2, 0.0), (1, 2)) / np.sum(p**2, (1, 2))
    assert_allclose(alignment, expected, rtol=1e-5)
    assert np.all((alignment >= -1.0) & (alignment <= 0.0))
    assert np.all(align(p, 0.0 * q) == -1.0)
    assert np.all(align(0.0 * p, q) == 0.0)


def test_lemma_d_3_bounds_proximal_steps_in_t():
    """On 10,000 points of either sign, |y - relu(y - p)|^2 is at least (1 - kappa)
    |p|^2. Membership is monotone."""
    kappas = (0.2, 0.4, 0.6, 0.8)

    @compiled
    def measure(y):
        h = lambda y: jnp.sum(jax_array([0.3, 2.0]) * (y - 1.0) ** 2, -1)
        p = 0.4 * jax.vmap(jax.grad(h))(y)
        members = [
            certified.in_proximal_region(h, y, step_size=0.4, kappa=kappa)
            for kappa in kappas
        ]
        return (
            jnp.sum((y - jax.nn.relu(y - p)) ** 2, -1),
            jnp.sum(p**2, -1),
            jnp.stack(members),
        )

    y = 2.0 * gaussian(10_000, 2, seed=3)
    moved, whole, members = measure(y.astype(np.float32))
    for kappa, member in zip(kappas, members, strict=True):
        assert np.all((moved >= (1.0 - kappa) * whole * (1 - 1e-5))[member]), kappa
    shares = np.mean(members, axis=1)
    assert 0.0 < shares[0] < shares[1] < shares[2] < shares[3] < 1.0
    assert np.any(moved < 0.8 * whole)


def test_float16_regions_hold_at_small_and_large_numbers():
    """Their squares are 0 and infinite in float16."""
    half = functools.partial(jnp.asarray, dtype=jnp.float16)
    f, g = (lambda y, c=c: jnp.sum(half(c) * y) for c in (3e-5, 1e-5))

    @compiled
    def inside(y, at_h):
        known = {"constant": 1.0, "smoothness_f": 1.0, "convexity_h": 0.1}
        return certified.in_descent_region(y, 0.0 * y, at_h, **known)

    @compiled
    def run(ones, short):
        ratio = certified.gradient_ratio(f, g, ones)
        return ratio, certified.orthant_alignment(short, 0.0 * short)

    ratio, alignment = run(half([1.0, 1.0]), half([3e-5, 4e-5]))
    assert_allclose(ratio, 0.75, rtol=2e-3)
    assert_allclose(alignment, -1.0)
    for y, at_h in (([3e-5, 4e-5], [6e-5, 6e-5]), ([6e4, 6e4], [-6e4, -6e4])):
        assert not inside(half(y), half(at_h))
