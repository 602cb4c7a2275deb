"""Every statement of Xie et al. (2021) that can be computed, in float64; and its
sentences that fail.

Fixed points are found by Newton's method, and minima of functions by SciPy and convex
solvers.
"""

import functools

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from tests.marks import in_float64, nightly
from tests.reference import compiled, gaussian
from unroll_jax.energies.equilibrium.deep_opteq import deep_opteq, multi_block
from unroll_jax.energies.equilibrium.opteq import opteq
from unroll_jax.energies.equilibrium.opteq_objective import (
    deep_opteq_objective,
    opteq_objective,
    opteq_preimage,
)
from unroll_jax.energies.equilibrium.opteq_params import OptEqParams
from unroll_jax.energies.equilibrium.regularisers import half_square, regularised
from unroll_jax.fixed_point import equilibrium

pytestmark = [in_float64, nightly]
EXACT = {"atol": 1e-8, "rtol": 0.0}
# of the convex solver
TIGHT = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13}
M, I = 4, 3  # noqa: E741


def draw(seed, widths, *, norm=0.9):
    rng = np.random.default_rng(seed)
    params = []
    for width in widths:
        W = rng.normal(size=(width, M))
        U = rng.normal(size=(width, I))
        b = rng.normal(size=width)
        params.append(OptEqParams(W * norm / np.linalg.norm(W, 2), U, b))
    return rng, tuple(params), rng.normal(size=M), rng.normal(size=I)


def layers_of(params, **options):
    return [
        opteq(layer.W.shape[1], layer.W.shape[0], layer.U.shape[1], **options)
        for layer in params
    ]


def newton(layer):
    """(params, x) -> the fixed point of a step by Newton's method on dense
    Jacobians: no solver of the library."""

    @compiled
    def step(*given):
        return layer.step(*given), jax.jacobian(layer.step, 1)(*given)

    def solve(params, x):
        z = np.zeros(M)
        for _ in range(60):
            stepped, jacobian = step(params, z, x)
            z = z + np.linalg.solve(np.eye(M) - jacobian, stepped - z)
        assert np.max(np.abs(step(params, z, x)[0] - z)) < 1e-12
        return z

    return solve


def blocks_of(layers, params, z, x):
    blocks = []
    for layer, block_params in zip(layers, params, strict=True):
        blocks.append(z := layer.step(block_params, z, x))
    return tuple(blocks)


def smooth_minimum(function, start, *args, **options):
    solution = minimize(
        lambda z: function(z, *args)[:2],
        start,
        jac=True,
        tol=1e-13,
        **options,
    )
    return solution.x, solution.fun


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "leaky_relu"])
def test_theorem_1_a_layer_is_the_prox_of_phi(activation):
    """phi of the library minimised over z = W^T t, with t in the range of sigma.
    Elsewhere it is infinite."""
    # At the edges of tanh and sigmoid the slope of phi is infinite.
    edges = {
        "relu": (0.0, None),
        "tanh": (-1.0 + 1e-9, 1.0 - 1e-9),
        "sigmoid": (1e-9, 1.0 - 1e-9),
    }
    edge = edges.get(activation, (None, None))
    layer = opteq(M, M, I, activation=activation)

    @compiled
    def measure(t, params, z, x):
        def objective(t):
            u = params.W.T @ t
            phi = opteq_objective(params, u, x, activation=activation)
            return phi + 0.5 * jnp.sum((u - z) ** 2)

        return (
            *jax.value_and_grad(objective)(t),
            layer.step(params, z, x),
            layer.energy(params, z, x),
        )

    for seed in range(3):
        _, (params,), *arrays = draw(seed, [M])
        t, least = smooth_minimum(
            measure,
            np.full(M, 0.4),
            params,
            *arrays,
            bounds=[edge] * M,
            method="L-BFGS-B",
            options={"ftol": 1e-18, "gtol": 1e-12, "maxiter": 5000},
        )
        *_, stepped, energy = measure(t, params, *arrays)
        assert_allclose(params.W.T @ t, stepped, atol=1e-6)
        # The minimum itself is flat, so the values agree far closer; and it is the
        # layer's energy, the envelope of phi.
        assert (
            measure(np.linalg.solve(params.W.T, stepped), params, *arrays)[0]
            <= least + 1e-11
        )
        assert float(energy) == pytest.approx(least, abs=1e-10)


@pytest.mark.parametrize(("activation", "skip"), [("relu", 0.3), ("tanh", 0.9)])
def test_the_moreau_form_is_a_prox_of_the_envelope(activation, skip):
    # any W: wide here
    (params,), z, x = jax.tree.map(jnp.asarray, draw(0, [6])[1:])
    plain, layer = (
        opteq(M, 6, I, activation=activation, skip=share) for share in (1.0, skip)
    )

    @compiled
    def measure(u, of_phi, of_square):
        def objective(u):
            return opteq_objective(params, u, x, activation=activation, skip=skip)

        def sum_of_both(u):
            return of_phi * objective(u) + of_square * 0.5 * jnp.sum((u - z) ** 2)

        return *jax.value_and_grad(sum_of_both)(u), layer.step(params, u, x)

    def minimum(*shares):
        return smooth_minimum(measure, np.zeros(M), *shares, method="BFGS")[0]

    stepped = measure(z, 1.0, 1.0)[2]
    fixed = newton(plain)(params, x)
    assert_allclose(minimum(1.0, 1.0), stepped, atol=1e-8)
    assert_allclose(measure(fixed, 1.0, 1.0)[2], fixed, atol=1e-12)
    assert_allclose(minimum(1.0, 0.0), fixed, atol=1e-7)
    # Section 2.2 leaves the factor a out: the prox of M is another map.
    assert np.max(np.abs(minimum(1.0 / skip, 1.0) - stepped)) > 1e-3


def test_the_envelope_has_its_preimage_and_gradients():
    """Its value as a minimum is in the corollary below. W is wide."""
    skip = 0.7
    width = 1e-4
    _, (params,), z, x = draw(1, [6])

    @compiled
    def measure(params, z, x):
        objective = lambda b: opteq_objective(params._replace(b=b), z, x, skip=skip)
        w = opteq_preimage(params, z, x, skip=skip)
        back = skip * opteq(M, 6, I).step(params, w, x) + (1.0 - skip) * w
        near = params.b + width * np.stack([np.eye(6), -np.eye(6)])
        ends = jax.vmap(jax.vmap(objective))(near)
        return jax.grad(objective)(params.b), back, ends

    gradient, back, ends = measure(params, z, x)
    assert_allclose(back, z, atol=1e-12)
    assert_allclose(gradient, (ends[0] - ends[1]) / (2.0 * width), atol=1e-6)


def test_lemma_3_deep_blocks_are_a_wide_equilibrium():
    _, params, _, x = draw(0, [5, 4, 7])
    layers = layers_of(params, skip=0.6)
    deep = deep_opteq(layers)
    wide = multi_block(layers)

    @compiled
    def measure(params, last, start, x):
        advance = lambda z: (wide.step(params, z, x), wide.energy(params, z, x))
        end, energies = jax.lax.scan(lambda z, _: advance(z), start, length=400)
        blocks = blocks_of(layers, params, last, x)
        return blocks, advance(blocks), end, energies

    start = tuple(gaussian(3, M, seed=1))
    blocks, (moved, residual), end, energies = measure(
        params, newton(deep)(params, x), start, x
    )
    stacked = np.concatenate(blocks)
    # Eq. 6 written out: W block diagonal, P the cyclic shift, U and b stacked.
    matrices, *rest = zip(*params, strict=True)
    W = scipy.linalg.block_diag(*matrices)
    U, b = map(np.concatenate, rest)
    shifted = np.ravel(np.roll(blocks, 1, axis=0))
    expected = 0.6 * W.T @ np.maximum(W @ shifted + U @ x + b, 0.0) + 0.4 * shifted
    assert_allclose(expected, stacked, **EXACT)
    assert_allclose(np.concatenate(moved), expected, atol=1e-12)
    assert residual < 1e-20
    # And from elsewhere: the wide layer's own iteration ends there, and no step of it
    # raises the residual.
    assert np.all(np.diff(energies) <= 1e-15)
    assert_allclose(np.concatenate(end), stacked, **EXACT)


@pytest.mark.parametrize(
    ("widths", "skip"),
    [([5], 0.5), ([5, 6], 0.8), ([5, 4, 7], 0.3), ([3, 6, 4, 5], 0.9)],
)
def test_theorem_2_the_gradient_of_phi_balances_the_shift(widths, skip):
    """0 in dPhi(z) + (I - P) z. Phi is smooth for a < 1. With P turned round it
    fails for L > 2."""
    _, params, _, x = draw(2, widths)
    layers = layers_of(params, skip=skip)

    @compiled
    def measure(params, last, x):
        blocks = blocks_of(layers, params, last, x)
        return blocks, jax.grad(
            lambda blocks: deep_opteq_objective(params, blocks, x, skip=skip)
        )(blocks)

    stacked, slope = map(
        np.stack, measure(params, newton(deep_opteq(layers))(params, x), x)
    )
    assert_allclose(slope + stacked - np.roll(stacked, 1, axis=0), 0.0, atol=1e-8)
    wrong = np.max(np.abs(slope + stacked - np.roll(stacked, -1, axis=0)))
    assert wrong > 1e-3 if len(widths) > 2 else wrong < 1e-8


@pytest.mark.parametrize("skip", [1.0, 0.6])
def test_corollary_1_two_layers_solve_a_convex_problem(skip):
    """min a M(z_1) + a M(z_0) + |z_1 - z_0|^2 / 2 as one quadratic program in z and
    the hidden units t >= 0."""
    _, params, _, x = draw(3, [M, 6], norm=0.8)
    z = [cp.Variable(M), cp.Variable(M)]
    cost = 0.5 * cp.sum_squares(z[0] - z[1])
    parts = []
    for layer, block in zip(params, z, strict=True):
        W = layer.W
        c = layer.U @ x + layer.b
        t = cp.Variable(len(c), nonneg=True)
        cost += skip * (0.5 * cp.quad_form(t, np.eye(len(c)) - W @ W.T) - c @ t)
        if skip == 1.0:
            parts.append(W.T @ t == block)
        else:
            cost += skip / (2.0 * (1.0 - skip)) * cp.sum_squares(W.T @ t - block)
    problem = cp.Problem(cp.Minimize(cost), parts)
    problem.solve(solver=cp.CLARABEL, **TIGHT)
    layers = layers_of(params, skip=skip)

    @compiled
    def measure(params, x):
        z0, info = equilibrium(
            deep_opteq(layers), params, jnp.zeros(M), x, tol=1e-13, max_steps=500
        )
        z1 = layers[0].step(params[0], z0, x)
        value = 0.5 * jnp.sum((z1 - z0) ** 2)
        if skip < 1.0:
            value += deep_opteq_objective(params, (z1, z0), x, skip=skip)
        return z0, z1, value, info.converged

    z0, z1, value, converged = measure(params, x)
    assert bool(converged)
    assert_allclose(z0, z[1].value, **EXACT)
    assert_allclose(z1, z[0].value, **EXACT)
    if skip < 1.0:
        assert_allclose(value, problem.value, **EXACT)


def test_theorem_3_blocks_meet_at_rate_a():
    """Errors fall in proportion to a, as a goes to 0. Extrapolated from three of
    them the limit is exact."""
    _, params, _, x = draw(5, [5, 4, 7])
    W, U, b = (np.concatenate(leaves) for leaves in zip(*params, strict=True))
    # L z = sum_l W_l^T sigma(W_l z + ...): one wide layer with the weights stacked and
    # divided by L.
    limit = np.zeros(M)
    for _ in range(2000):
        limit = W.T @ np.maximum(W @ limit + U @ x + b, 0.0) / 3.0
    skips = np.array([1e-1, 1e-2, 1e-3, 5e-4, 1e-4])
    blocks = []
    for skip in skips:
        layers = layers_of(params, skip=skip)
        z = newton(deep_opteq(layers))(params, x)
        blocks.append(compiled(functools.partial(blocks_of, layers))(params, z, x))
    rates = np.abs(blocks - limit).max(axis=(1, 2)) / skips
    assert rates[-1] < 10.0
    assert_allclose(rates[1:], rates[-1], rtol=0.2)
    fit = np.polyfit(skips[2:], np.reshape(blocks[2:], (3, -1)), 2)[-1]
    assert_allclose(fit, np.tile(limit, 3), **EXACT)


def test_an_appended_regulariser_is_a_block_of_its_own():
    """prox_R after a layer minimises a E + R, E the envelope of phi, and not phi +
    R, as Section 4.1 reads."""
    _, (params,), _, x = draw(6, [M], norm=0.8)
    (layer,) = layers_of([params], skip=0.6)
    penalty = half_square(0.7)
    fixed = newton(regularised(layer, penalty))(params, x)

    def minimum(energy):
        function = compiled(
            jax.value_and_grad(lambda z, *given: energy(z, *given) + penalty.value(z))
        )
        return smooth_minimum(function, np.zeros(M), params, x, method="BFGS")[0]

    assert_allclose(
        fixed, minimum(lambda z, params, x: 0.6 * layer.energy(params, z, x)), atol=1e-7
    )
    of_phi = minimum(lambda z, params, x: opteq_objective(params, z, x, skip=0.6))
    assert np.max(np.abs(of_phi - fixed)) > 1e-2
