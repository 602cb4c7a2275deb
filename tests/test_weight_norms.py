"""Normalised weights of any pytree, against NumPy's singular values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax.certificates import spectral_normalise

pytestmark = pytest.mark.usefixtures("x64")


def params_of(seed=0):
    draw = np.random.default_rng(seed)
    shapes = {"recurrent": {"kernel": (8, 8), "bias": (8,)}, "inject": {"kernel": (3, 8)}, "small": {"kernel": (4, 4)}}
    params = jax.tree.map(lambda shape: draw.normal(size=shape), shapes, is_leaf=lambda leaf: isinstance(leaf, tuple))
    params["small"]["kernel"] *= 1e-2
    return params | {"activation": jnp.tanh, "name": "cell"}


def norm(W):
    return np.linalg.norm(np.asarray(W), 2)


def test_matrices_of_a_pytree_keep_to_the_bound_and_other_leaves_are_left_alone():
    params = params_of()
    scaled = spectral_normalise(params, bound=0.7)
    for name in ("recurrent", "inject"):
        W = params[name]["kernel"]
        assert 0.699 <= norm(scaled[name]["kernel"]) <= 0.7 * (1.0 + 1e-12)
        np.testing.assert_allclose(scaled[name]["kernel"], W * 0.7 / norm(W), rtol=1e-3)  # in its direction
    np.testing.assert_array_equal(scaled["small"]["kernel"], params["small"]["kernel"])
    np.testing.assert_array_equal(scaled["recurrent"]["bias"], params["recurrent"]["bias"])
    assert scaled["activation"] is jnp.tanh
    assert scaled["name"] == "cell"


def test_where_chooses_weights_by_their_path():
    params = params_of()
    scaled = spectral_normalise(params, bound=0.7, where=lambda path: "recurrent" in path)
    assert norm(scaled["recurrent"]["kernel"]) <= 0.7 * (1.0 + 1e-12)
    np.testing.assert_array_equal(scaled["inject"]["kernel"], params["inject"]["kernel"])
    with pytest.raises(TypeError, match=r"matrices at paths that where chooses, got dict with .*'activation'"):
        spectral_normalise(params, where=lambda path: "nowhere" in path)
    with pytest.raises(ValueError, match="image_shape must be given for a convolution"):
        spectral_normalise({"kernel": np.ones((3, 3, 2, 2))})


def test_gradients_pass_through_the_norms():
    params = {"W": params_of()["recurrent"]["kernel"]}
    gradient = jax.grad(lambda p: jnp.sum(jnp.sin(spectral_normalise(p, bound=0.7)["W"])))(params)["W"]
    assert abs(np.sum(gradient * params["W"])) < 1e-6 * np.linalg.norm(gradient)  # scaling W changes nothing
