"""The transformer layer in every residual form, against its equations in float64
NumPy, and taken apart."""

import functools

import chex
import jax
import numpy as np
import pytest

import unroll_jax as uj
from tests import reference
from tests.energies.comparing import Case, assert_equal
from tests.marks import in_float64
from tests.reference import compiled
from unroll_jax.energies import TransformerParams

N, DIM, STEP = 5, 3, 0.05
GRAPH = reference.random_graph(np.random.default_rng(3), N, 0.7)
FORMS = {
    "plain": {},
    "input and row": {
        "anchor": "row",
        "ridge": 1.0,
        "form": "jacobi",
        "attention_step_size": 0.01,
    },
    "spectrum": {"spectrum": (0.0, 0.5)},
    "rho and graph": {"rho": "student", "mask": GRAPH, "form": "jacobi"},
    "tanh": {"phi": "tanh", "ridge": 0.2},
}
QUICK = ("plain", "input and row")  # all others run in make test-rest


def references(options, params, y, x):
    """Energy and step of the whole layer, and of its smooth half of features."""
    B = x if params.row is None else params.row
    W_f = params.W_f
    if "spectrum" in options:
        values, basis = np.linalg.eigh((W_f + W_f.T) / 2)
        W_f = (basis * np.clip(values, *options["spectrum"])) @ basis.T
    pair = {"W_a": params.W_a, "ridge": options.get("ridge", 0.0)}
    pair |= {"rho": options.get("rho", "softmax"), "graph": options.get("mask")}
    pair["anchor"] = x if "ridge" in options else None
    mixed = reference.pair_step(
        y,
        form=options.get("form", "softmax"),
        step_size=options.get("attention_step_size", 1.0),
        **pair,
    )
    penalty = 0.0
    activation = lambda u, step_size: np.maximum(u, 0.0)
    if options.get("phi") == "tanh":
        activation = lambda u, step_size: np.tanh(u)
        conjugate = 0.5 * ((1.0 + y) * np.log(1.0 + y) + (1.0 - y) * np.log(1.0 - y))
        penalty = np.sum(conjugate - 0.5 * y**2) / STEP
    smooth = reference.feedforward_energy(y, W_f, B)
    step = functools.partial(reference.feedforward_step, step_size=STEP)
    energy = reference.pair_energy(y, **pair) + smooth + penalty
    return {
        "whole": (energy, step(mixed, W_f, B, prox=activation)),
        "features": (smooth, step(y, W_f, B)),
    }


def of_parts(parts):
    """The layer that the parts make together."""

    def energy(params, y, x):
        terms = (
            part.energy(params, y, x) for part in (parts.attention, parts.feedforward)
        )
        return sum(terms) + parts.phi.penalty(y)

    def step(params, y, x):
        mixed = parts.attention.step(params, y, x)
        mixed = parts.feedforward.step(params, mixed, x)
        return parts.phi.prox(mixed, parts.step_size)

    return parts.attention._replace(energy=energy, step=step)


@in_float64
@pytest.mark.parametrize(
    "form",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in FORMS
    ],
)
def test_energy_and_step_equal_the_reference_and_parts(form):
    options = FORMS[form]
    rng = np.random.default_rng(0)
    layer, parts = (
        make(DIM, rank=2, step_size=STEP, **options)
        for make in (uj.transformer, uj.transformer_parts)
    )
    W_a, W_f, row = (
        rng.normal(size=shape) for shape in ((DIM, 2), (DIM, DIM), (1, DIM))
    )
    params = TransformerParams(
        W_a, W_f, row if options.get("anchor") == "row" else None
    )
    y = rng.uniform(0.1, 0.9, size=(N, DIM))
    x = rng.normal(size=(N, DIM))
    shapes = jax.eval_shape(layer.init, jax.random.key(0))
    chex.assert_trees_all_equal_shapes(params, shapes)
    expected = references(options, params, y, x)
    layers = {"whole": layer, "parts": of_parts(parts), "features": parts.feedforward}
    expected["parts"] = expected["whole"]
    cases = {
        name: Case(layer, params, y, x, *expected[name])
        for name, layer in layers.items()
    }
    assert_equal(cases, atol=1e-14)


def test_all_parameters_are_drawn_apart():
    init = compiled(uj.transformer(8, anchor="row").init)
    params = init(jax.random.key(0, impl="rbg"))
    # both would be one matrix, scaled
    assert abs(np.corrcoef(params.W_a.ravel(), params.W_f.ravel())[0, 1]) < 0.5
    for W in (params.W_a, params.W_f):
        assert np.ptp(params.row / W[:1]) > 0.1  # and so would the row
