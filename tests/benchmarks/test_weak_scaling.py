"""The benchmark of many devices: bytes are those of rings, and the formula is that of compiled programs."""

import math

import jax
import jax.numpy as jnp
import pytest

from benchmarks import weak_scaling
from benchmarks.language_model import LanguageModel
from benchmarks.weak_scaling.collectives import bytes_sent
from benchmarks.weak_scaling.lowering import lowered_bytes
from benchmarks.weak_scaling.model import ACCELERATORS, flops_a_device, formula_bytes, num_params, step_time
from benchmarks.weak_scaling.program import Compiled, DecoderSizes, compile_apart
from tests.devices import on_eight_devices
from train.sharding import Collective


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
    found = _collective("all-reduce", 80)._replace(bounded=False)
    with pytest.raises(ValueError, match=r"found must be in loops whose trip counts .* bounded=False.*jax.lax.scan"):
        bytes_sent(found)


STEPS = """
import jax, jax.numpy as jnp, numpy as np
from benchmarks import weak_scaling
from benchmarks.weak_scaling.lowering import lowered
from benchmarks.weak_scaling.program import DecoderSizes
setting = weak_scaling.SMALL._replace(sizes=DecoderSizes(64, 32, 2, 4, 2, 64), tokens=8, chunk=4, share=2)
found = []
for devices, sequences in ((8, 1), (1, 8)):
    program = lowered(setting._replace(num_devices=devices, sequences=sequences)).compile()
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


def test_eight_devices_take_the_step_of_one():
    assert on_eight_devices(STEPS)[-1] == "equal"


@pytest.mark.parametrize("share", [None, 4])
def test_the_formula_is_what_a_compiled_step_sends(share):
    sizes = DecoderSizes(64, 32, 2, 4, 2, 64)
    setting = weak_scaling.SMALL._replace(sizes=sizes, tokens=16, chunk=4, share=share)
    compiled = compile_apart(setting)
    expected = formula_bytes(setting)
    assert {kind: compiled.sent[kind] for kind in expected} == expected
    assert set(compiled.sent) == {*expected, "all-reduce"}
    # What is reduced whole: the scales of norms, f_L, and with constraints the losses of all layers.
    scales, losses = 2 * sizes.num_layers * sizes.dim + sizes.dim, 0 if share is None else sizes.num_layers + 1
    assert compiled.sent["all-reduce"] == 4 * (scales + 1 + losses) * 2 * 7 / 8
    layers, ends = num_params(setting.sizes)
    state = 4 * 3 * (layers + ends) / 8
    assert state < compiled.argument_bytes < 1.1 * state + 4096


def test_compiling_apart_says_what_went_wrong():
    with pytest.raises(RuntimeError, match="cannot reshape"):
        compile_apart(weak_scaling.SMALL._replace(sizes=DecoderSizes(64, 32, 2, 4, 2, 64), tokens=16, chunk=5))


def test_parameters_are_counted_from_the_shapes_of_the_model():
    sizes = DecoderSizes(64, 32, 2, 4, 2, 64)
    model = LanguageModel(**sizes._asdict(), classes=sizes.vocabulary)
    shapes = jax.eval_shape(
        lambda: model.init(jax.random.key(0), jnp.zeros((1, 8), jnp.int32), lambda _, y: jnp.sum(y))
    )
    named = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)}
    matrices = [math.prod(leaf.shape) for name, leaf in named.items() if "scale" not in name]
    assert sum(num_params(sizes)) == sum(matrices)
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


@pytest.mark.parametrize("share", [None, 32])
@pytest.mark.parametrize("devices", [8, 512])
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
    figures = weak_scaling.main()
    printed = capsys.readouterr().out
    assert all(f"\n{devices} " in printed for devices in weak_scaling.DEVICES)
    assert figures["formula_8_bytes"] < figures["lowered_512_bytes"]
    assert figures["small_compiled_over_formula"] == 1.0
    assert ("tpu_512_bytes" in figures) == for_tpu
    assert ("without libtpu" in printed) != for_tpu


def _collective(kind: str, result: int) -> Collective:
    return Collective(kind, result, arrays=1, group=8, times=3, bounded=True, source="")
