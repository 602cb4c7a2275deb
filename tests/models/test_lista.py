"""LISTA as a Flax module, against ISTA in NumPy. Gradients and records are in
test_every_model.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.energies.dust_reference import coding_step, soft
from tests.marks import in_float64
from tests.models.drawing import drawn, float64, normal
from tests.reference import compiled, gaussian
from unroll_jax.energies import cosine_dictionary
from unroll_jax.models import LISTA

DIM, ATOMS, LAYERS, SPARSITY = 4, 7, 3, 0.2


def reference_codes(params, x, *, start=0.0, lost=0):
    layers = float64(params["params"]["layers"])
    x = np.asarray(x)
    codes = [np.zeros((*x.shape[:-1], layers.theta.shape[-1])) + start]
    for number, (A, B, theta) in enumerate(zip(*layers, strict=True), start=1):
        moved = soft(codes[-1] @ A.T + x @ B.T, np.abs(theta))
        codes.append(codes[-1] if number == lost else moved)
    return np.stack(codes)


@in_float64
@pytest.mark.parametrize("given", [False, True])
def test_initially_its_layers_are_the_iterates_of_ista(given):
    x = normal(5, DIM)
    D = gaussian(ATOMS, DIM, seed=2) if given else cosine_dictionary(ATOMS, DIM)
    options = {"dictionary_init": jax.nn.initializers.constant(D)} if given else {}
    model = LISTA(
        DIM, ATOMS, LAYERS, sparsity=SPARSITY, param_dtype=jnp.float64, **options
    )
    actual = compiled(lambda key: model.apply(model.init(key, x), x))(jax.random.key(0))
    codes = [np.zeros((5, ATOMS))]
    for _ in range(LAYERS):
        codes.append(coding_step(codes[-1], D, np.asarray(x), SPARSITY))
    assert 0 < np.count_nonzero(codes[-1]) < codes[-1].size
    assert_allclose(actual, np.stack(codes), rtol=1e-12, atol=1e-13)


@in_float64
def test_codes_start_as_given_and_thresholds_are_positive():
    model = LISTA(DIM, ATOMS, LAYERS, param_dtype=jnp.float64)
    x = normal(2, 5, DIM)
    start = normal(2, 5, ATOMS, seed=3)
    params = drawn(model, x)
    assert np.min(np.asarray(params["params"]["layers"].theta)) < 0.0
    codes = compiled(model.apply)(params, x, start)
    assert_allclose(
        codes, reference_codes(params, x, start=start), rtol=1e-12, atol=1e-13
    )
