"""Mutations of the maths: an operator is changed once, where it is named, and a place that is gone is an error."""

import pytest

from tests.faults import FAULTS, Fault, mutated

SOURCE = """
def outer(x):
    total = x + 1 - 2

    def inner(y: int | None):
        return jnp.where(y < 0, jax.lax.stop_gradient(y), jnp.maximum(y - x, 0) - 3)

    return total + jnp.sum(inner(x))
"""


@pytest.mark.parametrize(
    ("place", "operator", "number", "changed"),
    [
        ("outer", "+", 0, "total = x - 1 - 2"),
        ("outer.inner", "-", 0, "jnp.maximum(y - x, 0) + 3"),
        ("outer.inner", "-", 1, "jnp.maximum(y + x, 0) - 3"),
        ("inner", "<", 0, "jnp.where(y >= 0, "),
        ("inner", "maximum", 0, "jnp.minimum(y - x, 0)"),
        ("inner", "stop_gradient", 0, "jnp.where(y < 0, y, "),
        ("inner", "where", 0, "jnp.where(y < 0, jnp.maximum(y - x, 0) - 3, jax.lax.stop_gradient(y))"),
        ("outer", "sum", 0, "jnp.mean(inner(x))"),
    ],
)
def test_one_use_of_an_operator_changes(place, operator, number, changed):
    new = mutated(SOURCE, Fault(f"made.py:{place}", operator, number, ""))
    assert changed in new
    assert len(set(new.split()) - set(SOURCE.split())) <= 4


@pytest.mark.parametrize(
    ("place", "operator", "number"), [("nowhere", "+", 0), ("inner", "+", 0), ("outer", "+", 9), ("outer", "mean", 0)]
)
def test_a_place_that_is_gone_is_an_error(place, operator, number):
    with pytest.raises(LookupError):
        mutated(SOURCE, Fault(f"made.py:{place}", operator, number, ""))


def test_faults_are_few_and_each_is_another():
    assert len(FAULTS) <= 60
    assert len({fault[:3] for fault in FAULTS}) == len(FAULTS)
