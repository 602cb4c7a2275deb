"""Collectives of a compiled program are those that it was written with."""

import json

from tests.devices import on_eight_devices

PROGRAM = """
import functools, json, jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from tests.sharding.collectives import collectives
mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
@functools.partial(jax.shard_map, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
def program(a):  # (2, 4) here
    def turn(a, _):
        whole = jax.lax.all_gather(a, "y", tiled=True)  # (4, 4)
        mixed = jnp.sin(jax.lax.psum(whole, "x"))
        return jax.lax.psum_scatter(mixed, "y", tiled=True), None
    a, _ = jax.lax.scan(turn, a, length=5)
    return jax.lax.all_to_all(jax.lax.ppermute(a, "x", [(0, 1), (1, 0)]), "y", 0, 0)
text = jax.jit(program).lower(jnp.ones((8, 4))).compile().as_text()
print(json.dumps(collectives(text)))
"""


def test_collectives_of_a_compiled_program_are_those_it_was_written_with():
    read = json.loads(on_eight_devices(PROGRAM)[-1])
    entries = {(kind, size, times) for kind, size, _, times, _ in read}
    assert entries >= {("all-gather", 64, 5), ("all-reduce", 64, 5), ("reduce-scatter", 32, 5), ("all-to-all", 32, 1)}
    assert {size for kind, size, _ in entries if kind == "collective-permute"} == {32}
    assert any("psum" in source for *_, source in read)
