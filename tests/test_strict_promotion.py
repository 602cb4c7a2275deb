"""States, inputs and weights of unlike dtypes under strict promotion."""

import itertools

import jax
import jax.numpy as jnp
import pytest

from unroll_jax import PROXIMALS, certificates, energies
from unroll_jax.energies.equilibrium.opteq_objective import opteq_objective
from unroll_jax.energies.equilibrium.regularisers import half_square, regularised

pytestmark = pytest.mark.usefixtures("unchecked")
DTYPES = ("float32", "bfloat16")
PAIRS = list(itertools.product(DTYPES, repeat=2))
TRIPLES = list(itertools.product(DTYPES, repeat=3))
LAYERS = {
    "dense": (energies.opteq(4, 6, 3, skip=0.9), (2, 4), (2, 3)),
    "conv": (energies.opteq_conv(2, 3, 1, skip=0.9), (2, 5, 5, 2), (2, 5, 5, 1)),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("dtypes", TRIPLES, ids="-".join)
def test_layers_take_unlike_dtypes(kind, dtypes):
    layer, *shapes = LAYERS[kind]
    of_params, of_z, of_x = dtypes
    z, x = (
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in zip(shapes, (of_z, of_x), strict=True)
    )

    def results(key, z, x):
        params = jax.tree.map(lambda leaf: leaf.astype(of_params), layer.init(key))
        deep = energies.deep_opteq([layer, layer])
        small = regularised(layer, half_square(1.0))
        options = {"image_shape": (5, 5)}
        objective = opteq_objective(params, z, x, skip=0.9, allow_expansive=True)
        return {
            "step": layer.step(params, z, x),
            "deep": deep.step((params, params), z, x),
            "regularised": small.step(params, z, x),
            "energies": (layer.energy(params, z, x), objective),
            "bounds": (
                certificates.contraction_bound(params, **options),
                certificates.equilibrium_lipschitz(params, **options),
            ),
            "weights": certificates.spectral_normalise(params, **options),
        }

    with jax.numpy_dtype_promotion("strict"):
        shapes = jax.eval_shape(results, jax.random.key(0), z, x)
    for name in ("step", "deep", "regularised"):
        assert shapes[name].dtype == of_z, name
    for name in ("energies", "bounds"):
        assert all(each.dtype == jnp.float32 for each in shapes[name]), name
    assert all(leaf.dtype == of_params for leaf in jax.tree.leaves(shapes["weights"]))


@pytest.mark.parametrize("name", PROXIMALS)
@pytest.mark.parametrize("dtypes", PAIRS, ids="-".join)
def test_operators_take_step_sizes_of_unlike_dtypes(name, dtypes):
    phi = PROXIMALS[name]()
    y, step_size = map(jax.ShapeDtypeStruct, ((2, 3, 4), ()), dtypes)
    with jax.numpy_dtype_promotion("strict"):
        near, penalty = jax.eval_shape(
            lambda y, step_size: (phi.prox(y, step_size), phi.penalty(y)), y, step_size
        )
    assert (near.dtype, penalty.dtype) == (dtypes[0], jnp.float32)


def double(tree):
    return jax.tree.map(lambda leaf: 2.0 * leaf, tree)


def test_numbers_of_equilibria_take_unlike_dtypes():
    wide = jax.ShapeDtypeStruct((2,), jnp.float32)
    narrow = jax.ShapeDtypeStruct((2,), jnp.bfloat16)

    def results(wide, narrow):
        return (
            certificates.error_bound(0.5 * narrow, wide),
            certificates.picard_steps(0.5, narrow[0], 1e-3),
            certificates.spectral_norm(double, {"a": wide, "b": narrow}),
            certificates.apollonian_ball(wide, narrow, 0.5).centre,
        )

    with jax.numpy_dtype_promotion("strict"):
        shapes = jax.eval_shape(results, wide, narrow)
    assert [shape.dtype for shape in shapes] == 4 * [jnp.float32]
