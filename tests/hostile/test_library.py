"""Every hostile call of the library is one error of ours that names the argument."""

import functools
import re
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import unroll_jax
from tests.hostile.calls import CALLS, calls
from unroll_jax import certificates, constrained, energies, fixed_point, looped, models

Z = np.zeros((2, 4), np.float32)


def half(params, z, x):
    return 0.5 * z


def square(params, y, x):
    return jnp.sum(y**2, (-2, -1))


def turned(shape=(4, 4), **bases):
    rule = unroll_jax.in_coordinates(optax.sgd(0.1), {"W": unroll_jax.Sides(**bases)})
    return rule.init({"W": np.ones(shape, np.float32)})


ALTERNATING = {"f": square, "g": square, "g_step_size": 0.1, "f_step_size": 0.1}
BOUNDS = unroll_jax.descent_constraints(0.2, num_layers=1)
NAMES = {
    "uj": unroll_jax,
    "energies": energies,
    "fp": fixed_point,
    "certificates": certificates,
    "constrained": constrained,
    "looped": looped,
    "models": models,
    "E": functools.partial(unroll_jax.alternating, **ALTERNATING),
    "jax": jax,
    "jnp": jnp,
    "np": np,
    "optax": optax,
    "K": jax.random.key(0),
    "Y": np.ones((2, 5, 4), np.float32),
    "Z": Z,
    "W": np.eye(4, dtype=np.float32),
    "D": BOUNDS,
    "S": constrained.column_sums(BOUNDS, np.ones(2, np.float32), None),
    "CONV": energies.ConvexPotentialParams(
        np.ones((3, 3, 2, 4), np.float32), *np.zeros((2, 4), np.float32)
    ),
    "turned": turned,
    "P": energies.AttentionParams(None),
    "Transformer": models.UnrolledTransformer,
    "ones": lambda shape: np.ones(shape, np.float32),
    "sgd": optax.sgd(0.1),
    "nan": np.nan,
    "inf": np.inf,
    "half": half,
    "solve": functools.partial(unroll_jax.equilibrium, half, None, Z),
}
CASES = [
    pytest.param(expression, error, name, id=f"{name}: {expression}")
    for table in CALLS.values()
    for error, name, expression in calls(table)
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("expression", "error", "name"), CASES)
def test_a_hostile_call_is_one_error_that_names_the_argument(expression, error, name):
    with pytest.raises(error) as caught:
        eval(expression, dict(NAMES))
    assert re.search(rf"\b{re.escape(name)}\b", str(caught.value))
    assert "\n" not in str(caught.value)
    assert (
        "unroll_jax" in traceback.extract_tb(caught.value.__traceback__)[-1].filename
    ), "raised by JAX or NumPy"
