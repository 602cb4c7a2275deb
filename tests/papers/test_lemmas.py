"""Statements of the three papers that belong to no single module."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from unroll_jax.energies import OptEqParams, deep_opteq, opteq

pytestmark = pytest.mark.nightly

# Xie et al. (2021), Lemmas 1, 2 and 4: feed-forward networks as OptEq


def factor(product, left, rng):
    """Lemma 4: B (n, k) of full rank with product = left B^T, for product (m, n),
    left (m, k), k > max(m, n)."""
    exact = np.linalg.pinv(left) @ product
    null = np.eye(left.shape[1]) - np.linalg.pinv(left) @ left
    B = (exact + null @ rng.normal(size=exact.shape)).T
    assert_allclose(left @ B.T, product, atol=1e-10)
    assert np.linalg.matrix_rank(B) == product.shape[1]
    return B


def network(widths, rng):
    pairs = zip(widths[1:], widths[:-1], strict=True)
    return [
        (rng.normal(size=shape) / np.sqrt(shape[1]), 0.3 * rng.normal(size=shape[0]))
        for shape in pairs
    ]


def factors(weights, read, rng):
    """V_L, given, to V_0, with V_k V_(k-1)^T the weights of a network."""
    V = [read]
    for weight in reversed(weights):
        V.append(factor(weight, V[-1], rng))
    return V


def forward(layers, x, activation):
    for weight, bias in layers[:-1]:
        x = activation(weight @ x + bias)
    return layers[-1][0] @ x


@pytest.mark.usefixtures("x64")
def test_lemmas_1_and_4_networks_are_opteq_chains():
    """Layers z' = V_k^T sigma(V_k z + b_k), with V_k V_(k-1)^T the weights of the
    network; y = V_L z."""
    rng, m, widths = np.random.default_rng(1), 9, (4, 6, 3, 5, 2)
    layers = network(widths, rng)
    V = factors([one for one, _ in layers], rng.normal(size=(widths[-1], m)), rng)
    *reversed_V, V_0 = V
    x = rng.normal(size=widths[0])
    z = jnp.asarray(V_0.T @ x)
    for (_, bias), weight in zip(layers[:-1], reversed_V[:0:-1], strict=True):
        layer = opteq(m, len(bias), activation="tanh")
        z = layer.step(
            OptEqParams(jnp.asarray(weight), None, jnp.asarray(bias)), z, None
        )
    expected = forward(layers, x, np.tanh)
    assert_allclose(V[0] @ np.asarray(z), expected, atol=1e-10)


@pytest.mark.usefixtures("x64")
def test_lemma_2_a_deep_opteq_contains_any_relu_network():
    """With W_1 orthogonal to W_L and not 0, as printed: W_1 = 0 cuts off the input as
    well. Only the first layer sees x. Its W_1 gives W_2 W_1^T as the network asks, and
    W_1 z = 0 for every z that the last layer returns: the first round ends at the
    equilibrium.
    """
    rng, m, widths = np.random.default_rng(2), 20, (4, 6, 3, 5, 2)
    layers, read = network(widths, rng), rng.normal(size=(widths[-1], m))
    hidden = factors([one for one, _ in layers[1:]], read, rng)[:0:-1]
    both = np.concatenate([hidden[1], hidden[-1]])  # W_2 and W_L
    products = np.zeros((len(both), widths[1]))
    products[: widths[2]] = layers[1][0]
    hidden[0] = factor(products, both, rng)
    first = opteq(m, widths[1], widths[0])
    deep = deep_opteq([first, *(opteq(m, width) for width in widths[2:-1])])
    x, z = jnp.asarray(rng.normal(size=widths[0])), jnp.asarray(rng.normal(size=m))

    def run(first, x=x):
        inputs = [jnp.asarray(layers[0][0])] + [None] * (len(hidden) - 1)
        weights = [first, *hidden[1:]]
        params = tuple(
            OptEqParams(jnp.asarray(weight), U, jnp.asarray(bias))
            for weight, U, (_, bias) in zip(weights, inputs, layers, strict=False)
        )
        twice = deep.step(params, deep.step(params, z, x), x)
        # an equilibrium
        assert_allclose(deep.step(params, twice, x), twice, atol=1e-10)
        return read @ np.asarray(twice)

    expected = forward(layers, np.asarray(x), lambda u: np.maximum(u, 0.0))
    assert_allclose(run(hidden[0]), expected, atol=1e-9)
    cut_off = np.zeros_like(hidden[0])
    assert_array_equal(run(cut_off), run(cut_off, -3.0 * x))
    assert np.max(np.abs(run(cut_off) - expected)) > 0.01


def test_lemmas_9_and_10_of_averaging_and_monotone_maps():
    """S(z) = z - g (grad R(z) + l z), g = 1 / (2 L): between |x - y| / 4 and (1 - g
    l) |x - y|, for l up to L / 2."""
    rng, L = np.random.default_rng(4), 3.0
    basis, rotation = np.linalg.qr(rng.normal(size=(2, 5, 5)))[0]
    A = basis @ np.diag(rng.uniform(0.0, L, 5)) @ basis.T
    for share in (0.0, 0.1, 0.5):
        # A is linear: the difference of two points
        apart = rng.normal(size=(100, 5))
        moved = apart - apart @ A / (2.0 * L) - share * apart / 2.0
        sizes, before = np.linalg.norm(moved, axis=1), np.linalg.norm(apart, axis=1)
        assert np.all(sizes <= (1.0 - share / 2.0) * before + 1e-12)
        assert np.all(sizes >= 0.25 * before - 1e-12)
        # sin is 1-Lipschitz from 0. Rotations keep norms
        difference = apart - np.sin(apart @ rotation)
        assert np.all(np.sum(difference * apart, axis=1) >= -1e-12)


# Yang, Huang, Wipf (2022), Remark 4.2 and the lemmas of supplement D


def constant(a1, a2, L_g):
    """C of Theorem 4.1 with |a2 - a1|, for which the theorem holds for every a1. L_f
    does not enter."""
    return a2 / (abs(a2 - a1) + a1 * a2 * L_g)


def test_remark_4_2_growth_of_the_constant():
    """Printed: C is Omega(1 / (a1 a2 L_f L_g)) as any of the four becomes small. As
    proved, C has no L_f, and with a1 = a2 it is 1 / (a1 L_g). With a1 much smaller than
    a2 it tends to 1, and does not grow.
    """
    small = np.logspace(-6, -3, 4)
    assert_allclose([constant(a, a, 1.0) * a for a in small], 1.0)
    assert_allclose([constant(0.1, 0.1, L_g) * 0.1 * L_g for L_g in small], 1.0)
    assert_allclose([constant(a1, 0.1, 1.0) for a1 in small], 1.0, rtol=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_lemmas_d_1_d_2_d_4_of_the_prox(seed):
    """Of a quadratic h with L_h = 1, phi = |.|_1 / 2, a point x, and a step to y of
    length a2 = lambda that is inexact by noise."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    A = basis @ np.diag(rng.uniform(0.1, 1.0, 6)) @ basis.T
    b, x, noise = rng.normal(size=(3, 6)) * [[1.0], [1.0], [0.3]]
    a2, gradient = rng.uniform(0.2, 1.0), A @ x + b
    h = lambda z: 0.5 * z @ A @ z + b @ z
    phi = lambda z: 0.5 * np.sum(np.abs(z))
    prox = lambda z: np.sum((z - x + a2 * gradient) ** 2) / (2.0 * a2) + phi(z)
    shrunk = lambda z: np.sign(z) * np.maximum(np.abs(z) - 0.5 * a2, 0.0)
    y = shrunk(x - a2 * (gradient - noise))
    eta = h(x) - 0.5 * a2 * np.sum(gradient**2)
    # D.1, whose print has the other sign: the noise is a subgradient of P at y (lambda
    # = a2), which is 1 / a2 convex.
    for z in rng.normal(size=(200, 6)):
        below = noise @ (z - y) + np.sum((z - y) ** 2) / (2.0 * a2)
        assert prox(z) >= prox(y) + below - 1e-12
        # D.4: P + eta majorises h + phi and touches it at x.
        assert prox(z) + eta >= h(z) + phi(z) - 1e-12
    assert_allclose(prox(x) + eta, h(x) + phi(x), rtol=1e-12)
    # D.2: descent of P against the distance to its minimiser and the noise, c_P = 1 /
    # a2.
    best = shrunk(x - a2 * gradient)
    least = np.sum((x - best) ** 2) / (2.0 * a2) - a2 * np.sum(noise**2)
    assert prox(x) - prox(y) >= least - 1e-12


# Porras-Valenzuela, Hadou, Ribeiro: Theorem 2 and Corollary 3 where zeta, nu and M can
# be computed


def test_theorem_2_losses_end_below_zeta_over_alpha():
    rng, alpha, zeta = np.random.default_rng(0), 0.1, 0.02
    worst, losses = 5.0, 5.0 * np.ones(100)
    for _ in range(400):
        worst = (1.0 - alpha) * worst + zeta  # every constraint met with equality
        # or with room
        losses = rng.uniform(0.0, 1.0, 100) * ((1.0 - alpha) * losses + zeta)
    assert_allclose(worst, zeta / alpha, rtol=1e-9)  # the constant is exact
    assert np.max(losses) <= zeta / alpha


@pytest.mark.parametrize("delta", [0.05, 0.3])
def test_theorem_2_with_failures_holds_for_the_best_layer(
    delta,
):
    """A layer fails with probability delta and then has the loss M nu at most. The
    bound of the limit inferior is (zeta + delta M nu / (1 - delta)) / alpha. Runs of
    successes bring the best layer to zeta / alpha itself, while the mean over layers
    needs the second term.
    """
    rng, alpha, zeta, worst = np.random.default_rng(1), 0.3, 0.05, 2.0
    loss, best, history = 5.0 * np.ones(200), np.full(200, np.inf), []
    for _ in range(3000):
        loss = np.where(rng.random(200) < delta, worst, (1.0 - alpha) * loss + zeta)
        best = np.minimum(best, loss)
        history.append(loss)
    assert np.all(best <= (zeta + delta * worst / (1.0 - delta)) / alpha)
    assert np.all(best <= zeta / alpha + (1.0 - alpha) ** 12 * worst)
    assert np.mean(history[1000:]) > 1.5 * zeta / alpha


def test_corollary_3_a_shift_adds_its_distance_and_is_tight():
    """Losses with slopes 1 and -1 in an input that moves by tau: the violation grows by
    (1 + (1 - alpha)) tau exactly; losses that are C-Lipschitz never by more than C
    times that.
    """
    rng, alpha, tau = np.random.default_rng(2), 0.3, 0.4
    x = rng.normal(size=1000)
    violation = lambda x: np.mean(5.0 + x) - (1.0 - alpha) * np.mean(5.0 - x)
    grown = violation(x + tau) - violation(x)
    assert_allclose(grown, (2.0 - alpha) * tau, rtol=1e-12)
    weights = np.array([-(1.0 - alpha), 1.0])
    for _ in range(100):
        slopes, centres = rng.uniform(-1.0, 1.0, (2, 5, 1)), rng.normal(size=(2, 5, 1))
        # of both layers
        losses = lambda x: np.sum(np.abs(slopes * (x - centres)), axis=1)  # noqa: B023
        shift = tau * rng.uniform(-1.0, 1.0, 1000)
        change = weights @ np.mean(losses(x + shift) - losses(x), axis=1)
        C = np.max(np.sum(np.abs(slopes), axis=1))
        assert change <= C * (2.0 - alpha) * np.mean(np.abs(shift)) + 1e-12
