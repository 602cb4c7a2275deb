"""Memory of the gradient through an equilibrium, of the compiled program: the same
for 10 and for 1,000 iterations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.fixed_point.problems import (
    inputs,
    skew_weights,
    symmetric_step,
    symmetric_weights,
    tanh_step,
)
from tests.marks import nightly
from unroll_jax.fixed_point import unrolled

NAMED = {"solver": "picard", "adjoint": "conjugate_gradient", "batch_ndim": 1}
DEEP = uj.deep_opteq([uj.opteq(24, 16, 24), uj.opteq(24, 16)])


def temporary(step, params, event, input_event, **options):
    start = np.zeros((16, *event), np.float32)
    x = inputs(16, *input_event, dtype=jnp.float32)

    def loss(params):
        return jnp.sum(
            uj.equilibrium(step, params, start, x, on_failure="accept", **options)[0]
            ** 2
        )

    return (
        jax.jit(jax.grad(loss))
        .lower(params)
        .compile()
        .memory_analysis()
        .temp_size_in_bytes
    )


def layer_of(descent, *event):
    return descent, jax.eval_shape(descent.init, jax.random.key(0)), event, event, {}


# The defaults of `equilibrium` for each kind of layer, and a named solver and adjoint.
GENERAL = (
    tanh_step,
    skew_weights(24, dtype=jnp.float32),
    (24,),
    (24,),
    {"batch_ndim": 1},
)
CASES = {
    "dense, in the space of the state": layer_of(uj.opteq(24, 96, 24), 24),
    "dense, in the hidden space": layer_of(uj.opteq(24, 16, 24, skip=0.5), 24),
    "convolution": layer_of(uj.opteq_conv(3, 4, 3), 6, 6, 3),
    "deep": layer_of(DEEP, 24),
    "general": GENERAL,
    "named": (
        symmetric_step,
        symmetric_weights(64, 32, dtype=jnp.float32),
        (64,),
        (3,),
        NAMED,
    ),
}


@nightly
@pytest.mark.parametrize("case", CASES)
def test_memory_does_not_grow_with_the_iterations(case):
    *problem, options = CASES[case]
    few, many = (
        temporary(*problem, max_steps=n, adjoint_max_steps=n, **options)
        for n in (10, 1000)
    )
    assert few == many > 0


def test_memory_of_an_unroll_does_grow():
    *problem, options = GENERAL
    few, many = (
        temporary(*problem, adjoint=unrolled(n), **options) for n in (10, 1000)
    )
    assert many > few + 900 * 16 * 24 * 4
