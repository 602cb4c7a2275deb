"""The benchmark of long sequences runs, and compares like with like."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import attention_energy
from benchmarks.timing import power_of, temporary_mebibytes


def test_the_dense_expression_is_the_energy():
    z = jnp.asarray(np.random.default_rng(0).normal(size=(20, 4)), jnp.float32)
    energies = (attention_energy._energy, attention_energy._dense)
    values = jax.jit(lambda z: [jax.value_and_grad(energy)(z) for energy in energies])(z)
    np.testing.assert_allclose(*(value for value, _ in values), rtol=1e-6)
    np.testing.assert_allclose(*(gradient for _, gradient in values), rtol=1e-5, atol=1e-6)


def test_the_cost_of_long_sequences_is_reported(capsys, monkeypatch):
    for name, value in (("SIZES", (8, 16, 32)), ("DENSE_UP_TO", 16), ("FITTED_FROM", 8)):
        monkeypatch.setattr(attention_energy, name, value)
    monkeypatch.setattr(attention_energy, "interleaved", lambda runs, repeats: {name: np.ones(2) for name in runs})
    monkeypatch.setattr(attention_energy, "matmul_rate", lambda *sizes: 1e9)
    figures = attention_energy.main()
    assert {"n_8_ratio", "n_16_ratio", "n_32_seconds", "peak_mebibytes"} <= set(figures)
    assert "n_32_ratio" not in figures
    assert all(math.isfinite(value) for value in figures.values())
    printed = capsys.readouterr().out
    assert "time as n^0.00" in printed
    assert "floor: " in printed


def test_a_power_is_found_in_what_follows_it():
    assert power_of({n: 3.0 * n**1.7 for n in (10, 20, 40)}) == pytest.approx(1.7)
    assert power_of({1: 100.0, 10: 10.0, 20: 20.0}, least=10) == pytest.approx(1.0)


def test_temporary_memory_is_that_of_the_program():
    square = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    program = jax.jit(lambda a: jnp.sin(a @ a) @ a).lower(square).compile()
    assert 1.0 <= temporary_mebibytes(program) < 2.5  # one or two arrays of 1 MiB
