"""The examples around models of other libraries run, and do what they say."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax.certificates import Outcome

pytestmark = pytest.mark.slow
TEXT = (Path(__file__).resolve().parents[1] / "docs" / "your_model.md").read_text()


@pytest.fixture(scope="module")
def names():
    """What the examples define."""
    names = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(block, "docs/your_model.md", "exec"), names)
    return names


@pytest.mark.parametrize("library", ["linen", "nnx", "eqx"])
def test_a_model_of_any_library_is_trained_until_every_layer_descends(names, library):
    report = names[f"{library}_report"]
    assert bool(report.feasible)
    assert np.all(np.diff(report.layer_losses) < 0.0)


def test_the_gradient_of_an_nnx_cell_at_equilibrium_is_that_of_many_unrolled_steps(names):
    def unrolled(params):
        z, _ = jax.lax.scan(
            lambda z, _: (names["step"](params, z, names["noisy"]), None), jnp.zeros((64, 8)), length=60
        )
        return jnp.mean((z - names["clean"]) ** 2)

    pairs = zip(*map(jax.tree.leaves, (jax.grad(unrolled)(names["cell_params"]), names["gradient"])), strict=True)
    for expected, actual in pairs:
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-6)


def test_the_certificate_of_an_own_energy_is_a_guarantee(names):
    assert np.all(names["certificate"].outcome == Outcome.GUARANTEED)
