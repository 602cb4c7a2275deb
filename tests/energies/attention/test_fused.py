"""Attention through the fused primitive: the same step, and on GPUs the primitive itself."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests import reference
from unroll_jax.descent import Anchor
from unroll_jax.energies import AttentionParams
from unroll_jax.energies.attention import kernel_choice, pairwise
from unroll_jax.energies.attention.fused import fused_softmax_step
from unroll_jax.energies.attention.pairs import centred

NO_WEIGHT = AttentionParams(None)
N, DIM, RANK = 9, 6, 4


def draw(*batch, dtype="float32"):
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=(*batch, N, k)), dtype) for k in (RANK, DIM))


def by_xla(z, values, present=None):
    return fused_softmax_step(z, values, present, implementation="xla")


def test_the_call_is_softmax_attention_with_beta():
    z, values = draw(2, 3)
    whole, alone = jax.jit(lambda z, values: (by_xla(z, values), by_xla(z[0, 0], values[0, 0])))(z, values)
    assert whole.shape == values.shape
    np.testing.assert_allclose(alone, whole[0, 0], rtol=1e-4, atol=1e-5)
    for place in np.ndindex(2, 3):
        both = np.concatenate([np.float64(z[place]), np.float64(values[place])], axis=-1)
        expected = reference.softmax_attention(both, np.eye(RANK + DIM)[:, :RANK])[:, RANK:]
        np.testing.assert_allclose(whole[place], expected, rtol=1e-4, atol=1e-5, err_msg=str(place))


def test_its_gradients_are_those_of_the_step():
    """Through beta too, which a bias of the primitive would lose in a batch."""
    _, values = draw(2)
    present = jnp.asarray(np.arange(N) < np.array([[5], [N]]))
    weight = np.where(np.asarray(present)[..., None], np.cos(np.arange(values.size)).reshape(values.shape), 0.0)

    def by_call(y):
        return jnp.sum(weight * by_xla(centred(y, present), y, present))

    def by_step(y):
        return jnp.sum(weight * uj.attention(form="softmax").step(NO_WEIGHT, y, Anchor(None, present)))

    actual, expected = jax.jit(lambda y: [jax.value_and_grad(function)(y) for function in (by_call, by_step)])(values)
    chex.assert_trees_all_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_two_columns_keep_beta_to_float32_digits_in_bfloat16():
    """One would round |z|^2 / 2 = 50 to a multiple of a quarter."""
    z, values = draw(dtype="bfloat16")
    z = jnp.asarray(4 * np.asarray(z))
    actual = jax.jit(by_xla)(z, values)
    both = np.concatenate([np.float64(z), np.float64(values)], axis=-1)
    expected = reference.softmax_attention(both, np.eye(RANK + DIM)[:, :RANK])
    assert actual.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float64(actual), expected[:, RANK:], atol=0.03)


def lowered(monkeypatch, **options):
    """The program of a step and its gradient, as a host with a GPU and cuDNN would write it."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(cudnn, "is_cuda_compute_capability_equal", lambda capability: False)
    monkeypatch.setattr(kernel_choice, "PLATFORM", "gpu")
    layer = uj.attention(form="softmax", kernel="cudnn", **options)
    loss = lambda y: jnp.sum(layer.step(NO_WEIGHT, y, None).astype(jnp.float32) ** 2)  # noqa: E731
    shape = jax.ShapeDtypeStruct((2, 128, 62), options.pop("dtype", jnp.bfloat16))
    return jax.jit(jax.grad(loss)).trace(shape).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("step_size", [1.0, 0.5])
def test_on_a_gpu_step_and_gradient_are_the_primitives(monkeypatch, step_size):
    program = lowered(monkeypatch, step_size=step_size)
    assert "__cudnn$fmhaSoftmax" in program
    assert "__cudnn$fmhaSoftmaxBackward" in program
    assert "128x128x" not in program  # no (n, n) array


@pytest.mark.parametrize(
    ("width", "dtype", "words"),
    [(62, "float32", 'be "xla" or "pallas" for float32'), (126, "bfloat16", ""), (127, "bfloat16", "tokens this wide")],
)
def test_only_what_the_primitive_takes_goes_there(monkeypatch, width, dtype, words):
    layer, y = uj.attention(form="softmax", kernel="cudnn"), jnp.zeros((9, width), dtype)
    with pytest.raises(ValueError, match='kernel must be "xla" where JAX runs on cpu'):
        layer.step(NO_WEIGHT, y, None)
    monkeypatch.setattr(kernel_choice, "PLATFORM", "gpu")
    monkeypatch.setattr(pairwise, "fused_softmax_step", lambda z, values, present: values)
    if not words:
        assert layer.step(NO_WEIGHT, y, None).shape == y.shape
        return
    with pytest.raises(ValueError, match=words):
        layer.step(NO_WEIGHT, y, None)
