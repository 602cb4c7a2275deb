"""The benchmark of many devices: bytes are those of rings, and the formula is that of compiled programs."""

import json
import math

import jax
import jax.numpy as jnp
import pytest

from benchmarks import weak_scaling
from benchmarks.language_model import LanguageModel
from benchmarks.weak_scaling.collectives import Collective, bytes_sent
from benchmarks.weak_scaling.lowering import lowered_bytes
from benchmarks.weak_scaling.model import ACCELERATORS, flops_a_device, formula_bytes, num_params, step_time
from benchmarks.weak_scaling.program import compile_apart
from benchmarks.weak_scaling.setting import Compiled, DecoderSizes
from tests.devices import on_eight_devices


@pytest.mark.parametrize(
    ("kind", "result", "sent"),
    [
        ("all-gather", 80, 70),  # all others' parts
        ("all-reduce", 80, 140),  # scattered, then gathered
        ("reduce-scatter", 10, 70),
        ("all-to-all", 80, 70),
        ("collective-permute", 80, 80),
    ],
)
def test_bytes_sent_are_those_of_rings(kind, result, sent):
    assert bytes_sent(_collective(kind, result)) == 3 * sent


def test_what_runs_an_unknown_number_of_times_is_refused():
    collective = _collective("all-reduce", 80)._replace(bounded=False)
    with pytest.raises(
        ValueError, match=r"collective must be in loops whose trip counts .* bounded=False.*jax.lax.scan"
    ):
        bytes_sent(collective)


SIZES = DecoderSizes(64, 32, 2, 4, 2, 64)
SETTING = weak_scaling.SMALL._replace(sizes=SIZES, tokens=16, chunk=4, share=4)
STEPS = """
import jax, jax.numpy as jnp, json, numpy as np
from benchmarks.weak_scaling.lowering import _sums, lowered
from tests.benchmarks.test_weak_scaling import SETTING
found = []
for devices in (8, 1):
    sequences = SETTING.sequences * 8 // devices
    program = lowered(SETTING._replace(num_devices=devices, sequences=sequences)).compile()
    if devices == 8:
        print(json.dumps([_sums(program.as_text())[0], program.memory_analysis().argument_size_in_bytes]))
    rng = np.random.default_rng(0)
    abstract = program.args_info[0]
    fill = lambda leaf: rng.uniform(0.5, 1.5, leaf.shape).astype(leaf.dtype)
    (params, opt_state, dual), tokens = jax.tree.map(fill, abstract)
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


@pytest.fixture(scope="module")
def eight_devices():
    """What a process of eight devices prints: of the program with constraints, and of its step."""
    return on_eight_devices(STEPS)


@pytest.mark.slow
def test_eight_devices_take_the_step_of_one(eight_devices):
    assert eight_devices[-1] == "equal"


@pytest.mark.parametrize("share", [None, 4])
def test_the_formula_is_what_a_compiled_step_sends(share, eight_devices):
    setting = SETTING._replace(share=share)
    if share is None:
        compiled = compile_apart(setting)
        sent, argument_bytes = compiled.sent, compiled.argument_bytes
    else:
        sent, argument_bytes = json.loads(eight_devices[-2])
    expected = formula_bytes(setting)
    assert {kind: sent[kind] for kind in expected} == expected
    assert set(sent) == {*expected, "all-reduce"}
    # What is reduced whole: the scales of norms, f_L, and with constraints the losses of all layers.
    scales, losses = 2 * SIZES.num_layers * SIZES.dim + SIZES.dim, 0 if share is None else SIZES.num_layers + 1
    assert sent["all-reduce"] == 4 * (scales + 1 + losses) * 2 * 7 / 8
    layers, ends = num_params(SIZES)
    state = 4 * 3 * (layers + ends) / 8
    assert state < argument_bytes < 1.1 * state + 4096


def test_compiling_apart_says_what_went_wrong(monkeypatch, tmp_path):
    failing = tmp_path / "python"
    failing.write_text("#!/bin/sh\necho 'cannot reshape' >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setattr("benchmarks.weak_scaling.program.sys.executable", str(failing))
    with pytest.raises(RuntimeError, match="compiling for 8 devices failed: cannot reshape"):
        compile_apart(SETTING)


def test_parameters_are_counted_from_the_shapes_of_the_model():
    model = LanguageModel(**SIZES._asdict(), classes=SIZES.vocabulary)
    shapes = jax.eval_shape(
        lambda: model.init(jax.random.key(0), jnp.zeros((1, 8), jnp.int32), lambda _, y: jnp.sum(y))
    )
    named = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)}
    matrices = [math.prod(leaf.shape) for name, leaf in named.items() if "scale" not in name]
    assert sum(num_params(SIZES)) == sum(matrices)
    assert sum(num_params(weak_scaling.EIGHT_BILLION)) == pytest.approx(8.03e9, rel=1e-3)


def test_step_times_follow_from_bytes_and_operations():
    small, large = (weak_scaling.LARGE._replace(num_devices=devices) for devices in (8, 16))
    assert flops_a_device(small) == flops_a_device(large)  # weak scaling
    tokens = small.sequences * small.tokens
    assert flops_a_device(small._replace(share=None)) == pytest.approx(8 * 7.5e9 * tokens, rel=0.2)
    h100 = next(accelerator for accelerator in ACCELERATORS if accelerator.near == 8)
    near, far = step_time(small, 9e11, h100), step_time(large, 9e11, h100)
    assert near.network == pytest.approx(2.0)
    assert far.network == pytest.approx(9e11 / h100.far_bandwidth)
    assert near.apart == near.compute + near.network
    assert near.overlapped == max(near.compute, near.network)


@pytest.mark.parametrize(("devices", "share"), [(8, None), (512, 32)])
def test_eight_billion_parameters_are_lowered_for_devices_that_are_nowhere(devices, share):
    setting = weak_scaling.LARGE._replace(num_devices=devices, share=share)
    sent = lowered_bytes(setting)
    expected = formula_bytes(setting)
    assert {kind: sent[kind] for kind in expected} == expected
    losses = 0 if share is None else setting.sizes.num_layers + 1
    scales = (2 * setting.sizes.num_layers + 1) * setting.sizes.dim
    assert sent["all-reduce"] == 4 * (scales + 1 + losses) * 2 * (devices - 1) / devices


@pytest.mark.parametrize("for_tpu", [True, False])
def test_the_table_has_a_row_for_every_number_of_devices(for_tpu, capsys, monkeypatch):
    def compiled(setting):
        sent = formula_bytes(setting)
        return Compiled(dict(sent), dict.fromkeys(sent, 1), 2**30, 2**30, 1.0)

    monkeypatch.setattr(weak_scaling, "tpu_compiler", lambda: for_tpu)
    monkeypatch.setattr(weak_scaling, "compile_apart", compiled)
    monkeypatch.setattr(weak_scaling, "lowered_bytes", lambda setting: compiled(setting).sent)
    figures = weak_scaling.main().figures
    printed = capsys.readouterr().out
    assert all(f"\n{devices} " in printed for devices in weak_scaling.DEVICES)
    assert figures["formula_8_bytes"] < figures["lowered_512_bytes"]
    assert figures["small_compiled_over_formula"] == 1.0
    assert ("tpu_512_bytes" in figures) == for_tpu
    assert ("without libtpu" in printed) != for_tpu


def _collective(kind: str, result: int) -> Collective:
    return Collective(kind, result, arrays=1, group=8, times=3, bounded=True, source="")
