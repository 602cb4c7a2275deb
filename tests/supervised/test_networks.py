"""The networks of the experiments, as they start."""

import dataclasses

import flax.traverse_util
import jax
import jax.numpy as jnp

from tests.fixed_point.problems import relative_error
from train.supervised.experiments import SUPERVISED
from train.supervised.networks import build


def share_of_first_layer(network, x, key):
    """How much what is read of the equilibrium changes when its first layer does not see the images."""
    model = build(network, num_classes=10)
    params = jax.jit(model.init)(key, x)
    flat = flax.traverse_util.flatten_dict(params)
    blind = {path: jnp.zeros_like(leaf) if path[-2:] == ("layer_1", "U") else leaf for path, leaf in flat.items()}
    apply = jax.jit(lambda params: model.apply(params, x)[0])
    return relative_error(apply(flax.traverse_util.unflatten_dict(blind)), apply(params))


def test_the_first_of_three_layers_sees_the_images(getkey):
    network, key = SUPERVISED["segment-opteq"].config.network, getkey()
    x = jax.random.normal(getkey(), (2, 32, 32, 3))
    seen = share_of_first_layer(network, x, key)
    assert seen > 0.1
    without_skip = share_of_first_layer(dataclasses.replace(network, skip=1.0), x, key)
    assert without_skip < 0.5 * seen
