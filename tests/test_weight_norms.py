"""Normalised weights of any pytree, against NumPy's singular values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from tests.energies import opteq_reference as reference
from unroll_jax.certificates import WeightGains, spectral_normalise, split_gains, weight_normalise

IMAGE = (6, 5)
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
    for function in (spectral_normalise, split_gains):
        with pytest.raises(TypeError, match=r"matrices at paths that where chooses, got dict with .*'activation'"):
            function(params, where=lambda path: "nowhere" in path)
    with pytest.raises(ValueError, match="image_shape must be given for a convolution"):
        spectral_normalise({"kernel": np.ones((3, 3, 2, 2))})


@pytest.mark.parametrize("bound", [None, 0.7])
def test_weight_normalised_matrices_have_the_columns_stated_and_norms_within_the_bound(bound):
    """W_j = g_j V_j / |V_j|, written out; without a bound that is the weight itself."""
    params = params_of()
    split = split_gains(params)
    back = weight_normalise(split, bound=bound)
    for name in ("recurrent", "inject", "small"):
        W = params[name]["kernel"]
        gain = np.linalg.norm(W, axis=0)
        share = 1.0 if bound is None else min(1.0, bound / np.linalg.norm(gain))
        np.testing.assert_allclose(split[name]["kernel"].gain, gain, rtol=1e-14)
        np.testing.assert_allclose(back[name]["kernel"], share * W, rtol=1e-13)
        assert bound is None or norm(back[name]["kernel"]) <= bound
    longer = WeightGains(3.0 * split["recurrent"]["kernel"].direction, split["recurrent"]["kernel"].gain)
    np.testing.assert_allclose(  # the length of a direction does not count
        weight_normalise(longer, bound=bound), back["recurrent"]["kernel"], rtol=1e-13
    )
    assert back["name"] == "cell"


def test_a_weight_normalised_kernel_keeps_to_the_bound_as_a_convolution():
    kernel = np.random.default_rng(1).normal(size=(3, 3, 2, 4))
    scaled = weight_normalise(split_gains(kernel), bound=0.8)
    assert np.linalg.norm(reference.conv_matrix(np.asarray(scaled), IMAGE), 2) <= 0.8
    same = weight_normalise(split_gains(np.ones((3, 3, 1, 1))), bound=0.8)  # equal taps come near to it
    assert np.linalg.norm(reference.conv_matrix(np.asarray(same), (40, 40)), 2) >= 0.79


def test_gradients_pass_through_the_norms():
    params = {"W": params_of()["recurrent"]["kernel"]}
    check_grads(lambda p: jnp.sum(jnp.sin(weight_normalise(p, bound=0.7)["W"])), (split_gains(params),), 1, ["rev"])
    gradient = jax.grad(lambda p: jnp.sum(jnp.sin(spectral_normalise(p, bound=0.7)["W"])))(params)["W"]
    assert abs(np.sum(gradient * params["W"])) < 1e-6 * np.linalg.norm(gradient)  # scaling W changes nothing
    zero = split_gains({"W": np.zeros((3, 3))})
    assert np.isfinite(jax.grad(lambda p: jnp.sum(weight_normalise(p, bound=0.7)["W"]))(zero)["W"].direction).all()


def test_a_bound_is_positive():
    with pytest.raises(ValueError, match="bound must be positive and finite"):
        weight_normalise(split_gains({"W": np.eye(2)}), bound=0.0)
