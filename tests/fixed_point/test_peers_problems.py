"""Problems of the tests of jaxopt (fixed_point_iteration_test, anderson_test),
re-expressed with their tolerances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from numpy.testing import assert_allclose

from tests.fixed_point.problems import program
from tests.marks import nightly, types_unchecked
from tests.reference import jax_array
from unroll_jax import fixed_point as fp

pytestmark = [types_unchecked, nightly]


def rotation(z):
    theta = np.pi / np.array([2, 3, 4, 5, 6, 1.27, 1.73])
    blocks = [[[np.cos(t), -np.sin(t)], [np.sin(t), np.cos(t)]] for t in theta]
    return jnp.asarray(scipy.linalg.block_diag(*blocks), jnp.float32) @ (z - FAR) + FAR


def powers(z):
    return jnp.sin(z[0]) * z[0] ** 2, (z[1][0] ** 3, -z[1][1])


def cosine(z):
    return jnp.cos(z) + jax_array([0.0, jnp.pi / 2])


TURNED = jax_array(np.random.default_rng(0).uniform(size=14), np.float32)
FAR = jnp.arange(1.0, 15.0)
POWERS = (
    jax_array([0.6, 0.0, -0.1]),
    (jax_array([[0.7], [0.5]]), jax_array([[-1.0, 0.0, 2.0, -0.4]]) / 3.0),
)
COSINE = jax_array([0.3, jnp.pi / 4]), jax_array([0.73908514, jnp.pi / 2])
# A map, a start, its fixed point, absolute and relative tolerances of both, and
# options.
PROBLEMS = {
    "sines and powers": (
        powers,
        POWERS,
        jax.tree.map(jnp.zeros_like, POWERS),
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
    jax.tree.map(
        lambda a, b: assert_allclose(a, b, atol=tolerance, rtol=tolerance),
        z,
        solution,
    )
