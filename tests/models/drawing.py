"""Parameters and inputs drawn by NumPy, which compiles nothing."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.reference import gaussian, gaussian_like, jax_array


def normal(*shape, seed=1, dtype=jnp.float64):
    return jax_array(gaussian(*shape, seed=seed), dtype)


def drawn(model, *inputs, scale=0.5, seed=0):
    """Parameters away from the initial ones, where biases are 0 and norms do
    nothing, in the model's dtypes."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    values = gaussian_like(shapes, scale=scale, seed=seed)
    return jax.tree.map(lambda leaf, like: jax_array(leaf, like.dtype), values, shapes)


def float64(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def moved(params, direction, distance):
    return jax.tree.map(lambda leaf, d: leaf + distance * d, float64(params), direction)


def vdot(one, other):
    return sum(map(np.vdot, jax.tree.leaves(one), jax.tree.leaves(other)))
