"""Problems of the tests of jaxopt (fixed_point_iteration_test, anderson_test),
re-expressed with their tolerances."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from tests.fixed_point.problems import program
from tests.marks import nightly, types_unchecked
from unroll_jax import fixed_point as fp

pytestmark = [types_unchecked, nightly]


def rotation(z):
    theta = np.pi / np.array([2, 3, 4, 5, 6, 1.27, 1.73])
    blocks = [[[np.cos(t), -np.sin(t)], [np.sin(t), np.cos(t)]] for t in theta]
    return np.float32(scipy.linalg.block_diag(*blocks)) @ (z - FAR) + FAR


def powers(z):
    return jnp.sin(z[0]) * z[0] ** 2, (z[1][0] ** 3, -z[1][1])


def cosine(z):
    return jnp.cos(z) + np.float32([0.0, np.pi / 2])


TURNED = np.float32(np.random.default_rng(0).uniform(size=14))
FAR = np.float32(range(1, 15))
POWERS = (
    np.float32([0.6, 0.0, -0.1]),
    (np.float32([[0.7], [0.5]]), np.float32([[-1 / 3, 0.0, 2 / 3, -0.4 / 3]])),
)
COSINE = np.float32([0.3, np.pi / 4]), np.float32([0.73908514, np.pi / 2])
# A map, a start, its fixed point, absolute and relative tolerances of both, and
# options.
PROBLEMS = {
    "sines and powers": (
        powers,
        POWERS,
        jax.tree.map(np.zeros_like, POWERS),
        1e-6,
        {"solver": fp.anderson(3), "tol": 1e-6, "max_steps": 100_000},
    ),
    # At pi / 2 the slope is -1: plain steps converge sublinearly, and jaxopt allows
    # them as many.
    "cosine, plain": (
        cosine,
        *COSINE,
        1e-2,
        {"solver": "picard", "tol": 1e-2, "max_steps": 100_000},
    ),
    "cosine, Anderson": (
        cosine,
        *COSINE,
        1e-5,
        {"solver": fp.anderson(4), "tol": 1e-6},
    ),
    "rotations": (
        rotation,
        TURNED,
        FAR,
        1e-3,
        {"solver": fp.anderson(10), "max_steps": 400},
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_of_a_peer_is_solved_to_its_tolerance(name):
    step, start, solution, tolerance, options = PROBLEMS[name]
    z, info = program(lambda params, z, x: step(z), batch_ndim=0, **options)((), start)
    assert bool(info.converged.all())
    chex.assert_trees_all_close(z, solution, atol=tolerance, rtol=tolerance)
