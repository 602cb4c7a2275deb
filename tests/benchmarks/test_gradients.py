"""The benchmark of gradients: its exact answers against autodiff, and its race."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from benchmarks import gradients
from benchmarks.gradients import jax_peers, problems
from benchmarks.gradients.exact import exact, residual
from benchmarks.gradients.problems import (
    conv_cell,
    deep_cell,
    dense_cell,
    tanh_cell,
    transformer_cell,
)
from benchmarks.gradients.race import TOL, gradient_error

CELLS = {
    "dense, random": lambda: dense_cell(8, 0.9, "random", batch=3),
    "dense, spread": lambda: dense_cell(8, 0.99, "spread", batch=3),
    "dense, wide": lambda: dense_cell(6, 0.9, "spread", batch=2, width=9),
    "deep": lambda: deep_cell(3, 8, 0.9, batch=3),
    "conv": lambda: conv_cell(2, 5, 0.9, batch=2),
    "tanh": lambda: tanh_cell(6, 0.9, batch=3),
    "transformer": lambda: transformer_cell(8, 5, 2, batch=2),
    "slow": lambda: problems.slow_cell(dim=6, batch=2),
    "one hard example": lambda: problems.hard_example_cell(0.9, dim=6, batch=3),
    "non-normal": lambda: problems.nonnormal_cell(dim=6, batch=2),
    "rotation": lambda: problems.rotation_cell(dim=6, batch=2),
}


@pytest.mark.parametrize("name", CELLS)
def test_exact_gradients_are_those_of_a_long_unroll_in_float64(name, x64):
    cell = CELLS[name]()
    params, start, x, target = jax.tree.map(
        lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)),
        (cell.params, cell.start, cell.x, cell.target),
    )
    count = 4000 if name in ("dense, spread", "dense, wide", "slow") else 400

    def unrolled(params):
        z, _ = jax.lax.scan(
            lambda z, _: (cell.step(params, z, x), None), start, length=count
        )
        return jnp.sum(target * z), z

    gradient, z = jax.jit(jax.grad(unrolled, has_aux=True))(params)
    z = np.asarray(z)
    truth = exact(cell, z + 1e-4)
    assert_allclose(truth.z, z, atol=1e-9)
    assert gradient_error(truth, gradient) < 1e-8
    assert residual(cell, z) < 1e-12


# a few, as every way is compiled
WAYS = ("Picard, cg", "Anderson 5, cg", "FixedPointIteration, CG", "Picard")


def test_a_problem_is_raced_with_every_installed_peer(monkeypatch):
    def few(cell, ways=jax_peers.ways):
        return {
            library: {name: way for name, way in of_library.items() if name in WAYS}
            for library, of_library in ways(cell).items()
        }

    cell = dense_cell(8, 0.9, "random", batch=2)
    monkeypatch.setattr(jax_peers, "ways", few)
    monkeypatch.setattr(gradients, "_cells", lambda *, quick: [cell])
    monkeypatch.setattr(gradients, "time_calls", lambda *, peers: {})
    figures = gradients.main(quick=True, peers=True).figures
    # the project depends on jaxopt
    for name in (f"{cell.name}, {library}" for library in ("unroll_jax", "jaxopt")):
        assert figures[f"{name} residual"] <= TOL
        assert figures[f"{name} error"] < 1e-3
        assert figures[f"{name} mebibytes"] > 0.0
