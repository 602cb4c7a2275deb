"""The training loops of the docs end within their bounds."""

import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.test_docs import run


@pytest.mark.slow
def test_the_loops_of_the_docs_end_within_their_bounds():
    """No class of digits is above its bound by 0.01 nats; without multipliers the worst is, by 0.02, 0.04 and 0.5."""
    names = run("how_to/training_loops.md")
    x, y, zeros = names["x"], names["y"], {"loss": jnp.zeros(10)}
    last = uj.constrained.batch_violations(names["looser"], names["losses"], y)[1]
    for violations in (names["violations"], names["loss"](names["mlp"], x, y, zeros)[1], last):
        assert np.max(violations["loss"]) <= 0.01
    states = names["optimizer"].opt_state, names["opt_state"]
    for multipliers in (*map(uj.multipliers_of, states), names["state"].multipliers):
        assert np.max(multipliers["loss"]) > 0.5
