"""The ways to find the equilibrium of DeepOptEq beside the implicit one, and regularisers, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.energies import opteq_reference as reference
from tests.fixed_point.problems import relative_error
from tests.models.deep_opteq_by_hand import EXACT, VECTORS, by_hand, logits_by_hand, start, vectors
from unroll_jax import fixed_point as fp
from unroll_jax.energies.regularisers import decorrelation, half_square
from unroll_jax.models import DeepOptEq


@pytest.mark.usefixtures("x64")
def test_few_unrolled_steps_are_those_steps_and_no_more(getkey):
    model = DeepOptEq(num_classes=3, **VECTORS, way="unrolled", num_steps=3, param_dtype=jnp.float64)
    x = vectors(getkey(), 2)
    params = start(model, getkey(), x)
    (logits, info) = jax.jit(model.apply)(params, x)
    assert info.steps.tolist() == [3, 3]
    assert not info.converged.any()
    for row in range(2):
        np.testing.assert_allclose(logits[row], logits_by_hand(params, by_hand(model, params, x[row], 3)), atol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("chosen", ["default", "regulariser", "smoothness", "solver"])
def test_averaged_steps_are_those_of_equation_10(chosen, getkey):
    strength = 1.0 if chosen == "default" else 3.0
    R, c = half_square(strength), 0.1 if chosen == "solver" else 0.2
    way = {
        "default": {},
        "regulariser": {"regulariser": R},
        "smoothness": {"regulariser": R._replace(smoothness=None), "regulariser_smoothness": strength},
        "solver": {"solver": fp.averaged(R.value, smoothness=R.smoothness, c=c)},
    }[chosen]
    model = DeepOptEq(num_classes=3, **VECTORS, way="averaged", num_steps=4, param_dtype=jnp.float64, **way)
    x = vectors(getkey(), 1)
    params = start(model, getkey(), x)
    logits, _ = jax.jit(model.apply)(params, x)
    layers = [jax.tree.map(np.asarray, params["params"][f"layer_{place}"]) for place in (1, 2)]
    z, gamma = np.zeros(6), 0.5 / strength
    for k in range(1, 5):
        beta, weight, moved = k**-0.5, k**-c, z
        for own in layers:
            options = {"activation": "leaky_relu", "skip": 0.8}
            moved = reference.step(moved, own["W"], own["U"], own["b"], np.asarray(x[0]), **options)
        z = beta * ((1.0 - gamma * weight) * z - gamma * strength * z) + (1.0 - beta) * moved
    np.testing.assert_allclose(logits[0], logits_by_hand(params, z), atol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("regulariser", "layer"),
    [
        ("absolute", lambda z: np.sign(z) * np.maximum(np.abs(z) - 0.1, 0.0)),
        (half_square(2.0), lambda z: z / 1.2),
        ("inverse_square", lambda z: z + 0.1 * 2.0 * z / (np.sum(z**2) + 1.0) ** 2),
    ],
    ids=["shrinkage", "scaling", "gradient"],
)
def test_a_regulariser_is_one_more_layer(regulariser, layer, getkey):
    options = {**VECTORS, **EXACT, "regulariser": regulariser, "regulariser_step": 0.1}
    model, x = DeepOptEq(num_classes=3, **options), vectors(getkey(), 1)
    params = start(model, getkey(), x)
    (_, info), kept = jax.jit(lambda params: model.apply(params, x, mutable="intermediates"))(params)
    z = np.asarray(kept["intermediates"]["equilibrium"][0][0])
    moved = z
    for place in (1, 2):
        own = jax.tree.map(np.asarray, params["params"][f"layer_{place}"])
        moved = reference.step(moved, own["W"], own["U"], own["b"], np.asarray(x[0]), activation="leaky_relu", skip=0.8)
    assert info.converged.all()
    np.testing.assert_allclose(z, layer(moved), atol=1e-9)
    assert np.linalg.norm(z - moved) > 1e-3 * np.linalg.norm(z)


@pytest.mark.usefixtures("x64")
def test_with_a_regulariser_of_the_batch_the_batch_is_one_equilibrium_with_gradients(getkey):
    options = {**VECTORS, **EXACT, "regulariser": decorrelation(0.05)}
    model = DeepOptEq(num_classes=3, **options)
    unrolled = DeepOptEq(num_classes=3, way="unrolled", num_steps=300, **options)
    x = vectors(getkey(), 4)
    params = start(model, getkey(), x)

    @jax.jit
    def run(params):
        loss = lambda model: lambda params: (lambda out: (jnp.sum(out[0] ** 2), out[1]))(model.apply(params, x))  # noqa: E731
        return [jax.value_and_grad(loss(model), has_aux=True)(params) for model in (model, unrolled)]

    ((value, info), gradient), ((expected, _), slope) = run(params)
    assert info.converged.shape == ()
    assert info.converged
    np.testing.assert_allclose(value, expected, rtol=1e-8)
    assert relative_error(gradient, slope) < 1e-6
