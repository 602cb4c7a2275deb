"""Attention and its pairwise energies."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import unroll_jax as uj
from tests import reference
from tests.energies.attention.examples import (
    GRAPHS,
    NO_WEIGHT,
    jitted,
    of_every_rho,
    tokens,
)
from tests.energies.comparing import both
from tests.marks import in_float64
from tests.reference import compiled
from unroll_jax.energies import AttentionParams

FORMS = ("jacobi", "softmax")


@pytest.mark.usefixtures("x64", "unchecked")
@pytest.mark.parametrize("form", FORMS)
def test_energy_and_step_equal_the_reference(form):
    """Every rho on every graph. Any two of the other options meet. By name, softmax has
    separate sums. Some masks have a diagonal, which does not count.
    """
    traces = [np.trace(mask) for mask in GRAPHS.values() if mask is not None]
    assert min(traces) == 0 < max(traces)
    y = tokens(0, (6, 3))
    x = tokens(1, (6, 3))
    W_a = tokens(2, (3, 2))
    options = list(itertools.product((0.0, 0.7), (1.0, 0.3), (None, x), (None, W_a)))
    table = [
        (graph, *options[(5 * g + 2 * (form == "softmax")) % 16])
        for g, graph in enumerate(GRAPHS)
    ]

    def all_of(rho, y):
        results = {}
        for graph, ridge, step_size, anchor, weight in table:
            layer = uj.attention(
                rho=rho,
                form=form,
                ridge=ridge,
                step_size=step_size,
                mask=GRAPHS[graph],
                **({} if weight is None else {"dim": 3, "rank": 2}),
            )
            results[graph] = both(layer, AttentionParams(weight), y, anchor)
        return results

    of_rhos = of_every_rho(all_of)(y)
    by_name = compiled(functools.partial(all_of, "softmax"))(y)
    stacked = jax.tree.map(lambda many, one: [*many, one], of_rhos, by_name)
    for graph, ridge, step_size, anchor, weight in table:
        for rho, energy, stepped in zip(
            (*uj.RHOS, "softmax"), *stacked[graph], strict=True
        ):
            system = {"rho": rho, "graph": GRAPHS[graph], "ridge": ridge}
            system |= {"anchor": anchor, "W_a": weight}
            expected = (
                reference.pair_energy(y, **system),
                reference.pair_step(y, form=form, step_size=step_size, **system),
            )
            chex.assert_trees_all_close(
                (energy, stepped),
                expected,
                rtol=1e-12,
                atol=1e-12,
                custom_message=f"{rho}, {graph}",
            )


def test_the_undamped_step_minimises_the_majoriser_of_each_token_alone():
    """One token free, the others held: the exact minimiser when rho is linear."""
    linear = uj.Rho(lambda z: z, jnp.ones_like, jnp.zeros_like)
    y = np.float32(tokens(0, (5, 3)))
    stepped = compiled(uj.attention(rho=linear, ridge=0.5).step)(NO_WEIGHT, y)
    assert_allclose(stepped, (np.sum(y, axis=0) - y) / (4 + 0.5), rtol=1e-6, atol=1e-6)


def test_tokens_far_apart_keep_step_and_gradients_finite():
    """exp(-distance^2 / 2) underflows here. The nearest neighbour still has all the
    weight."""
    distances = np.array([7.0, 8.2, 20.0, 1e3, 1e8])
    y = np.float32(
        distances[:, None, None] * np.array([[0.0, 0.0], [1.0, 1.0], [3.0, 3.0]])
    )
    weight = np.float32(tokens(3, (3, 2)))
    layers = [uj.attention(form=form) for form in FORMS]

    @compiled
    @jax.vmap
    def all_of(y):
        pulled = [
            jax.vjp(functools.partial(layer.step, NO_WEIGHT), y) for layer in layers
        ]
        slopes = (
            [pull(weight) for _, pull in pulled],
            jax.grad(layers[0].energy, 1)(NO_WEIGHT, y),
        )
        return [stepped for stepped, _ in pulled], slopes

    (jacobi, softmax), slopes = all_of(y)
    assert_allclose(jacobi, y[:, [1, 0, 1]], rtol=1e-6)
    assert_allclose(softmax, y, rtol=1e-6)
    chex.assert_tree_all_finite(slopes)


@in_float64
def test_derivatives_at_coincident_tokens_are_those_of_the_formula():
    """At y_u = y_v the Hessian of rho(|y_u - y_v|^2 / 2) is rho'(0) times the
    graph's Laplacian."""
    energy = lambda y: uj.attention().energy(NO_WEIGHT, y)
    hessian, gradient = compiled(
        lambda y: (jax.hessian(energy)(y), jax.grad(energy)(y))
    )(np.full((3, 1), 1.3))
    assert_allclose(hessian[:, 0, :, 0], 3.0 * np.eye(3) - np.ones((3, 3)), atol=1e-12)
    assert_allclose(gradient, 0.0, atol=1e-12)


def test_a_large_common_offset_costs_no_digits():
    """float32 at offset 4096: distances come from centred tokens, whose offset is
    exact in binary here."""
    y = np.float32(np.round(tokens(0, (5, 3)) * 64) / 64)
    energy = compiled(uj.attention().energy)
    assert_allclose(
        energy(NO_WEIGHT, y + np.float32(4096.0)), energy(NO_WEIGHT, y), rtol=1e-3
    )


def test_pairs_whose_distance_overflows_have_no_nan():
    """The gradients of the quadratic are not asked for: its energy is infinite."""
    layers = [
        uj.attention(rho=name, form="softmax")
        for name in ("softmax", "geman_mcclure", "power")
    ]
    quadratic = uj.attention(rho=jitted(uj.RHOS["power"](exponent=1.0)), form="softmax")

    @compiled
    def run(y):
        pulled = [
            jax.vjp(functools.partial(both, layer, NO_WEIGHT), y) for layer in layers
        ]
        return both(quadratic, NO_WEIGHT, y), [
            (values, pull((jnp.ones(()), y))) for values, pull in pulled
        ]

    (energy, _), _ = results = run(np.float32([[1e30, 0.0], [-1e30, 1.0], [1.0, 2.0]]))
    assert energy == np.inf
    assert not any(np.isnan(leaf).any() for leaf in jax.tree.leaves(results))
