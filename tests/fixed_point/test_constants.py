"""No constant of the loop decides what counts as converged: each is about halved and
doubled on problems whose ends are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixed_point.problems import spectrum
from tests.fixed_point.test_lista import count_codes
from tests.marks import in_float64, nightly, types_unchecked
from tests.reference import compiled, gaussian
from unroll_jax import fixed_point as fp
from unroll_jax.fixed_point import (
    adjoints,
    decisions,
    derivatives,
    loop,
    solvers,
    stopping,
)
from unroll_jax.fixed_point.status import CONVERGED, MAX_STEPS, NONFINITE
from unroll_jax.fixed_point.stopping import StopRule

pytestmark = [types_unchecked, nightly]
MODULES = decisions, loop, stopping, solvers, adjoints, derivatives
RULE = StopRule(1e-5, 1000, float(np.finfo(np.float32).eps))
WIDTH = 16
# Of factors and shares near 1, the distance to 1 is halved and doubled.
VALUES = {
    "CHECK_INTERVAL": (2, 8),
    "MIN_REDUCTION": (1.125, 1.5),
    "NEAR_BLOCKS": (4, 16),
    "TRIAL_STEPS": (5, 20),
    "MIN_GAIN": (0.25, 1.0),
    "MAX_RISE": (1.5, 4.0),
    "MIN_SHRINKAGE": (2.0, 8.0),
    "GROWTH": (15.0, 60.0),
    "ROUND_OFF": (8.0, 32.0),
    "IDLE_CHECKS": (5, 20),
    "LEAST_UNIT": (5e-7, 2e-6),
    "LEAST_SCALE": (4.0, 16.0),
    "NEW_DIRECTION": (0.005, 0.02),
}


def affine(A):
    """The map z A + 1 from 0, which converges to a direct solve."""
    truth = np.linalg.solve(np.eye(WIDTH) - A.T, np.ones(WIDTH))
    A = np.float32(A)
    return lambda z: z @ A + 1.0, 0.0, CONVERGED, truth


# Maps of rows, their starts, ends, and fixed points or None.
PROBLEMS = {
    "alternates": affine(spectrum(-0.9, 0.5, WIDTH)),
    "is slow": affine(spectrum(0.0, 0.99, WIDTH)),
    "turns": affine(0.95 * np.linalg.qr(gaussian(WIDTH, WIDTH, seed=6))[0]),
    "leaves in some directions": affine(spectrum(-1.2, 0.9, WIDTH)),
    "shrinks to 0": (lambda z: 0.95 * z, 1.0, CONVERGED, 0.0),
    "has a small fixed point": (lambda z: 0.9 * z + 1e-4, 10.0, CONVERGED, 1e-3),
    "drifts": (lambda z: z + jax.nn.softplus(-z) + 0.1, 0.0, MAX_STEPS, None),
    "overflows": (lambda z: jnp.exp(2.0 * z), 0.5, NONFINITE, None),
    "leaves its domain": (
        lambda z: jnp.where(z > 2.0, jnp.nan, z + 1.0),
        0.5,
        NONFINITE,
        None,
    ),
    "jumps and drifts": (
        lambda z: jnp.where(z < 5.0, z + 1.0, jnp.where(z < 1e20, 1e22, z + 1e16)),
        0.0,
        MAX_STEPS,
        None,
    ),
}


def solve_all():
    """The states and ends of all problems, each with its own loop."""
    maps, starts, *_ = zip(*PROBLEMS.values(), strict=True)

    def solve(kind, start):
        def apply(z):
            return jnp.select(
                [kind == number for number in range(len(maps))], [f(z) for f in maps]
            )

        z = jnp.full((1, WIDTH), start)
        return loop.iterate(apply, z, fp.anderson(), RULE)

    z, info = compiled(jax.vmap(solve))(np.arange(len(maps)), np.float32(starts))
    return z[:, 0], info.status[:, 0]


def find(layer, params, start, x):
    apply = lambda z: layer.step(params, z, x)
    return loop.iterate(apply, start, fp.anderson(), RULE)


def check_ends():
    for (name, (_, start, end, truth)), z, status in zip(
        PROBLEMS.items(), *solve_all(), strict=True
    ):
        assert status == end, name
        if truth is not None:
            bound = 2e-6 * start + 1e-3 * np.abs(truth).max()
            assert np.abs(z - truth).max() < bound, name


def set_constant(monkeypatch, name, value):
    """In every module that reads it."""
    for module in MODULES:
        if hasattr(module, name):
            monkeypatch.setattr(module, name, value)


def test_every_constant_of_the_loop_is_moved():
    names = {name for name in vars(decisions) if name.isupper()}
    phases = {"ENDED", "PLAIN", "GIVEN_UP", "ACCELERATED"}
    assert names - phases <= set(VALUES)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("side", ["less", "more"])
def test_no_constant_decides_how_a_problem_ends(name, side, monkeypatch):
    set_constant(monkeypatch, name, VALUES[name][side == "more"])
    check_ends()


@in_float64
@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("side", ["less", "more"])
def test_no_constant_makes_a_wrong_code_converge(name, side, monkeypatch):
    set_constant(monkeypatch, name, VALUES[name][side == "more"])
    converged, wrong = count_codes((300, 5, 9), "float32", find)
    assert wrong == 0
    assert converged >= 200
