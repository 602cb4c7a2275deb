"""The benchmark of many devices: its formula is what traced and compiled steps send."""

import json

import pytest

from benchmarks import weak_scaling
from benchmarks.weak_scaling import (
    LARGE,
    DecoderSizes,
    formula_bytes,
    sent_bytes,
)
from tests.devices import on_eight_devices

SIZES = DecoderSizes(64, 32, 2, 4, 2, 64)
SETTING = weak_scaling.Setting(
    8, SIZES, sequences=2, tokens=16, chunk=4, share=4, dtype="float32"
)
STEPS = """
import jax, json, numpy as np
from jax.sharding import AxisType
from benchmarks.weak_scaling import training_step
from tests.benchmarks.test_weak_scaling import SETTING
from tests.sharding.collectives import collectives
found = []
for devices in (8, 1):
    sequences = SETTING.sequences * 8 // devices
    mesh = jax.make_mesh((devices,), ("fsdp",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
    step, *arguments = training_step(SETTING._replace(num_devices=devices, sequences=sequences), mesh)
    program = step.lower(*arguments).compile()
    if devices == 8:
        print(json.dumps([(one.kind, one.bytes * one.times) for one in collectives(program.as_text())]))
    rng = np.random.default_rng(0)
    (params, opt_state, dual), tokens = jax.tree.map(
        lambda leaf: rng.uniform(0.5, 1.5, leaf.shape).astype(leaf.dtype), tuple(arguments)
    )
    params = jax.tree.map(lambda leaf: leaf - 1.0, params)
    opt_state = jax.tree.map(np.zeros_like, opt_state)
    tokens = rng.integers(64, size=tokens.shape, dtype=np.int32)
    (params, opt_state, dual), last = program((params, opt_state, dual), tokens)
    found.append(jax.device_get((opt_state[0].mu, dual.multipliers, last)))
for one, other in zip(*map(jax.tree.leaves, found)):
    np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-6)
assert all(np.any(leaf != 0.0) for leaf in jax.tree.leaves(found))
print("equal")
"""


def sums(setting):
    """Bytes of the arrays that are reduced whole: scales of norms, f_L, and with
    constraints all layer losses."""
    sizes = setting.sizes
    scales, losses = (
        (2 * sizes.num_layers + 1) * sizes.dim,
        0 if setting.share is None else sizes.num_layers + 1,
    )
    return (
        4 * (scales + 1 + losses) * 2 * (setting.num_devices - 1) / setting.num_devices
    )


def test_eight_devices_step_as_one_within_the_formula():
    *_, read, equal = on_eight_devices(STEPS)
    assert equal == "equal"
    sent = dict.fromkeys(("all-gather", "reduce-scatter", "all-reduce"), 0.0)
    for kind, size in json.loads(read):
        sent[kind] += (
            size
            * {"all-gather": 7 / 8, "reduce-scatter": 7, "all-reduce": 14 / 8}[kind]
        )
    expected = formula_bytes(SETTING)
    assert list(sent.values()) == [
        expected["all_gather"],
        expected["reduce_scatter"],
        sums(SETTING),
    ]


@pytest.mark.parametrize(("devices", "share"), [(8, None), (512, 32)])
def test_a_traced_large_step_sends_the_bytes_of_the_formula(devices, share):
    setting = LARGE._replace(num_devices=devices, share=share)
    assert sent_bytes(setting) == formula_bytes(setting) | {"psum": sums(setting)}
