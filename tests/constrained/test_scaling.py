"""Constraints of one size."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import unroll_jax as uj
from tests.convex_problem import ALPHA, REFERENCE, known_solution, layer_losses
from unroll_jax.constrained import initial_sizes

LOSSES = np.array([400.0, 30.0, 0.0, 0.02])


@pytest.mark.parametrize("reference_value", [None, 350.0])
def test_sizes_are_those_of_the_bounded_losses(reference_value):
    plain = uj.descent_constraints(0.2, reference=reference_value)
    expected = [30.0, 1.0, 0.02] if reference_value is None else [400.0, 30.0, 1.0, 0.02]
    for losses in (LOSSES, -LOSSES):  # as logarithms of losses may be
        np.testing.assert_allclose(initial_sizes(jnp.asarray(losses), plain), expected, rtol=1e-6)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("batch", [(), (3,)])
def test_every_violation_is_divided_by_its_size_at_any_rank(getkey, batch):
    losses, sizes = jax.random.uniform(getkey(), (*batch, 4)), jnp.array([2.0, 0.1, 5.0])
    plain = uj.descent_constraints(0.3)
    found = jax.jit(lambda losses, sizes: uj.scaled_constraints(plain, sizes)(losses))(losses, sizes)
    np.testing.assert_allclose(found, np.asarray(plain(losses)) / np.array([2.0, 0.1, 5.0]), rtol=1e-14)


@pytest.mark.usefixtures("x64")
def test_one_dual_rate_fits_losses_of_any_unit():
    """The same problem in units 1000 times as large: the same path of x, and of the scaled multipliers."""

    def train(unit):
        losses = lambda x: unit * layer_losses(x)  # noqa: E731
        plain = uj.descent_constraints(ALPHA, reference=unit * REFERENCE)
        constraints = uj.scaled_constraints(plain, initial_sizes(losses(jnp.zeros(2)), plain))
        dual = uj.dual_ascent(optax.sgd(0.02))

        def step(carry, _):
            x, duals = carry
            gradient = jax.grad(lambda x: uj.lagrangian(losses(x), unit * duals.multipliers, constraints))(x)
            x = x - 0.05 / unit * gradient
            return (x, dual.update(duals, constraints(losses(x)))), None

        (x, duals), _ = jax.jit(lambda start: jax.lax.scan(step, start, length=20_000))((jnp.zeros(2), dual.init(4)))
        return x, duals.multipliers

    x, multipliers = train(1.0)
    for ours, theirs in zip(train(1000.0), (x, multipliers), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    solution, expected, _ = known_solution(None)
    sizes = initial_sizes(layer_losses(jnp.zeros(2)), uj.descent_constraints(ALPHA, reference=REFERENCE))
    np.testing.assert_allclose(x, solution, atol=1e-3)
    np.testing.assert_allclose(multipliers / sizes, expected, atol=1e-3)


@pytest.mark.usefixtures("unchecked")
def test_bad_sizes_are_named():
    plain = uj.descent_constraints(0.2)
    for sizes in (jnp.array([1.0, 0.0]), jnp.array([1.0, jnp.inf])):
        with pytest.raises(ValueError, match="sizes must be positive and finite"):
            uj.scaled_constraints(plain, sizes)
    with pytest.raises(ValueError, match=r"sizes must have shape \(3,\), one a constraint, got \(2,\)"):
        uj.scaled_constraints(plain, jnp.ones(2))(jnp.ones(4))
