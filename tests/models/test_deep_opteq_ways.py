"""Ways to find the equilibrium of DeepOptEq other than the implicit one, and regularisers, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixed_point.problems import relative_error
from tests.models.deep_opteq_by_hand import EXACT, VECTORS, by_hand, logits_by_hand, start, vectors
from unroll_jax import fixed_point as fp
from unroll_jax.energies.equilibrium.regularisers import decorrelation, half_square
from unroll_jax.models import DeepOptEq


@pytest.mark.usefixtures("x64")
def test_few_unrolled_steps_are_those_steps_and_no_more():
    model = DeepOptEq(num_classes=3, **VECTORS, way="unrolled", num_steps=3, param_dtype=jnp.float64)
    x = vectors(2)
    params = start(model, x)
    logits, info = jax.jit(model.apply)(params, x)
    assert info.steps.tolist() == [3, 3]
    assert not np.any(info.converged)
    for row in range(2):
        expected = logits_by_hand(params, by_hand(model, params, x[row], 3))
        np.testing.assert_allclose(np.asarray(logits)[row], expected, atol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_averaged_steps_are_those_of_equation_10():
    R = half_square(3.0)
    ways = {  # strength of the regulariser, exponent c, and how they are chosen
        "default": (1.0, 0.2, {}),
        "regulariser": (3.0, 0.2, {"regulariser": R}),
        "smoothness": (3.0, 0.2, {"regulariser": R._replace(smoothness=None), "regulariser_smoothness": 3.0}),
        "solver": (3.0, 0.1, {"solver": fp.averaged(R.value, smoothness=R.smoothness, c=0.1)}),
    }
    options = {**VECTORS, "num_classes": 3, "way": "averaged", "num_steps": 4, "param_dtype": jnp.float64}
    models, x = {name: DeepOptEq(**options, **way) for name, (_, _, way) in ways.items()}, vectors(1)
    params = start(models["default"], x)
    outputs = jax.jit(lambda params: {name: model.apply(params, x)[0] for name, model in models.items()})(params)
    for name, (strength, c, _) in ways.items():
        z, gamma = np.zeros(6), 0.5 / strength
        for k in range(1, 5):
            beta, weight, moved = k**-0.5, k**-c, by_hand(models["default"], params, x[0], 1, z)
            z = beta * ((1.0 - gamma * weight) * z - gamma * strength * z) + (1.0 - beta) * moved
        np.testing.assert_allclose(np.asarray(outputs[name])[0], logits_by_hand(params, z), atol=1e-12, err_msg=name)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_a_regulariser_is_one_more_layer():
    layers = {
        "absolute": lambda z: np.sign(z) * np.maximum(np.abs(z) - 0.1, 0.0),
        half_square(2.0): lambda z: z / 1.2,
        "inverse_square": lambda z: z + 0.1 * 2.0 * z / (np.sum(z**2) + 1.0) ** 2,
    }
    options = {**VECTORS, **EXACT, "num_classes": 3, "regulariser_step": 0.1}
    models, x = [DeepOptEq(**options, regulariser=regulariser) for regulariser in layers], vectors(1)
    params = start(models[0], x)
    run = jax.jit(lambda params: [model.apply(params, x, mutable="intermediates") for model in models])
    for (name, layer), ((_, info), kept) in zip(layers.items(), run(params), strict=True):
        z = np.asarray(kept["intermediates"]["equilibrium"][0])[0]
        moved = by_hand(models[0], params, x[0], 1, z)
        assert np.all(info.converged), name
        np.testing.assert_allclose(z, layer(moved), atol=1e-9, err_msg=str(name))
        assert np.linalg.norm(z - moved) > 1e-3 * np.linalg.norm(z), name


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_with_a_regulariser_of_the_batch_the_batch_is_one_equilibrium_with_gradients():
    options = {**VECTORS, **EXACT, "regulariser": decorrelation(0.05)}
    model = DeepOptEq(num_classes=3, **options)
    unrolled = DeepOptEq(num_classes=3, way="unrolled", num_steps=300, **options)
    x = vectors(4)
    params = start(model, x, scale=1.0)

    @jax.jit
    def run(params):
        loss = lambda model: lambda params: (lambda out: (jnp.sum(out[0] ** 2), out[1]))(model.apply(params, x))  # noqa: E731
        return [jax.value_and_grad(loss(model), has_aux=True)(params) for model in (model, unrolled)]

    ((value, info), gradient), ((expected, _), slope) = run(params)
    assert info.converged.shape == ()
    assert info.converged
    np.testing.assert_allclose(value, expected, rtol=1e-8)
    assert relative_error(gradient, slope) < 1e-6
