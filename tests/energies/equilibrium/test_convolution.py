"""The convolution against its matrix, and its derivatives where loops and memory
matter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from numpy.testing import assert_allclose

from tests.energies.comparing import assert_derivative
from tests.energies.opteq_reference import conv_matrix
from tests.marks import in_float64, nightly
from tests.reference import compiled, gaussian
from unroll_jax.energies.equilibrium.convolution import convolve

# arrays are float64 unless a test makes them float32
pytestmark = in_float64


def draw(*shape, seed=0):
    return gaussian(*shape, seed=seed)


def as_on(platform):
    """`jax.lax.platform_dependent` as it is on ``platform``. The ways of all
    platforms run here."""
    return lambda *operands, default, **ways: ways.get(platform, default)(*operands)


@pytest.fixture(params=["cpu", "cuda"])
def backend(request, monkeypatch):
    monkeypatch.setattr(jax.lax, "platform_dependent", as_on(request.param))


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("sides", [(3, 3), (1, 5), (2, 4)])
def test_values_are_those_of_the_matrix_and_differentiate(sides):
    kernel = draw(*sides, 2, 3)
    images = draw(4, 5, 6, 2, seed=1)
    moved = compiled(convolve)(kernel, images)
    expected = images.reshape(4, -1) @ conv_matrix(kernel, (5, 6)).T
    assert_allclose(moved.reshape(4, -1), expected, atol=1e-12)
    weight = draw(4, 5, 6, 3, seed=2)
    value = lambda pair: jnp.sum(weight * jnp.sin(convolve(*pair)))
    assert_derivative(value, (kernel, images), rtol=1e-6)


@nightly
@pytest.mark.usefixtures("backend")
def test_derivatives_of_second_order_in_both_modes():
    @compiled
    def twice(k, z):
        return jnp.sum(jnp.sin(convolve(k, jnp.tanh(convolve(k[..., :1], z)))))

    check_grads(
        twice,
        (draw(3, 3, 1, 2), draw(1, 3, 3, 1, seed=1)),
        order=2,
        modes=("fwd", "rev"),
        rtol=1e-6,
    )


def test_convolutions_follow_the_platform_compiled_for():
    """The derivative in the image, in a loop and under vmap: one product on CPU, a
    convolution elsewhere."""
    kernel = np.ones((3, 3, 2, 2), np.float32)
    images = np.ones((4, 1, 5, 5, 2), np.float32)

    def looped(image):
        return jnp.sum(
            jax.lax.scan(
                lambda z, _: (jnp.tanh(convolve(kernel, z)), None), image, length=3
            )[0]
        )

    traced = jax.jit(jax.vmap(jax.grad(looped))).trace(images)
    programs = [
        traced.lower(lowering_platforms=(platform,)).as_text()
        for platform in ("cpu", "cuda")
    ]
    on_cpu, elsewhere = (program.count("stablehlo.dot_general") for program in programs)
    assert on_cpu > elsewhere == 0
