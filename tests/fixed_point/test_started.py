"""Gradients in processes of their own: under the next custom_vjp, and sharded over eight devices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import jax, jax.numpy as jnp, numpy as np, unroll_jax as uj
step = lambda A, z, x: jnp.tanh(z @ A + x)
A, x = 0.3 * jnp.eye(8) + 0.02, jnp.arange(64.0).reshape(8, 8) / 64
def loss(A, x):
    y, info = uj.equilibrium(step, A, jnp.zeros_like(x), x, batch_ndim=1, tol=1e-6, on_failure="error")
    return jnp.sum(y ** 2), info
run = jax.jit(jax.grad(loss, (0, 1), has_aux=True))
"""


def in_a_process(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + code],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_gradients_are_the_same_under_the_next_custom_vjp():
    in_a_process(
        """
(g, _), _ = run(A, x)
h = jax.grad(lambda A: jnp.sum(jax.lax.scan(lambda z, _: (step(A, z, x), None), 0 * x, length=100)[0] ** 2))(A)
np.testing.assert_allclose(g, h, rtol=1e-4)
try:
    jax.jvp(jax.grad(lambda A: loss(A, x)[0]), (A,), (A,))
except TypeError as error:
    assert "forward_mode=True" in str(error), error
else:
    raise SystemExit("a second derivative came through")
""",
        JAX_CUSTOM_VJP3="1",
    )


def test_a_batch_sharded_over_eight_devices_by_jit_gives_the_same_gradient():
    """`jax.shard_map` and explicit meshes are in tests/test_meshes.py."""
    in_a_process(
        """
from jax.sharding import AxisType, NamedSharding, PartitionSpec
layer = uj.opteq(8, 24, 8)  # solved in a small space of its own
def layer_loss(params, x):
    return jnp.sum(uj.equilibrium(layer, params, jnp.zeros_like(x), x, tol=1e-6, on_failure="error")[0] ** 2)
run_layer = jax.jit(jax.grad(layer_loss, (0, 1)))
params = jax.jit(layer.init)(jax.random.key(0))
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
whole, rows = NamedSharding(mesh, PartitionSpec()), jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
sharded, info = run(jax.device_put(A, whole), rows)
assert len(sharded[1].sharding.device_set) == 8 and info.converged.all()
of_layer = run_layer(jax.device_put(params, whole), rows)
for ours, one, rtol, atol in ((sharded, run(A, x)[0], 1e-5, 1e-6), (of_layer, run_layer(params, x), 1e-4, 1e-4)):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(one)):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
""",
        XLA_FLAGS=os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8",
    )
