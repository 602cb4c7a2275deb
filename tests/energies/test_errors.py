"""Bad arguments of layers, graphs and penalties: one error that names the argument,
as in tests/hostile/calls.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.energies.comparing import shapes_of
from tests.hostile.calls import calls
from tests.marks import types_unchecked
from tests.reference import jax_array
from unroll_jax import energies
from unroll_jax.descent import Anchor
from unroll_jax.energies import AsymmetricLayer, AttentionParams, UnrolledLayerParams
from unroll_jax.energies.attention import rho
from unroll_jax.energies.equilibrium.opteq_objective import opteq_preimage
from unroll_jax.energies.tokens import check_tokens

pytestmark = types_unchecked
N, DIM, ATOMS, KEYS = 5, 3, 6, 7
NONE = AttentionParams(None)


def ones(*shape, dtype=np.float32):
    return jax_array(np.ones(shape, dtype))


def broken(*shape, at):
    array = np.ones(shape, np.float32)
    array[at] = np.nan
    return jax_array(array)


def like(shapes):
    return jax.tree.map(lambda leaf: ones(*leaf.shape), shapes)


def step(layer, y, x=None):
    params = like(jax.eval_shape(lambda: layer.init(jax.random.key(0))))
    return layer.step(params, y, x)


Y = ones(2, N, DIM)
H = ones(N, ATOMS)
SQUARE = AsymmetricLayer(np.ones((3, 2)), np.ones((3, 3)))
OPTEQ = uj.opteq(4, 6, 3)
MATRIX = uj.OptEqParams(np.full((6, 4), 0.1, np.float32), ones(6, 3), ones(6))
FREE = UnrolledLayerParams(ones(2, 3), ones(3, 3), ones(3, 3))
PAIRS = [ones(2, 9, 4), ones(2, 9, 4), ones(2, 9, 3), ones(2, 9)]
CUDNN = {"form": "softmax", "kernel": "cudnn"}
PAIR = np.ones((3, 3), bool)
NAMES = {
    "Anchor": Anchor,
    "check_tokens": check_tokens,
    "energies": energies,
    "jnp": jnp,
    "preimage": opteq_preimage,
    "rho": rho,
}
# By the error, the words of the message that name the argument, and the calls.
CALLS = r"""
ValueError
weight: energies.elastic_net(1.0, np.float32([1.0, -2.0]))
rank: uj.dust(DIM, ATOMS, attention_scale=0.5, rank=2)
form: energies.regularised(OPTEQ, energies.decorrelation())
step_size: uj.fast_weights(2, 2, step_size=3.0); energies.soft_threshold().prox(ones(2), -1.0);
    energies.regularised(OPTEQ, energies.half_square(), step_size=2.1, form="gradient")
contraction: energies.symmetric_embedding([SQUARE], contraction=0.6)
self_loops: uj.dust(DIM, ATOMS, self_loops=False)
skip: preimage(MATRIX, ones(4), skip=1.0)
layers: energies.symmetric_embedding([AsymmetricLayer(np.ones((3, 2)), 10000.0 * np.ones((3, 3)))] * 8)
layers[1]: energies.symmetric_embedding([SQUARE, AsymmetricLayer(np.ones((4, 2)), np.ones((4, 3)))])
layers[0]: energies.symmetric_embedding([AsymmetricLayer(np.ones((2, 2)), np.ones((3, 3)))])
mask: uj.dust(DIM, ATOMS, form="plain", mask=np.eye(N, dtype=bool));
    jax.eval_shape(lambda mask: uj.attention(mask=mask).step(NONE, Y), ones(N, N, dtype=bool))
W must be a square matrix: jax.eval_shape(energies.opteq_objective, MATRIX, ones(4))
kernel must be "xla" with a mask: uj.attention(kernel="pallas", mask=PAIR)
kernel must be "xla" or "pallas" but for: uj.attention(**CUDNN | {"form": "jacobi"})
block must be None or one of: uj.attention(kernel="pallas", block=48)
rho 'square' must be concave: jax.eval_shape(lambda y: (uj.attention(rho=jax.jit(jnp.square)), y)[1], Y)
rho '<lambda>' must be concave, but its mean slope rises from 1 to 1.12202 between z=89.1251 and z=112.202:
    uj.attention(rho=jax.jit(lambda z: z + 0.01 * jnp.maximum(z - 100.0, 0.0) ** 2))
rho '<lambda>' must be nondecreasing, but falls: uj.attention(rho=jax.jit(lambda z: z * jnp.exp(-z)))
rho 'log' must be finite on [0, inf), but at z=0 it is -inf: uj.attention(rho=jnp.log)
rho 'sum' must be elementwise, but its value turns shape: uj.attention(rho=jnp.sum)
rho 'cumsum' must be elementwise: uj.attention(rho=jnp.cumsum);
    jax.eval_shape(lambda y: (uj.attention(rho=jnp.cumsum), y)[1], Y)
rho 'sqrt' must have the derivative of its value as slope: uj.attention(rho=uj.Rho(jnp.sqrt, jax.jit(lambda z: 1.0 / (1.0 + z))))
rho 'sqrt' must have a finite slope beyond z=0: uj.attention(rho=uj.Rho(jnp.sqrt, jax.jit(lambda z: 0.5 / jnp.sqrt(z - 1.0))))
equal, but there it is inf in float64: uj.attention(rho=jnp.sqrt)
equal, but there it is nan in float64: uj.attention(rho=jax.jit(lambda z: (z * z) ** 0.125))
equal, but there it is inf in float32: uj.attention(rho=jax.jit(lambda z: jnp.sqrt(z + 1e-60)))
rho 'log1p' must have log(slope) as log_slope:
    uj.attention(rho=uj.Rho(jnp.log1p, jax.jit(lambda z: 1.0 / (1.0 + z)), jnp.negative))
slopes in [0, 1]: energies.activation(jax.jit(jax.nn.gelu), lambda z: z)
step_size must be finite and at least 0: energies.tanh().prox(ones(2), -1.0); energies.sigmoid().prox(ones(2), np.nan);
    energies.softplus().prox(ones(2), np.inf); energies.leaky_relu().prox(ones(2), -1.0)
rho must hold no arrays: uj.attention(kernel="pallas", rho=lambda z: jnp.sqrt(z + jnp.asarray([1.0])[0]))
must have a finite slope at z=0: uj.causal_attention(rho=jnp.sqrt);
    uj.multihead_attention(2, num_heads=1, rho=jnp.sqrt)
blocks: energies.deep_opteq_objective((), (ones(4),))
rates: uj.delta_rule(*PAIRS[:3], ones(3))
rates[0, 0] must be at least 0: uj.delta_rule(*PAIRS[:3], np.negative(PAIRS[3])); uj.mesa(*PAIRS[:3], np.negative(PAIRS[3]))
state: jax.eval_shape(lambda: uj.delta_rule(*PAIRS, state=ones(3, 4)))
state.H: jax.eval_shape(lambda: uj.mesa(*PAIRS, state=energies.MesaState(ones(4, 4), ones(4, 3))))
state.G: jax.eval_shape(lambda: uj.mesa(*PAIRS, state=energies.MesaState(ones(2, 4, 4), ones(4, 3))))
values: uj.mesa(*PAIRS[:2], ones(2, 3, 4), PAIRS[3])
y must: energies.unrolled_layer(FREE, ones(5, 4)); step(uj.fast_weights(2, 3), ones(2, 2), ones(4, 5));
    check_tokens(broken(7, DIM, at=(4, 0)), Anchor(None, jax_array(np.arange(7) < 5)))
y[1, 3, 2] is nan: uj.attention().step(NONE, broken(2, N, DIM, at=(1, 3, 2)))
x must: uj.attention().step(NONE, Y, ones(2, DIM)); step(uj.fast_weights(2, 2), ones(2, 2), ones(4, 3));
    step(uj.opteq(4, 6, 3), ones(3, 4), ones(2, 3))
x[2, 1] is nan: step(uj.hopfield(DIM), Y, broken(KEYS, DIM, at=(2, 1)))
x.present: step(uj.hopfield(DIM), Y, Anchor(ones(KEYS, DIM), ones(N, dtype=bool)))
z must: energies.multi_block([OPTEQ]).step((MATRIX,), (ones(4), ones(4)))
TypeError
values must: uj.delta_rule(*PAIRS[:2], ones(2, 9, 3, dtype=int), PAIRS[3])
y must: energies.unrolled_layer(FREE, ones(5, 3, dtype=np.uint8))
z must: step(OPTEQ, None)
x must: step(uj.hopfield(DIM), Y, ones(KEYS, DIM, dtype=int))
x.present: step(uj.hopfield(DIM), Y, Anchor(ones(KEYS, DIM), ones(KEYS)))
"""
CASES = [pytest.param(*case, id=f"{case[1]}: {case[2]}") for case in calls(CALLS)]


@pytest.mark.parametrize(("error", "words", "expression"), CASES)
def test_an_error_names_the_argument(error, words, expression):
    with pytest.raises(error) as caught:
        eval(expression, globals() | NAMES)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", [name for name in uj.DESCENTS if "opteq" not in name])
def test_params_of_another_shape_are_named(name):
    """Also those that broadcasting would let pass, and None. OptEq takes weights of
    any width."""
    layer, shapes, *tokens = shapes_of(name)
    params = like(shapes)
    for field, leaf in zip(getattr(params, "_fields", ()), params or (), strict=True):
        for other in (
            [ones(2)]
            if leaf is None
            else [None, ones(*leaf.shape, 1), ones(3, *leaf.shape)]
        ):
            wrong = params._replace(**{field: other})
            with pytest.raises(ValueError, match=f"{field} must be"):
                jax.eval_shape(layer.energy, wrong, *tokens)
