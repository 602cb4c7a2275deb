"""Optimisers in orthonormal coordinates, against the same optimisers on parameters
that are turned by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.testing import assert_allclose
from scipy.stats import ortho_group

from tests.marks import in_float64
from tests.reference import compiled
from unroll_jax import Sides, in_coordinates

LEFT = ortho_group.rvs(3, random_state=0)
RIGHT = ortho_group.rvs(4, random_state=1)
TARGET = np.random.default_rng(2).standard_normal((2, 3, 4))


def slope(matrix):
    return np.arange(1.0, 13.0).reshape(3, 4) * (matrix - TARGET)


def adam(gradient_of, start, steps=7, rate=0.05, b1=0.9, b2=0.999, eps=1e-8):
    x = start
    m = np.zeros_like(start)
    v = np.zeros_like(start)
    for t in range(1, steps + 1):
        g = gradient_of(x)
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        x = x - rate * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
    return x


SIDES = {
    "none": Sides(),
    "left": Sides(LEFT, None),
    "right": Sides(None, RIGHT),
    "both": Sides(LEFT, RIGHT),
}


@in_float64
def test_it_is_the_optimiser_on_turned_parameters():
    start = np.ones((2, 3, 4))
    rule = in_coordinates(optax.adam(0.05), SIDES)

    @compiled
    def train(params):
        def step(carry, _):
            params, state = carry
            slopes = jax.tree.map(slope, params)
            updates, state = rule.update(slopes, state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, rule.init(params)), length=7)[0][0]

    plain = adam(slope, start)
    for name, params in train(dict.fromkeys(SIDES, start)).items():
        left = np.eye(3) if SIDES[name].left is None else LEFT
        right = np.eye(4) if SIDES[name].right is None else RIGHT
        turned = adam(
            lambda q, left=left, right=right: (
                left @ slope(left.T @ q @ right) @ right.T
            ),
            left @ start @ right.T,
        )
        assert_allclose(params, left.T @ turned @ right, rtol=1e-10, err_msg=name)
        assert (np.max(np.abs(params - plain)) > 0.01) == (name != "none")


def test_parameters_without_bases_are_left_alone():
    params = {
        "a": {"b": np.ones(2, np.float32), "c": np.ones((2, 3), np.float32)},
        "W": np.ones((3, 4), jnp.bfloat16),
        "bias": np.ones(4, np.float32),
    }
    inner = optax.masked(optax.adam(0.1), {"a": True, "W": True, "bias": False})
    rule = in_coordinates(
        inner, {"a": None, "W": Sides(LEFT, RIGHT), "bias": Sides(right=RIGHT)}
    )
    start = compiled(rule.init)(params)
    updates, state = compiled(rule.update)(params, start, params)
    assert_allclose(updates["a"]["c"], -0.1, rtol=1e-5)
    # masked: the gradient itself, turned and turned back
    assert_allclose(updates["bias"], 1.0, rtol=1e-5)
    assert jax.tree.structure(state) == jax.tree.structure(
        jax.eval_shape(inner.init, params)
    )
    assert (updates["W"].dtype, updates["bias"].dtype) == ("bfloat16", "float32")


def test_weight_decay_sees_the_parameters_in_its_coordinates():
    params = {"W": np.float32(TARGET[0])}
    zeros = {"W": np.zeros((3, 4), np.float32)}
    rule = in_coordinates(optax.add_decayed_weights(0.5), {"W": Sides(LEFT, RIGHT)})
    update = compiled(lambda zeros, p: rule.update(zeros, rule.init(p), p)[0])
    updates = update(zeros, params)
    assert_allclose(updates["W"], 0.5 * params["W"], rtol=1e-5, atol=1e-6)
