"""OptEq layers drawn by NumPy, with their states and inputs."""

import jax.numpy as jnp
import numpy as np

from tests.energies import opteq_reference as reference
from tests.reference import gaussian, jax_array
from unroll_jax.energies.equilibrium.opteq import opteq, opteq_conv
from unroll_jax.energies.equilibrium.opteq_params import OptEqParams

M, H, I = 4, 6, 3  # noqa: E741
IMAGE = (5, 4)


def drawn(layer, weights, states, batch, dtype):
    """W has norm 0.9. Weights and states are given by their shapes."""
    W, U, b = (gaussian(*shape, seed=k) for k, shape in enumerate(weights))
    matrix = W if W.ndim == 2 else reference.conv_matrix(W, IMAGE)
    leaves = 0.9 * W / np.linalg.norm(matrix, 2), U, 0.3 * b
    z, x = (gaussian(*batch, *shape, seed=k) for k, shape in enumerate(states, start=3))
    *params, z, x = (jax_array(leaf, dtype) for leaf in (*leaves, z, x))
    return layer, OptEqParams(*params), z, x


def dense(batch=(), dtype=jnp.float64, **options):
    weights = (H, M), (H, I), (H,)
    return drawn(opteq(M, H, I, **options), weights, ((M,), (I,)), batch, dtype)


def convolutional(batch=(), dtype=jnp.float64, **options):
    weights = (3, 3, 2, 5), (3, 3, 3, 5), (5,)
    states = (*IMAGE, 2), (*IMAGE, 3)
    return drawn(opteq_conv(2, 5, 3, **options), weights, states, batch, dtype)
