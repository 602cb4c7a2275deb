"""Attention through the fused primitive: the same step, and on GPUs the primitive
itself; where kernels cannot run."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import unroll_jax as uj
from tests import reference
from tests.energies.attention.examples import NO_WEIGHT
from tests.marks import in_float64
from tests.reference import compiled, jax_array
from unroll_jax.descent import Anchor
from unroll_jax.energies.attention import kernel_choice, pairwise
from unroll_jax.energies.attention.fused import fused_softmax_step
from unroll_jax.energies.attention.pairs import centre

N, DIM, RANK = 9, 6, 4


def draw(*batch, dtype="float32"):
    rng = np.random.default_rng(0)
    return tuple(jax_array(rng.normal(size=(*batch, N, k)), dtype) for k in (RANK, DIM))


def by_xla(z, values, present=None):
    return fused_softmax_step(z, values, present, implementation="xla")


@pytest.mark.parametrize(
    ("dtype", "scale", "tolerances"),
    [("float32", 1, {"rtol": 1e-4, "atol": 1e-5}), ("bfloat16", 4, {"atol": 0.03})],
)
def test_the_call_is_softmax_attention_with_beta(dtype, scale, tolerances):
    """Two columns keep beta to float32 digits in bfloat16: one would round |z|^2 / 2
    = 50 to a multiple of 1/4."""
    z, values = map(np.asarray, draw(2, 3, dtype=dtype))
    z = scale * z
    whole, alone = compiled(
        lambda z, values: (by_xla(z, values), by_xla(z[0, 0], values[0, 0]))
    )(z, values)
    assert (whole.shape, whole.dtype) == (values.shape, values.dtype)
    assert_allclose(np.float64(alone), np.float64(whole[0, 0]), **tolerances)
    both = np.float64(np.concatenate([z, values], axis=-1))
    columns = np.eye(RANK + DIM)[:, :RANK]
    for place in np.ndindex(2, 3):
        expected = reference.softmax_attention(both[place], columns)[:, RANK:]
        actual = np.float64(whole[place])
        assert_allclose(actual, expected, **tolerances, err_msg=str(place))


def test_its_gradients_are_those_of_the_step():
    """Through beta too, which a bias of the primitive would lose in a batch."""
    _, values = draw(2)
    present = jax_array(np.arange(N) < np.array([[5], [N]]))
    weight = np.where(
        np.asarray(present)[..., None],
        np.cos(np.arange(values.size)).reshape(values.shape),
        0.0,
    )

    def by_call(y):
        return jnp.sum(weight * by_xla(centre(y, present), y, present))

    def by_step(y):
        return jnp.sum(
            weight
            * uj.attention(form="softmax").step(NO_WEIGHT, y, Anchor(None, present))
        )

    actual, expected = compiled(
        lambda y: [jax.value_and_grad(function)(y) for function in (by_call, by_step)]
    )(values)
    chex.assert_trees_all_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("step_size", [1.0, 0.5])
def test_on_a_gpu_step_and_gradient_are_the_primitives(monkeypatch, step_size):
    """The program, as a host with a GPU and cuDNN would write it."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(
        cudnn, "is_cuda_compute_capability_equal", lambda capability: False
    )
    monkeypatch.setattr(kernel_choice, "PLATFORM", "gpu")
    layer = uj.attention(form="softmax", kernel="cudnn", step_size=step_size)
    gradient = jax.grad(
        lambda y: jnp.sum(layer.step(NO_WEIGHT, y, None).astype(jnp.float32) ** 2)
    )
    shape = jax.ShapeDtypeStruct((2, 128, 62), jnp.bfloat16)
    program = (
        jax.jit(gradient).trace(shape).lower(lowering_platforms=("cuda",)).as_text()
    )
    assert "__cudnn$fmhaSoftmax" in program
    assert "__cudnn$fmhaSoftmaxBackward" in program
    assert "128x128x" not in program  # no (n, n) array


@in_float64
@pytest.mark.parametrize(
    ("kernel", "platform", "width", "dtype", "words"),
    [
        ("pallas", "", 2, "float32", '"xla" where JAX runs on cpu'),
        ("pallas", "gpu", 2, "float64", '"xla" for float64'),
        ("cudnn", "", 2, "bfloat16", '"xla" where JAX runs on cpu'),
        ("cudnn", "gpu", 62, "float32", '"xla" or "pallas" for float32'),
        ("cudnn", "gpu", 127, "bfloat16", "tokens this wide"),
        ("cudnn", "gpu", 126, "bfloat16", ""),
    ],
)
def test_a_kernel_that_cannot_run_names_the_way_out(
    monkeypatch, kernel, platform, width, dtype, words
):
    monkeypatch.setattr(kernel_choice, "PLATFORM", platform)
    monkeypatch.setattr(
        pairwise, "fused_softmax_step", lambda z, values, present: values
    )
    layer = uj.attention(form="softmax", kernel=kernel)
    y = jax.ShapeDtypeStruct((9, width), dtype)
    if not words:
        stepped = layer.step(NO_WEIGHT, jnp.zeros(y.shape, y.dtype), None)
        assert stepped.shape == y.shape
        return
    functions = (
        (layer.energy, layer.step, layer.step_and_energy)
        if kernel == "pallas"
        else (layer.step,)
    )
    for function in functions:
        with pytest.raises(ValueError, match=f"kernel must be .*{words}"):
            jax.eval_shape(function, NO_WEIGHT, y, None)
