"""Dual steps within `jax.shard_map`."""

import pytest

from tests.devices import on_eight_devices

pytestmark = pytest.mark.slow
# Each device has the multipliers and penalties of its points, and a copy for their
# mean.
PROGRAM = """
import jax, jax.numpy as jnp, numpy as np, optax, unroll_jax as uj
from jax.sharding import PartitionSpec as P
from unroll_jax.constrained import growing_penalty, take_rows
jax.config.update("jax_enable_x64", True)
mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
margins = jax.random.normal(jax.random.key(0), (5, 64))
local = jnp.argsort(jax.random.uniform(jax.random.key(1), (5, 8, 8)), axis=-1)[..., :4]  # of its 8
whole = (local + 8 * jnp.arange(8)[:, None]).reshape(5, 32)
for rule in (None, 2.0, growing_penalty(1.0, factor=1.5, maximum=4.0), growing_penalty(1.0, shrinkage=0.25)):
    each, mean = (uj.dual_ascent(optax.adam(0.1), kinds=kind, penalty=rule) for kind in ("at_most", "equal"))

    def step(x, points, average, margins, rows, total, count):
        def value(x):
            violations, prices = margins[rows] - x, take_rows(points.multipliers, rows)
            if rule is None:
                return uj.lagrangian(0.0, violations, prices)
            return uj.lagrangian(0.0, violations, prices, penalty=take_rows(points.penalty, rows))

        gradient, violations = total(jax.grad(value)(x)), margins[rows] - x
        average = mean.update(average, total(jnp.sum(violations)) / count)
        return x - 0.01 * gradient, each.update(points, violations, rows), average

    def mapped(x, points, average, margins, rows):
        return step(x, points, average, margins, rows[0], lambda value: jax.lax.psum(value, "data"), 32)

    start = jnp.zeros(()), each.init(64), mean.init(jnp.zeros(()))
    specs = jax.tree.map(lambda leaf: P("data") if leaf.ndim else P(), start)
    # Each device counts the calls that it skips, so nothing proves the counters equal: check_vma=False.
    options = {"mesh": mesh, "out_specs": specs, "check_vma": False}
    sharded = jax.jit(jax.shard_map(mapped, in_specs=(*specs, P("data"), P("data")), **options))
    alone = jax.jit(lambda *given: step(*given, lambda value: value, 32))
    many = one = start
    for step_number in range(5):
        many = sharded(*many, margins[step_number], local[step_number])
        one = alone(*one, margins[step_number], whole[step_number])
    assert jnp.any(one[1].multipliers > 0.0) and one[2].multipliers != 0.0 and one[0] != 0.0
    for ours, theirs in zip(jax.tree.leaves(many), jax.tree.leaves(one), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)
"""


def test_rows_in_shard_map_are_those_of_one_device():
    on_eight_devices(PROGRAM)
