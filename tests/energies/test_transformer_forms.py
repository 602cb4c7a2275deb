"""The transformer layer in every residual form, against its equations in float64
NumPy, and taken apart."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import unroll_jax as uj
from tests import reference
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


def reference_layer(options, params, y, x):
    A = x if "ridge" in options else None
    B = x if params.row is None else params.row
    W_f = params.W_f
    if "spectrum" in options:
        values, basis = np.linalg.eigh((W_f + W_f.T) / 2)
        W_f = (basis * np.clip(values, *options["spectrum"])) @ basis.T
    pair = {"W_a": params.W_a, "ridge": options.get("ridge", 0.0), "anchor": A}
    pair |= {"rho": options.get("rho", "softmax"), "graph": options.get("mask")}
    energy = reference.pair_energy(y, **pair) + reference.feedforward_energy(y, W_f, B)
    activation = lambda u, step_size: np.maximum(u, 0.0)
    if options.get("phi") == "tanh":
        activation = lambda u, step_size: np.tanh(u)
        conjugate = 0.5 * ((1.0 + y) * np.log(1.0 + y) + (1.0 - y) * np.log(1.0 - y))
        energy += np.sum(conjugate - 0.5 * y**2) / STEP
    damping = options.get("attention_step_size", 1.0)
    mixed = reference.pair_step(
        y, form=options.get("form", "softmax"), step_size=damping, **pair
    )
    return energy, reference.feedforward_step(
        mixed, W_f, B, step_size=STEP, prox=activation
    )


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
    assert jax.tree.map(np.shape, params) == jax.tree.map(
        lambda leaf: leaf.shape, shapes
    )

    @compiled
    def everything(params, y, x):
        terms = [
            part.energy(params, y, x) for part in (parts.attention, parts.feedforward)
        ]
        mixed = parts.feedforward.step(params, parts.attention.step(params, y, x), x)
        features = (
            parts.feedforward.step(params, y, x),
            y - STEP * jax.grad(parts.feedforward.energy, 1)(params, y, x),
        )
        of_parts = (
            sum(terms) + parts.phi.penalty(y),
            parts.phi.prox(mixed, parts.step_size),
        )
        return (
            (layer.energy(params, y, x), layer.step(params, y, x)),
            of_parts,
            features,
        )

    (energy, stepped), of_parts, features = everything(params, y, x)
    for expected_energy, expected in (reference_layer(options, params, y, x), of_parts):
        assert_allclose(energy, expected_energy, rtol=1e-12)
        assert_allclose(stepped, expected, rtol=1e-12, atol=1e-14)
    assert_allclose(*features, rtol=1e-10, atol=1e-12)


def test_all_parameters_are_drawn_apart():
    init = compiled(uj.transformer(8, anchor="row").init)
    params = init(jax.random.key(0, impl="rbg"))
    # both would be one matrix, scaled
    assert abs(np.corrcoef(params.W_a.ravel(), params.W_f.ravel())[0, 1]) < 0.5
    for W in (params.W_a, params.W_f):
        assert np.ptp(params.row / W[:1]) > 0.1  # and so would the row
