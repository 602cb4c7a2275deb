"""The transformer layer's forms: their options, drawn arguments, and equations in float64 NumPy."""

import numpy as np

from tests import reference
from unroll_jax.energies import TransformerParams

N, DIM = 5, 3
STEP = 0.05
MAP = np.random.default_rng(11).normal(size=(DIM, DIM))

GRAPH = reference.random_graph(np.random.default_rng(3), N, 0.7)

# Options of the layer, and in the reference: what x makes of the two anchors, given the learnable rows.
FORMS = {
    "plain": ({}, lambda x, row, other: (None, x)),
    "damped": ({"attention_step_size": 0.4}, lambda x, row, other: (None, x)),
    "jacobi": ({"form": "jacobi"}, lambda x, row, other: (None, x)),
    "both anchors": ({"ridge": 0.7, "form": "jacobi", "attention_step_size": 0.01}, lambda x, row, other: (x, x)),
    "row": ({"anchor": "row"}, lambda x, row, other: (None, row)),
    "input and row": (
        {"anchor": "row", "ridge": 1.0, "form": "jacobi", "attention_step_size": 0.01},
        lambda x, row, other: (x, row),
    ),
    "row and input": ({"attention_anchor": "row", "ridge": 0.3}, lambda x, row, other: (other, x)),
    "rows": ({"anchor": "row", "attention_anchor": "row", "ridge": 0.3}, lambda x, row, other: (other, row)),
    "function": ({"anchor": lambda x: x @ MAP}, lambda x, row, other: (None, x @ MAP)),
    "norm": ({"norm_radius": 1.3, "phi": "identity"}, lambda x, row, other: (None, x)),
    "spectrum": ({"spectrum": (0.0, 0.5)}, lambda x, row, other: (None, x)),
    "rho and graph": ({"rho": "student", "mask": GRAPH, "form": "jacobi"}, lambda x, row, other: (None, x)),
    "tanh": ({"phi": "tanh", "ridge": 0.2}, lambda x, row, other: (x, x)),
}


def build(form, **options):
    return {"rank": 2, "step_size": STEP, **FORMS[form][0], **options}


def draw(form, seed=0):
    """Parameters, tokens where phi is finite and input, in float64 NumPy."""
    rng = np.random.default_rng(seed)
    wants = FORMS[form][0]
    params = TransformerParams(
        rng.normal(size=(DIM, 2)),
        rng.normal(size=(DIM, DIM)),
        rng.normal(size=(1, DIM)) if wants.get("anchor") == "row" else None,
        rng.normal(size=(1, DIM)) if "attention_anchor" in wants else None,
    )
    return params, rng.uniform(0.1, 0.9, size=(N, DIM)), rng.normal(size=(N, DIM))


def reference_layer(form, params, y, x):
    options, anchors = FORMS[form]
    A, B = anchors(x, params.row, params.attention_row)
    W_f = params.W_f
    if "spectrum" in options:
        values, basis = np.linalg.eigh((W_f + W_f.T) / 2)
        W_f = (basis * np.clip(values, *options["spectrum"])) @ basis.T
    pair = {"W_a": params.W_a, "ridge": options.get("ridge", 0.0), "anchor": A}
    pair |= {"rho": options.get("rho", "softmax"), "graph": options.get("mask")}
    energy = reference.pair_energy(y, **pair) + reference.feedforward_energy(y, W_f, B)
    tokens, activation = y, lambda u, step_size: np.maximum(u, 0.0)
    if "norm_radius" in options:
        centred = y - y.mean(axis=1, keepdims=True)
        norms = np.linalg.norm(centred, axis=1, keepdims=True)
        energy += np.sum(y.sum(axis=1) ** 2) / (2 * DIM) + 0.5 * np.sum((norms - options["norm_radius"]) ** 2)
        tokens = options["norm_radius"] * centred / norms
    if options.get("phi") == "identity":
        activation = lambda u, step_size: u  # noqa: E731
    if options.get("phi") == "tanh":
        activation = lambda u, step_size: np.tanh(u)  # noqa: E731
        conjugate = 0.5 * ((1.0 + y) * np.log(1.0 + y) + (1.0 - y) * np.log(1.0 - y))
        energy += np.sum(conjugate - 0.5 * y**2) / STEP
    damping = options.get("attention_step_size", 1.0)
    mixed = reference.pair_step(tokens, form=options.get("form", "softmax"), step_size=damping, **pair)
    return energy, reference.feedforward_step(mixed, W_f, B, step_size=STEP, prox=activation)
