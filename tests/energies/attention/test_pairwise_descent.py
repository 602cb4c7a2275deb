"""Attention lowers the energy it reports: every rho, form, graph, head and scale,
and where the paper's claim fails."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import unroll_jax as uj
from tests.energies.attention.examples import (
    CAUCHY,
    GRAPHS,
    NO_WEIGHT,
    of_every_rho,
    tokens,
)
from tests.marks import in_float64, nightly, types_unchecked
from tests.reference import compiled
from tests.test_conformance import energies_and_roundoff

FORMS = ("jacobi", "softmax")
RHOS = [*uj.RHOS, CAUCHY, uj.Rho(value=jax.jit(lambda z: (z + 0.1) ** 0.3))]
# With more columns than the tokens are wide and no ridge the systems may be singular.
HEADS = [
    {"num_heads": 3, "rank": 2},
    {
        "num_heads": 2,
        "rank": 1,
        "form": "softmax",
        "ridge": 0.1,
        "step_size": 0.3,
        "mask": GRAPHS["random"],
    },
]


def layers_of(kind, rho):
    if kind == "heads":
        return [uj.multihead_attention(4, rho=rho, **options) for options in HEADS]
    if kind == "causal":
        return [
            uj.causal_attention(rho=rho, form=form, step_size=size)
            for form, size in itertools.product(FORMS, (1.0, 0.3))
        ]
    numbers = itertools.cycle([(0.0, 1.0), (0.1, 1.0), (0.0, 0.3), (100.0, 0.01)])
    table = zip(GRAPHS.values(), numbers, strict=False)
    return [
        uj.attention(rho=rho, form=kind, ridge=ridge, step_size=size, mask=mask)
        for mask, (ridge, size) in table
    ]


@types_unchecked
@pytest.mark.parametrize(
    "kind",
    [
        "heads",
        *(pytest.param(k, marks=nightly) for k in ("causal", *FORMS)),
    ],
)
def test_no_step_raises_its_energy(kind):
    """200 points for each rho and layer, over six orders of magnitude of scale, most of
    them off centre. float64 is in test_conformance.py.
    """
    scales = np.logspace(-3, 3, 200)[:, None, None]
    y = np.float32(scales * (tokens(0, (200, 6, 4)) + 3.0 * tokens(1, (200, 1, 4))))
    x = np.float32(scales * tokens(2, (200, 6, 4)))
    shapes = [
        jax.eval_shape(layer.init, jax.random.key(0))
        for layer in layers_of(kind, "log")
    ]
    weights = jax.tree.map(
        lambda leaf: np.float32(0.6 * tokens(3, (200, *leaf.shape))), shapes
    )

    def energies(rho, weights, y, x):
        def one(layer, weights, y, x, context):
            stepped = layer.step(weights, y, x)
            return energies_and_roundoff(layer.energy, weights, y, stepped, context)

        rows = zip(layers_of(kind, rho), weights, strict=True)
        # of predecessors also in the state itself
        inputs = [(x, x), (None, y)] if kind == "causal" else [(x, x)]
        return [
            jax.vmap(functools.partial(one, layer))(leaves, y, *given)
            for layer, leaves in rows
            for given in inputs
        ]

    results = of_every_rho(energies, RHOS)(weights, y, x)
    # by name softmax takes other sums. Those of heads are in test_conformance.py
    if kind != "heads":
        by_name = compiled(functools.partial(energies, "softmax"))(weights, y, x)
        results = jax.tree.map(
            lambda many, one: np.stack([*many, one]), results, by_name
        )
    for place, (both, tolerances) in enumerate(results):
        for rho, pairs, tolerance in zip(
            [*RHOS, "by name"], both, tolerances, strict=False
        ):
            before, after = pairs.T
            assert np.all(after <= before + tolerance), (rho, place)
            assert np.mean(after < before) > 0.3, (rho, place)


@in_float64
def test_softmax_attention_raises_the_papers_energy():
    """The counterexample to Theorem 3.1 of Yang et al. (2022): a hub and six leaves,
    far from the origin. And at a consensus the softmax step rests, though the paper's
    energy is not stationary.
    """
    leaves = np.concatenate([np.full((6, 1), 999.5), 2.0 * np.eye(6)], axis=1)
    y = np.concatenate([1000.0 * np.eye(1, 7), leaves])
    papers = uj.attention(ridge=1.0)
    softmax = uj.attention(form="softmax")

    @compiled
    def measure(y):
        states = y, papers.step(NO_WEIGHT, y), softmax.step(NO_WEIGHT, y)
        same = jnp.ones_like(y)
        at_consensus = (
            softmax.step(NO_WEIGHT, same),
            jax.grad(papers.energy, 1)(NO_WEIGHT, same),
        )
        return [
            [layer.energy(NO_WEIGHT, state) for state in states]
            for layer in (papers, softmax)
        ], at_consensus

    ((before, exact, attended), (pairs_before, _, pairs_after)), (rested, slope) = (
        measure(y)
    )
    assert attended - before == pytest.approx(81.0, abs=1.0)
    assert exact < before - 1e6
    # the softmax step does lower the pair energy, and reports it
    assert pairs_after < pairs_before - 1.0
    assert_allclose(rested, 1.0, rtol=1e-15)
    assert_allclose(slope, 1.0, rtol=1e-12)
