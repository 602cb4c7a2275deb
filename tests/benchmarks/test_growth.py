"""The benchmark of growth: its programs are correct, and its operations count their
products."""

import pytest
from numpy.testing import assert_allclose

from benchmarks import growth
from benchmarks.growth import Setting, Sweep, programs
from benchmarks.growth.programs import Sizes
from benchmarks.timing import power_of

SMALL = Sizes(layers=2, dim=4, tokens=6, batch=2)


@pytest.mark.parametrize("batch", [1, 2])
def test_the_dense_expression_is_the_energy(batch):
    sizes = SMALL._replace(batch=batch)
    blocks, dense = (
        case(sizes) for case in (programs.attention_energy, programs.dense_energy)
    )
    # two products of every example
    assert blocks.flops == dense.flops == 2 * batch * (2 * 6 * 6 * 4)
    assert blocks.arguments[0].shape == ((6, 4) if batch == 1 else (2, 6, 4))
    (value, gradient), (expected, of_dense) = (
        case.function(*case.arguments) for case in (blocks, dense)
    )
    assert_allclose(value, expected, rtol=1e-6)
    assert_allclose(gradient, of_dense, rtol=1e-5, atol=1e-6)


def test_growth_has_powers_and_no_program_is_compiled_twice(monkeypatch):
    sweep = Sweep("attention_energy", "tokens", SMALL, (8, 16, 32), 8, dense_up_to=16)
    monkeypatch.setattr(growth, "FULL", Setting((sweep,), seconds=0.0))
    monkeypatch.setattr(growth, "matmul_rate", lambda *sizes: 1e9)
    figures = growth.main().figures
    name = "attention_energy_tokens"
    assert figures[f"{name}_compiled_again"] == 0
    assert f"{name}_16_over_dense" in figures
    assert f"{name}_32_over_dense" not in figures
    values = {n: figures[f"{name}_{n}_seconds"] for n in (8, 16, 32)}
    assert figures[f"{name}_seconds_power"] == pytest.approx(power_of(values))


def test_a_power_is_found_in_what_follows_it():
    assert power_of({n: 3.0 * n**1.7 for n in (10, 20, 40)}) == pytest.approx(1.7)
    assert power_of({1: 100.0, 10: 10.0, 20: 20.0}, least=10) == pytest.approx(1.0)
