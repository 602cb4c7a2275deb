"""The test problems of Cooper 1.0.1 and humancompatible-train 0.4, at their rates, tolerances and step counts.

Cooper minimises |x|^2 under five linear constraints. The four variants of a case (equalities or inequalities; SGD,
or SGD and Adam on halves of x) share no variable, so they are one problem with four groups; seeds, widths and
surrogates are mapped over. A width of 5 is one of 10 with columns of zeros, whose variables start and stay at 0.

Source: cooper-optim 1.0.1, tests/pipeline/test_convergence.py and conftest.py; humancompatible-train 0.4.1,
tests/test_cooper_parity.py.
"""

import itertools

import cvxpy
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import unroll_jax as uj
from tests.constrained.calls import solve
from unroll_jax.constrained import growing_penalty, take_rows
from unroll_jax.constrained.transformation import ORDERS

pytestmark = pytest.mark.slow

VARIANTS = ("equal", "equal split", "at_most", "at_most split")
KINDS = {name: name.split()[0] for name in VARIANTS}
CASES = list(itertools.product((5, 10), (0, 1)))  # widths, seeds
STEPS, LONG = 1_500, 45_000


class TorchGenerator:
    """The numbers of ``torch.Generator().manual_seed(seed)`` on a CPU, which the tests of Cooper draw."""

    def __init__(self, seed):
        self._bits = np.random.RandomState(seed)._bit_generator

    def rand(self, size):
        return np.array([self._bits.random_raw() & 0xFFFFFF for _ in range(size)]) / 2.0**24

    def randn(self, *shape):
        """Box and Muller: 16 at a time, the last 16 are drawn again if they are not full; fewer one by one."""
        count = int(np.prod(shape))
        values = self.rand(count) if count >= 16 else np.array([self._pair() for _ in range((count + 1) // 2)]).ravel()
        for start in range(0, count - 15, 16):
            values[start : start + 16] = self._polar(values[start : start + 16])
        if count >= 16 and count % 16:
            values[-16:] = self._polar(self.rand(16))
        return values[:count].reshape(shape)

    def _pair(self):
        raws = [self._bits.random_raw() << 32 | self._bits.random_raw() for _ in range(2)]
        turn, level = (raw % 2**53 / 2.0**53 for raw in raws)
        return self._polar(np.array([level, turn]))

    def _polar(self, uniform):
        levels, turns = np.split(uniform, 2)
        radius, angle = np.sqrt(-2.0 * np.log1p(-levels)), 2.0 * np.pi * turns
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])


def constraint(width, seed):
    """A, b and a surrogate of A, split in halves and padded to width 10: singular values in [1.5, 2.5], |b| = 1."""
    generator = TorchGenerator(seed)
    scales = generator.rand(5) + 1.5
    left, right = (np.linalg.qr(generator.randn(size, size))[0] for size in (5, width))
    rows, bounds = left @ np.diag(scales) @ right[:5], generator.randn(5)
    surrogate = rows + 0.1 * TorchGenerator(0).randn(5, width)
    return pad(rows, width), bounds / np.linalg.norm(bounds), pad(surrogate, width)


def pad(rows, width):
    half = (width + 1) // 2
    padded = np.zeros((5, 10))
    padded[:, :half], padded[:, 5 : 5 + width - half] = rows[:, :half], rows[:, half:]
    return padded


def solution(rows, bounds, kind):
    x = cvxpy.Variable(10)
    binding = rows @ x == bounds if kind == "equal" else rows @ x <= bounds
    cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(x)), [binding]).solve(
        solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10
    )
    return x.value, binding.dual_value


def problems(*, surrogates):
    """A, b and the matrix of the Lagrangian of every case: A itself, then, with ``surrogates``, the surrogate."""
    rows, bounds, smooth = map(np.stack, zip(*(constraint(*case) for case in CASES), strict=True))
    parts = [(rows, bounds, rows), (rows, bounds, smooth)][: 1 + surrogates]
    return tuple(np.concatenate(arrays).astype(np.float32) for arrays in zip(*parts, strict=True))


def halves(rate):
    """The second half of the variables of "split" variants moves by Adam, as Cooper's tests have it."""
    labels = {name: {"first": "sgd", "second": "adam" if "split" in name else "sgd"} for name in VARIANTS}
    adam = optax.adam(10 * rate, b1=0.0, b2=0.0, eps=10.0)
    return optax.partition({"sgd": optax.sgd(rate), "adam": adam}, labels)


def run(problem, dual, rate, steps, *, order="simultaneous", indexed=False):
    """States after each number of ``steps``, from x = 1 (0 where columns are padded)."""
    rows, bounds, smooth = problem
    optimizer = uj.primal_dual(halves(rate), dual, violations=dict.fromkeys(VARIANTS, bounds), order=order)
    start = jnp.any(rows, axis=0).astype(float)
    params = {name: {"first": start[:5], "second": start[5:]} for name in VARIANTS}

    def evaluate(params, places):
        x = {name: jnp.concatenate([part["first"], part["second"]]) for name, part in params.items()}
        objective = sum(jnp.sum(one**2) for one in x.values())
        violations = [{name: (a @ one - bounds)[places] for name, one in x.items()} for a in (smooth, rows)]
        return objective, *violations

    def step(carry, key):
        params, state = carry
        places = jax.random.permutation(key, 5) if indexed else jnp.arange(5)
        prices, penalty = take_rows((state.dual.multipliers, state.dual.penalty), places)

        def loss(params):
            objective, violations, strict = evaluate(params, places)
            if penalty is None:
                return uj.lagrangian(objective, violations, prices), strict
            return uj.augmented_lagrangian(objective, violations, prices, penalty=penalty, kinds=KINDS), strict

        gradient, strict = jax.grad(loss, has_aux=True)(params)
        given = {"violations": strict} if order == "simultaneous" else {"problem": lambda p: evaluate(p, places)}
        updates, state = optimizer.update(gradient, state, params, rows=places if indexed else None, **given)
        return (optax.apply_updates(params, updates), state), None

    carry, ends = (params, optimizer.init(params)), []
    for start, end in itertools.pairwise((0, *steps)):
        carry, _ = jax.lax.scan(step, carry, jax.random.split(jax.random.key(0), end - start))
        ends.append(carry)
    return ends


def joined(params, name):
    return np.concatenate([params[name]["first"], params[name]["second"]], axis=-1)


@pytest.mark.parametrize("indexed", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["dense", "indexed"])
@pytest.mark.parametrize("formulation", ["lagrangian", "augmented"])
@pytest.mark.parametrize("order", ORDERS)
def test_lagrangians_meet_coopers_problems_in_every_order(order, formulation, indexed):
    """x and multipliers within 1e-4 after 1,500 steps; under surrogates, strict constraints within 5e-4."""
    penalty = growing_penalty(1.0, factor=1.0 + 2.5e-4) if formulation == "augmented" else None
    rows, bounds, _ = arrays = problems(surrogates=True)

    def solve(*problem):
        width = jnp.sum(jnp.any(problem[0], axis=0))
        dual = uj.dual_ascent(optax.sgd(0.2 / jnp.sqrt(width)), kinds=KINDS, penalty=penalty)
        return run(problem, dual, 3e-2, (STEPS,), order=order, indexed=indexed)

    ((params, state),) = jax.jit(jax.vmap(solve))(*arrays)
    for name, kind in KINDS.items():
        x, prices = joined(params, name), state.dual.multipliers[name]
        assert np.max(np.einsum("bcn,bn->bc", rows, x) - bounds) < 5e-4, name
        for place in range(len(CASES)):
            expected = solution(rows[place], bounds[place], kind)
            np.testing.assert_allclose(x[place], expected[0], atol=1e-4, err_msg=name)
            np.testing.assert_allclose(prices[place], expected[1], atol=1e-4, err_msg=name)


@pytest.mark.parametrize("indexed", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["dense", "indexed"])
def test_quadratic_penalties_meet_coopers_problems(indexed):
    """x within 1e-3 after 45,000 steps, and after 1,500 for five equalities in five variables."""
    rows, bounds, _ = arrays = problems(surrogates=False)
    penalty = growing_penalty(1.0, factor=1.0, increment=1.75)

    def solve(*problem):
        dual = uj.dual_ascent(optax.set_to_zero(), kinds=KINDS, penalty=penalty)
        return run(problem, dual, 1e-4, (STEPS, LONG), indexed=indexed)

    (early, _), (late, state) = jax.jit(jax.vmap(solve))(*arrays)
    for name, kind in KINDS.items():
        assert not np.any(state.dual.multipliers[name])
        for place, (width, _) in enumerate(CASES):
            params = early if kind == "equal" and width == 5 else late
            expected, _ = solution(rows[place], bounds[place], kind)
            np.testing.assert_allclose(joined(params, name)[place], expected, atol=1e-3, err_msg=name)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("order", ["dual_primal", "simultaneous"])
def test_twenty_steps_are_those_of_humancompatible_train(order):
    """min |x|^2 / 2 subject to x_0 >= 1, x_1 <= 1/2: its ALM without penalty, fused and split, in NumPy."""

    def problem(x):
        return 0.5 * jnp.sum(x**2), jnp.array([1.0 - x[0], x[1] - 0.5])

    optimizer = uj.primal_dual(optax.sgd(0.05), uj.dual_ascent(optax.sgd(0.1)), violations=2, order=order)
    (x, state), _ = solve(optimizer, problem, jnp.zeros(2), 20, order=order)
    other, prices = np.zeros(2), np.zeros(2)
    for _ in range(20):
        moved = np.maximum(prices + 0.1 * np.array([1.0 - other[0], other[1] - 0.5]), 0.0)
        seen = moved if order == "dual_primal" else prices
        other, prices = other - 0.05 * (other + np.array([-1.0, 1.0]) * seen), moved
    np.testing.assert_allclose(x, other, atol=1e-14, rtol=0.0)
    np.testing.assert_allclose(uj.multipliers_of(state), prices, atol=1e-14, rtol=0.0)
    assert prices[0] > 0.5
    assert float(uj.multipliers_of(state)[1]) == 0.0
