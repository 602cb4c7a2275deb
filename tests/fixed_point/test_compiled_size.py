"""Sizes of compiled programs: compile time is nearly that of their fused kernels."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.marks import types_unchecked

pytestmark = types_unchecked
# Options, and counts with JAX 0.12.0 on a CPU, with a little room: 50, 97, 84, 31 and 45.
CASES = {
    "value": ({}, 50),
    "gradient": ({}, 98),
    "gradient, accept": ({"on_failure": "accept"}, 85),
    "picard": ({"solver": "picard"}, 32),
    "picard and neumann": ({"solver": "picard", "adjoint": "neumann"}, 46),
}


def compile_cell(options, *, is_gradient):
    """A tanh cell with 128 rows of 64 numbers."""
    x = np.ones((128, 64), np.float32)

    def loss(A):
        step = lambda A, z, x: jnp.tanh(z @ A + x)
        z, _ = uj.equilibrium(step, A, 0.0 * x, x, batch_ndim=1, **options)
        return jnp.sum(z**2)

    function = jax.value_and_grad(loss) if is_gradient else loss
    return jax.jit(function).lower(0.01 * x[:64]).compile().as_text()


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="counts of XLA's CPU")
@pytest.mark.parametrize("name", CASES)
def test_programs_have_few_kernels_and_report_only_where_asked(name):
    options, most = CASES[name]
    text = compile_cell(options, is_gradient=name not in ("value", "picard"))
    assert len(re.findall(r" fusion\(", text)) <= most
    reports = "callback" in text or " conditional(" in text
    assert reports == ("on_failure" not in options)
