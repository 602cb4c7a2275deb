"""Theorems 4 and 5 of Xie et al. (2021), in float64: which equilibrium SAM picks,
and training at a linear rate."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose

from tests.marks import in_float64, nightly
from tests.reference import compiled
from unroll_jax.energies.equilibrium.deep_opteq import deep_opteq
from unroll_jax.energies.equilibrium.monotone import Monotone
from unroll_jax.energies.equilibrium.opteq import opteq
from unroll_jax.energies.equilibrium.opteq_params import OptEqParams
from unroll_jax.fixed_point import averaged, equilibrium

pytestmark = in_float64
M = 5


def many_equilibria(seed=0):
    """A linear OptEq with |W| = 1: its fixed points are one of them plus the span of
    the two first right vectors."""
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.normal(size=(M, M)))[0] for _ in range(2))
    W = left @ np.diag([1.0, 1.0, 0.7, 0.5, 0.2]) @ right
    # no push along the free directions
    b = left @ np.concatenate([np.zeros(2), rng.normal(size=3)])
    layer = opteq(M, M, activation="identity")
    params = OptEqParams(W, None, b)
    particular = np.linalg.lstsq(np.eye(M) - W.T @ W, W.T @ b, rcond=None)[0]
    return layer, params, particular, right[:2], rng


@functools.partial(compiled, static_argnames=("layer", "solver", "steps"))
def iterate(layer, params, z0, solver, steps):
    return equilibrium(
        layer,
        params,
        z0,
        solver=solver,
        tol=1e-15,
        max_steps=steps,
        on_failure="accept",
    )[0]


def follow(case, A, q, counts, **exponents):
    """Distances from the equilibrium of least R = |A z - q|^2 / 2: of SAM's iterates,
    with their rates in the number of steps, and of the end of plain steps."""
    layer, params, particular, free, rng = case
    shift = np.linalg.lstsq(A @ free.T, q - A @ particular, rcond=None)[0]
    least = particular + free.T @ shift
    start = particular + 3.0 * rng.normal(size=M)
    R = lambda z: 0.5 * jnp.sum((A @ z - q) ** 2)
    sam = averaged(R, smoothness=np.linalg.norm(A, 2) ** 2, **exponents)

    iterates = [iterate(layer, params, start, sam, count) for count in counts]
    errors = [np.linalg.norm(z - least) for z in iterates]
    rates = np.diff(np.log(errors)) / np.diff(np.log(counts))
    picard = iterate(layer, params, start, "picard", 1000)
    assert_allclose(compiled(layer.step)(params, picard), picard, atol=1e-9)
    # Without S the iterations end where they began, seen along the free directions.
    assert_allclose(free @ picard, free @ start, atol=1e-9)
    return errors[-1], rates, np.linalg.norm(picard - least)


def test_theorem_4_only_sam_finds_the_least_norm():
    counts = [200, 2000, 20_000]
    error, rates, of_picard = follow(
        many_equilibria(), np.eye(M), np.zeros(M), counts, p=0.9, c=0.04
    )
    assert error < 1e-3
    # the pull, and the error with it, falls like k^-p
    assert np.all(rates < -0.7)
    assert of_picard > 1.0


def test_theorem_4_holds_for_a_convex_regulariser():
    *_, rng = case = many_equilibria(1)
    A = rng.normal(size=(3, M))
    q = rng.normal(size=3)
    error, rates, of_picard = follow(case, A, q, [1000, 5000, 25_000], p=0.3, c=0.3)
    assert np.all((rates < -0.2) & (rates > -0.4))  # the bias of both schedules, k^-0.3
    assert of_picard > 10.0 * error


# Smooth, 1-Lipschitz and strongly monotone, as Theorem 5 asks: slopes in (1/2, 1].
SMOOTH = Monotone(
    lambda t: 0.5 * (t + jnp.tanh(t)),
    lambda t: 0.5 * (0.5 * t**2 + jnp.logaddexp(t, -t) - jnp.log(2.0)),
)
STATE, WIDTH, INPUT, OUTPUT, SAMPLES, LAYERS, UNROLLED = 24, 24, 8, 2, 6, 2, 5


@functools.cache
def problem(seed=0):
    layer = deep_opteq(
        [opteq(STATE, WIDTH, INPUT, activation=SMOOTH, skip=0.1) for _ in range(LAYERS)]
    )
    rng = np.random.default_rng(seed)
    params = compiled(layer.init)(jax.random.key(seed))
    head = rng.normal(size=(OUTPUT, STATE)) / np.sqrt(STATE)
    x = rng.normal(size=(SAMPLES, INPUT))
    y = rng.normal(size=(SAMPLES, OUTPUT))

    def residual(params, x, y):
        z = jnp.zeros((len(x), STATE))
        for k in range(1, UNROLLED + 1):  # eq. 10 with R = |z|^2 / 2, gamma = 1/2
            beta = 0.5 / k**0.5
            weight = 0.5 / k**0.2
            z = beta * ((1.0 - 0.5 * weight) * z - 0.5 * z) + (1.0 - beta) * layer.step(
                params[0], z, x
            )
        return z @ params[1].T - y

    return residual, (jax.tree.map(np.float64, params), head), x, y


@functools.partial(compiled, static_argnames=("residual", "steps"))
def descend(residual, params, x, y, rate, steps):
    loss = lambda params: 0.5 * jnp.sum(residual(params, x, y) ** 2)

    def step(params, _):
        value, slope = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - rate * g, params, slope), (
            value,
            optax.tree.norm(slope),
        )

    return jax.lax.scan(step, params, length=steps)[1]


@nightly
def test_theorem_5_training_converges_at_a_linear_rate():
    """No step shrinks the loss by less than a share, and later ones by no smaller
    share than the first."""
    residual, params, x, y = problem()
    losses, _ = descend(residual, params, x, y, 0.05, 3000)
    # rounding may end at 0
    ratios = losses[1:] / np.where(losses[:-1] == 0.0, 1.0, losses[:-1])
    before = losses[1:] > 1e-20 * losses[0]  # until rounding takes over
    assert losses[-1] < 1e-12 * losses[0]
    assert np.all(ratios[before] < 0.9999)
    first, second = np.array_split(np.log(ratios[before]), 2)
    assert np.mean(second) < 0.3 * np.mean(first)


@nightly
def test_theorem_5_needs_inputs_that_differ_and_not_many_samples():
    """Printed for every data set that is large enough, and for parameters of one
    size: equal inputs contradict it."""
    residual, params, x, y = problem()
    twins = np.concatenate([x[:1], x[:1], x[2:]])
    losses, sizes = descend(residual, params, twins, y, 0.05, 3000)
    assert float(losses[-1]) == pytest.approx(
        0.25 * np.sum((y[0] - y[1]) ** 2), rel=1e-6
    )
    # Lemma 16 bounds the gradient below by a constant times the residual. Here it
    # vanishes and the residual does not.
    assert sizes[-1] < 1e-5 * np.sqrt(losses[-1])
    rng = np.random.default_rng(9)
    losses, _ = descend(
        residual,
        params,
        rng.normal(size=(600, INPUT)),
        rng.normal(size=(600, OUTPUT)),
        0.0005,
        300,
    )
    assert losses[-1] > 0.5 * losses[0]  # more samples than parameters can fit
