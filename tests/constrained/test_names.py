"""Names of constraints in logs."""

import jax
import jax.numpy as jnp
import pytest

import unroll_jax as uj
from unroll_jax.constrained import named_figures


@pytest.mark.parametrize("reference", [None, 5.0])
@pytest.mark.parametrize("num_layers", [1, 4])
def test_there_is_one_name_a_constraint_in_its_order(num_layers, reference):
    names = uj.constraint_names(num_layers, reference=reference)
    # Only the constraint of the last layer is violated.
    losses = jnp.array([4.0 * 0.5**layer for layer in range(num_layers)] + [100.0])
    violations = uj.descent_constraints(0.2, reference=reference)(losses)
    assert len(names) == len(set(names)) == violations.size
    assert names[int(jnp.argmax(violations))] == f"layer {num_layers}"
    assert (names[0] == "f_0") is (reference is not None)


def test_figures_are_named_under_jit_and_absent_ones_left_out():
    assert uj.constraint_names(2, reference=False) == uj.constraint_names(2) == ["layer 1", "layer 2"]
    names = uj.constraint_names(2, reference=True)
    find = jax.jit(lambda c, m: named_figures(names, violation=c, multiplier=m, slack=None))
    found = find(jnp.array([1.0, 2.0, 3.0]), jnp.array([4.0, 5.0, 6.0]))
    assert {name: float(value) for name, value in found.items()} == {
        "violation/f_0": 1.0,
        "violation/layer 1": 2.0,
        "violation/layer 2": 3.0,
        "multiplier/f_0": 4.0,
        "multiplier/layer 1": 5.0,
        "multiplier/layer 2": 6.0,
    }


@pytest.mark.usefixtures("unchecked")
def test_figures_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"slack must have shape \(2,\), one a name, got \(3,\)"):
        named_figures(["layer 1", "layer 2"], slack=jnp.zeros(3))
    with pytest.raises(ValueError, match="num_layers must be at least 1, got 0"):
        uj.constraint_names(0)
