"""Sizes of compiled programs: compile time is nearly that of their fused kernels."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.marks import types_unchecked

pytestmark = types_unchecked
# Counted with JAX 0.12.0 on a CPU, with a little room: 50, 97, 84, 31 and 45.
BARS = {
    "value": 50,
    "gradient": 98,
    "gradient, accept": 85,
    "picard": 32,
    "picard and neumann": 46,
}
OPTIONS = {
    "value": {},
    "gradient": {},
    "gradient, accept": {"on_failure": "accept"},
    "picard": {"solver": "picard"},
    "picard and neumann": {"solver": "picard", "adjoint": "neumann"},
}


def compile_cell(name):
    """A tanh cell with 128 rows of 64 numbers."""
    x = np.ones((128, 64), np.float32)

    def loss(A):
        def step(A, z, x):
            return jnp.tanh(z @ A + x)

        z, _ = uj.equilibrium(step, A, 0.0 * x, x, batch_ndim=1, **OPTIONS[name])
        return jnp.sum(z**2)

    function = loss if name in ("value", "picard") else jax.value_and_grad(loss)
    text = jax.jit(function).lower(0.01 * x[:64]).compile().as_text()
    assert text is not None
    return text


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="counts of XLA's CPU")
@pytest.mark.parametrize("name", BARS)
def test_programs_have_few_kernels_and_report_only_where_asked(name):
    text = compile_cell(name)
    assert len(re.findall(r" fusion\(", text)) <= BARS[name]
    reports = "callback" in text or " conditional(" in text
    assert reports == (OPTIONS[name].get("on_failure") != "accept")
