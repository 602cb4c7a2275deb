"""The checksum of a state against NumPy's own arithmetic: it sees every change, and no change of place."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.devices import on_eight_devices
from unroll_jax.train.system.digest import ODD, digest

NOTES = {"score": 1.0}


def reference(leaves):
    total = 0
    for leaf in leaves:
        words = np.ascontiguousarray(leaf).view(f"u{min(leaf.itemsize, 4)}").reshape(-1).astype(np.uint64)
        places = np.arange(words.size, dtype=np.uint64)
        factors = (places * (2 * ODD % 2**32) + 1) % 2**32
        total = (total * ODD + int(np.sum(words * factors % 2**32))) % 2**32
    return total


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bfloat16", "bool", "uint32"])
def test_it_is_the_sum_that_the_docstring_says(dtype):
    leaf = np.asarray(jnp.asarray(np.random.default_rng(0).integers(0, 9, (5, 7))).astype(dtype))
    plain = leaf.view(np.uint16) if dtype == "bfloat16" else leaf.view(np.uint8) if dtype == "bool" else leaf
    assert digest([leaf, leaf[0]], NOTES)[0] == reference([plain, plain[0]])


@pytest.mark.usefixtures("x64")
def test_it_sees_all_of_64_bits():
    leaf = np.random.default_rng(0).normal(size=(3, 4))
    assert digest([leaf], NOTES)[0] == reference([leaf.view(np.uint32)])


def test_one_bit_anywhere_changes_it():
    state = np.random.default_rng(0).normal(size=40).astype(np.float32)
    whole = digest(state, NOTES)
    for place in range(40):
        for bit in range(32):
            changed = state.copy()
            changed.view(np.uint32)[place] ^= np.uint32(1 << bit)
            assert digest(changed, NOTES)[0] != whole[0]
    assert digest(changed, NOTES) != whole
    assert digest(state, {"score": 2.0}) != whole
    assert digest(state, {**NOTES, "digest": whole}) == whole


SHARED_OUT = r"""
import jax, jax.numpy as jnp
from unroll_jax.train.system.digest import digest
mesh = jax.make_mesh((8,), ("data",))
state = jnp.arange(64.0).reshape(16, 4)
parts = jax.device_put(state, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data")))
print(len(parts.addressable_shards), digest(parts, {}), digest(state, {}), sep="\n")
"""


def test_it_does_not_depend_on_where_arrays_live():
    parts, shared, whole = on_eight_devices(SHARED_OUT)
    assert parts == "8"
    assert shared == whole
