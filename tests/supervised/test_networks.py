"""The networks of the experiments: how many parameters they have, and the norms of
their weights."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.energies.opteq_reference import conv_matrix
from unroll_jax.fixed_point import EquilibriumInfo
from unroll_jax.train.tasks.images.experiments import CAMVID, CIFAR10, EXPERIMENTS
from unroll_jax.train.tasks.images.models import build, sees_vectors, weight_norms

SHAPES = {
    "digits": ((8, 8, 1), 10),
    "pictures": ((32, 32, 3), 10),
    "scenes": ((32, 32, 3), 11),
}


def guessed(descent, params, start, *, batch_ndim, **options):
    info = (
        jnp.zeros(start.shape[:batch_ndim], dtype)
        for dtype in (start.dtype, jnp.int32, jnp.int32)
    )
    return start, EquilibriumInfo(*info)


@functools.cache
def parameters(name, of):
    (shape, classes), network = SHAPES[of], EXPERIMENTS[name].config.network
    if hasattr(network, "num_steps"):
        network = dataclasses.replace(network, num_steps=1)
    images = np.zeros(
        (1, int(np.prod(shape))) if sees_vectors(network) else (1, *shape), np.float32
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unroll_jax.models.opteq_base.equilibrium", guessed)
        patch.setattr(
            "unroll_jax.models.opteq_base.spectral_normalise",
            lambda params, **options: params,
        )
        return jax.eval_shape(build(network, classes).init, jax.random.key(0), images)


def count(name, of="pictures"):
    return sum(leaf.size for leaf in jax.tree.leaves(parameters(name, of)))


def assert_alike(names, of):
    counts = {name: count(name, of) for name in names}
    assert max(counts.values()) <= 1.05 * min(counts.values()), counts


def test_networks_for_the_same_data_are_as_large():
    assert_alike(
        ["image-opteq", "image-mon", "image-ode", "image-anode", "image-dnn"], "digits"
    )
    assert_alike(["segment-opteq", "segment-fcn"], "scenes")
    assert_alike(CIFAR10, "pictures")  # for one core
    assert_alike(CAMVID, "scenes")


# Numbers of parameters that are published, and within 5% of these where the others' are
# not.
PUBLISHED = {
    "1a-none": 199_338,
    "1b-none": 162_474,
    "1b-mon": 172_218,
    "1b-mon-large": 853_612,
}
ABOUT = {"1a-dnn": 199_338, "1b-ode": 172_218, "1b-anode": 172_218}


@pytest.mark.parametrize("name", PUBLISHED | ABOUT)
def test_networks_of_the_tables_have_the_published_number_of_parameters(name):
    expected, share = (PUBLISHED | ABOUT)[name], 0.05 if name in ABOUT else 0.0
    assert abs(count(f"xie2021-{name}") - expected) <= share * expected


def test_weight_norms_are_of_convolutions_behind_the_stem():
    kernel = np.random.default_rng(0).normal(size=(3, 3, 2, 4)).astype(np.float32)
    params, norm = (
        {"params": {"network": {"layer_1": {"W": kernel}}}},
        np.linalg.norm(conv_matrix(kernel, (5, 4)), 2),
    )
    assert weight_norms(params, (9, 7), stem=1) == {
        "layer_1": pytest.approx(norm, rel=1e-3)
    }
    bound = weight_norms(params, (9, 7), stem=1, certified=True)["layer_1"]
    symbol = np.fft.fft2(kernel, s=(7, 6), axes=(0, 1))
    assert (
        norm
        <= bound
        == pytest.approx(np.linalg.svd(symbol, compute_uv=False).max(), rel=2e-3)
    )
