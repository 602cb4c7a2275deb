"""Weights of norm above 1, for which an OptEq layer need have no equilibrium: one
error where they are known."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.energies.opteq_layers import convolutional, dense
from tests.energies.opteq_reference import conv_matrix
from tests.marks import in_float64, nightly
from tests.reference import compiled, jax_array
from unroll_jax.energies.equilibrium.opteq_objective import (
    deep_opteq_objective,
    opteq_objective,
)
from unroll_jax.energies.equilibrium.regularisers import half_square, regularised
from unroll_jax.fixed_point import unrolled

pytestmark = in_float64
MESSAGE = (
    r"\|W\| must be at most 1, got ([\d.]+|nan):"
    r" .*spectral_normalise.*allow_expansive=True"
)


def of_norm(size, make, **options):
    layer, params, z, x = make((3,), skip=0.7, **options)
    return layer, params._replace(W=np.asarray(params.W) * size / 0.9), z, x


def stated_norm(call):
    with pytest.raises(ValueError, match=MESSAGE) as caught:
        call()
    return float(re.search(MESSAGE, str(caught.value)).group(1))


@nightly
@pytest.mark.parametrize("make", [dense, convolutional])
def test_a_norm_above_1_is_an_error_unless_allowed(make):
    layer, params, z, x = of_norm(1.2, make)

    def solve(z, params=params, layer=layer):
        options = {"adjoint": unrolled(2), "on_failure": "accept"}
        return jnp.sum(uj.equilibrium(layer, params, z, x, **options)[0])

    # the weights are closed over, but in the last
    for transform in (jax.grad, jax.jit, lambda f: compiled(jax.grad(f)), jax.vmap):
        norm = stated_norm(lambda: transform(solve)(z))  # noqa: B023
        assert norm == pytest.approx(1.2, rel=1e-2)
    norm = stated_norm(lambda: jax.grad(solve, 1)(z, params))
    assert norm == pytest.approx(1.2, rel=1e-2)
    allowed = of_norm(1.2, make, allow_expansive=True)[0]
    assert allowed.check is None
    assert jnp.isfinite(solve(z, layer=allowed))


@pytest.mark.parametrize("make", [dense, convolutional])
def test_no_weights_within_the_bound_are_refused(make):
    """Norms by NumPy, at 1 exactly, rounded to float32 and to bfloat16."""
    layer, params, z, _ = of_norm(1.0, make)
    W = np.asarray(params.W)
    matrix = W if W.ndim == 2 else conv_matrix(W, z.shape[1:3])
    assert abs(np.linalg.norm(matrix, 2) - 1.0) < 1e-12

    def check(dtype, scale=1.0):
        layer.check(params._replace(W=jax_array(scale * W, dtype)), z)

    check(jnp.float32)
    check(jnp.bfloat16)
    assert 1.01 < stated_norm(lambda: check(jnp.float32, 1.02)) <= 1.02
    assert np.isnan(stated_norm(lambda: check(jnp.float32, np.nan)))


def test_layers_of_a_deep_opteq_are_named_and_allowed_separately():
    layer, params, z, x = of_norm(0.9, dense)
    large = params._replace(W=2.0 * params.W)
    allowed = of_norm(0.9, dense, allow_expansive=True)[0]
    deep = uj.deep_opteq([layer, layer])
    for made in (deep, regularised(deep, half_square())):
        with pytest.raises(ValueError, match="^layer 2 of 2: " + MESSAGE):
            uj.equilibrium(made, (params, large), z, x)
    with pytest.raises(ValueError, match="^layer 1 of 2: " + MESSAGE):
        uj.energies.multi_block([layer, layer]).check((large, params), (z, z))
    uj.deep_opteq([layer, allowed]).check((params, large), z)
    assert uj.deep_opteq([allowed, allowed]).check is None


def test_the_objective_asks_for_consent_too():
    _, params, z, x = of_norm(1.2, dense)
    calls = [
        lambda: opteq_objective(params, z, x, skip=0.5),
        lambda: opteq_objective(params, z, x, skip=1.0),
        lambda: deep_opteq_objective([params], [z], x, skip=0.5),
    ]
    assert [*map(stated_norm, calls)] == pytest.approx([1.2] * 3, rel=1e-3)
    allowed = functools.partial(opteq_objective, skip=0.5, allow_expansive=True)
    assert jax.eval_shape(allowed, params, z, x).shape == (3,)


def test_half_precision_weights_are_judged_in_float32():
    layer = uj.opteq(2, 2, 2)
    for dtype, excess in ((jnp.float16, 0.0535), (jnp.bfloat16, 0.15)):
        # of norm 1.0014 and 1.011
        W = np.array([[1.0, excess], [0.0, 0.1]], dtype)
        params = uj.energies.OptEqParams(W, W, W[1])
        stated_norm(lambda: uj.equilibrium(layer, params, W[:1], W[:1]))  # noqa: B023
