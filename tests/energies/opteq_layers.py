"""OptEq layers drawn by NumPy, with their states and inputs."""

import jax.numpy as jnp
import numpy as np

from tests.energies import opteq_reference as reference
from tests.reference import jax_array
from unroll_jax.energies.equilibrium.opteq import opteq, opteq_conv
from unroll_jax.energies.equilibrium.opteq_params import OptEqParams

M, H, I = 4, 6, 3  # noqa: E741
IMAGE = (5, 4)


def random(shape, dtype, *, seed):
    return jax_array(np.random.default_rng(seed).normal(size=shape), dtype)


def dense(batch=(), dtype=jnp.float64, **options):
    W, U, b = (
        np.asarray(random(shape, float, seed=k))
        for k, shape in enumerate([(H, M), (H, I), (H,)])
    )
    params = OptEqParams(
        *(
            jax_array(leaf, dtype)
            for leaf in (0.9 * W / np.linalg.norm(W, 2), U, 0.3 * b)
        )
    )
    return (
        opteq(M, H, I, **options),
        params,
        random((*batch, M), dtype, seed=3),
        random((*batch, I), dtype, seed=4),
    )


def convolutional(batch=(), dtype=jnp.float64, **options):
    shapes = [(3, 3, 2, 5), (3, 3, 3, 5), (5,)]
    W, U, b = (
        np.asarray(random(shape, float, seed=k)) for k, shape in enumerate(shapes)
    )
    W = 0.9 * W / np.linalg.norm(reference.conv_matrix(W, IMAGE), 2)
    params = OptEqParams(*(jax_array(leaf, dtype) for leaf in (W, U, 0.3 * b)))
    z, x = (random((*batch, *IMAGE, width), dtype, seed=width) for width in (2, 3))
    return opteq_conv(2, 5, 3, **options), params, z, x
