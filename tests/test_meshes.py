"""Everything traces, without devices, where shardings are in types: a checked
`jax.shard_map`, explicit meshes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import unroll_jax as uj
from tests.devices import on_eight_devices
from tests.energies.comparing import shapes_of
from tests.marks import nightly
from unroll_jax import fixed_point as fp
from unroll_jax.models import (
    Decoder,
    DecoderConfig,
    decode,
    decoder_logits,
    empty_cache,
)

ROWS = PartitionSpec("data")
MANUAL = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))
EXPLICIT = AbstractMesh((2,), ("data",), axis_types=(AxisType.Explicit,))


def gradient_in_shard_map(value, params, *rows):
    summed = jax.shard_map(
        lambda *given: jax.lax.psum(value(*given), "data"),
        mesh=MANUAL,
        in_specs=(PartitionSpec(), *(ROWS for _ in rows)),
        out_specs=PartitionSpec(),
        check_vma=True,
    )
    return jax.eval_shape(jax.value_and_grad(summed), params, *rows)


def gradient_on_an_explicit_mesh(value, params, *rows):
    sharding = NamedSharding(EXPLICIT, ROWS)
    with jax.sharding.use_abstract_mesh(EXPLICIT):
        sharded = [
            jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
            for array in rows
        ]
        return jax.eval_shape(jax.value_and_grad(value), params, *sharded)


WAYS = {"shard_map": gradient_in_shard_map, "explicit": gradient_on_an_explicit_mesh}


def assert_differentiates(value, params, *rows, way):
    loss, gradient = WAYS[way](value, params, *rows)
    assert loss.shape == ()
    assert jax.tree.map(np.shape, gradient) == jax.tree.map(np.shape, params)


def zeros(x, *event):
    return jnp.zeros((x.shape[0], *event))


@nightly
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", uj.DESCENTS)
def test_every_descent_unrolls_and_differentiates(name, way):
    descent, params, *rows = shapes_of(name, (4,))

    def value(params, y, x=None):
        y, trace = uj.unroll(descent, params, y, x, num_layers=2)
        return jnp.sum(trace.energy) + jnp.sum(y)

    rows = [each for each in rows if each is not None]
    assert_differentiates(value, params, *rows, way=way)


def layer(symmetric):
    turn = (lambda W: 0.1 * (W + W.T)) if symmetric else jnp.tanh
    return lambda W, z, x: z @ turn(W) + x


WEIGHT = np.full((3, 3), 0.1, np.float32)
INPUT = np.ones((4, 3), np.float32)


def of_equilibrium(symmetric, **options):
    step = layer(symmetric)

    def value(W, x):
        return jnp.sum(
            uj.equilibrium(step, W, zeros(x, 3), x, batch_ndim=1, **options)[0] ** 2
        )

    return value, WEIGHT, INPUT


def of_probe():
    def equilibrium(W, x, probe):
        return uj.equilibrium(
            layer(False), W, zeros(x, 3), x, batch_ndim=1, probe=probe
        )[0]

    return (
        lambda W, x: jnp.sum(equilibrium(W, x, fp.zero_probe(x.shape[0]))),
        WEIGHT,
        INPUT,
    )


def of_kind(name, measure=lambda *given: uj.equilibrium(*given)[0] ** 2):
    descent, params, y, x = shapes_of(name, (4,))

    def value(params, x):
        return jnp.sum(measure(descent, params, zeros(x, *y.shape[1:]), x))

    return value, params, x


def of_splitting():
    make = lambda key: fp.monotone_weight(fp.monotone_init(key, 3), margin=0.5)
    W = jax.eval_shape(make, jax.random.key(0))
    return lambda W, x: jnp.sum(fp.monotone_equilibrium(W, x)[0] ** 2), W, INPUT


def of_constraints():
    constraints = uj.descent_constraints(0.2)

    def value(multipliers, losses):
        mean = jnp.mean(losses, axis=0)
        return jnp.sum(losses) * 0.0 + uj.lagrangian(
            mean[-1], constraints(mean), multipliers
        )

    return value, np.ones(3, np.float32), np.ones((4, 4), np.float32)


CASES = {
    "opteq": functools.partial(of_kind, "opteq"),
    "forward mode": functools.partial(of_equilibrium, False, forward_mode=True),
    "probe": of_probe,
    "splitting": of_splitting,
    "certificate": lambda: of_kind("opteq", lambda *given: uj.certify(*given).energy),
    "constrained losses": of_constraints,
}
QUICK = list(CASES)
CASES |= {
    name: functools.partial(of_kind, name) for name in ("opteq_conv", "deep_opteq")
}
for name, solver in fp.SOLVERS.items():
    CASES[f"solver {name}"] = functools.partial(
        of_equilibrium, solver().symmetric, solver=name
    )
for name in fp.ADJOINTS:
    CASES[f"adjoint {name}"] = functools.partial(
        of_equilibrium, name == "conjugate_gradient", adjoint=name
    )


NAMES = [pytest.param(name, marks=[] if name in QUICK else nightly) for name in CASES]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_everything_differentiates(name, way):
    assert_differentiates(*CASES[name](), way=way)


PROGRAM = """
import jax, jax.numpy as jnp, numpy as np, unroll_jax as uj
from jax.sharding import AxisType, PartitionSpec as P
descent, y, x = uj.DESCENTS["opteq"].example(jax.random.key(0), (8,))
params = descent.init(jax.random.key(1))
step = lambda W, z, x: jnp.tanh(z @ W + x)
W = 0.1 * jnp.eye(3)

def of_opteq(params, x):
    return jnp.sum(uj.equilibrium(descent, params, jnp.zeros((x.shape[0], y.shape[-1])), x, tol=1e-6)[0] ** 2)

def of_step(W, x):
    return jnp.sum(uj.equilibrium(step, W, jnp.zeros(x.shape), x, batch_ndim=1, tol=1e-6)[0] ** 2)

for value, params in ((of_opteq, params), (of_step, W)):
    alone = jax.jit(jax.grad(value))(params, x)
    auto, explicit = (jax.make_mesh((8,), ("data",), axis_types=(t,)) for t in (AxisType.Auto, AxisType.Explicit))
    part = lambda p, x: jax.lax.psum(value(p, x), "data")
    summed = jax.shard_map(part, mesh=auto, in_specs=(P(), P("data")), out_specs=P())
    gradients = [jax.jit(jax.grad(summed))(params, x)]
    with jax.set_mesh(explicit):
        placed = jax.tree.map(lambda leaf: jax.device_put(leaf, P()), params)
        gradients.append(jax.jit(jax.grad(value))(placed, jax.device_put(x, P("data"))))
    rows = jax.device_put(x, jax.sharding.NamedSharding(auto, P("data")))
    gradients.append(jax.jit(jax.grad(value))(params, rows))  # sharded by jit
    for tree in gradients:
        for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(tree)):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    print("equal")
"""


@pytest.mark.slow
def test_gradients_on_eight_devices_are_those_of_one():
    assert on_eight_devices(PROGRAM) == ["equal", "equal"]


def test_stored_parameters_decode_in_shard_map():
    """One token of one row per device: products with parameters of half the bits go
    piece by piece."""
    config = DecoderConfig(
        30, dim=8, num_layers=2, num_heads=2, num_key_value_heads=1, hidden_dim=16
    )
    one = jax.ShapeDtypeStruct((2, 1), jnp.int32)
    params = jax.eval_shape(
        Decoder(config, param_dtype=jnp.bfloat16).init, jax.random.key(0), one
    )["params"]
    cache = jax.eval_shape(lambda: empty_cache(config, 2, 2))

    def logits(params, tokens, cache):
        y, _ = decode(config, params, tokens, cache, jnp.zeros((1, 1), jnp.int32))
        return decoder_logits(config, params, y)

    rows = (PartitionSpec(), ROWS, PartitionSpec(None, "data"))
    run = jax.shard_map(
        logits, mesh=MANUAL, in_specs=rows, out_specs=ROWS, check_vma=True
    )
    assert jax.eval_shape(run, params, one, cache).shape == (2, 1, 30)
