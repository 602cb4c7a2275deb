"""The benchmark of many devices: collectives are read as they are, and the formula is that of compiled programs."""

import json
import math
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from benchmarks import weak_scaling
from benchmarks.language_model import LanguageModel
from benchmarks.weak_scaling.collectives import Collective, bytes_sent, collectives
from benchmarks.weak_scaling.lowering import lowered_bytes
from benchmarks.weak_scaling.model import ACCELERATORS, flops_a_device, formula_bytes, num_params, step_time
from benchmarks.weak_scaling.program import Compiled, DecoderSizes, compile_apart

# Written as XLA writes it: for TPUs (groups as axes of a mesh, trip counts in conditions), GPUs (started and done
# apart) and CPUs (trip counts known).
TEXT = """HloModule jit_step, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%inner (state: (s32[], f32[16])) -> (s32[], f32[16]) {
  %gather = bf16[4,16]{1,0:T(8,128)(2,1)} all-gather(%a), replica_groups=mesh['x'=4,'y'=2] {'x'}, dimensions={0}
  ROOT %out = (s32[], f32[16]) tuple(%i, %b)
}

%inner_condition (state: (s32[], f32[16])) -> pred[] {
  %bound = s32[]{:T(128)} constant(3)
  ROOT %less = pred[] compare(%i, %bound), direction=LT
}

%body (state: (s32[], f32[16])) -> (s32[], f32[16]) {
  %loop = (s32[], f32[16]) while(%t), condition=%inner_condition, body=%inner
  ROOT %out.1 = (s32[], f32[16]) tuple(%i, %b)
}

%scatter (whole: f32[8,16]) -> f32[1,16] {
  %reduced = f32[8,16]{1,0} all-reduce(%whole), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add
  ROOT %own = f32[1,16]{1,0} dynamic-slice(%reduced, %place, %zero), dynamic_slice_sizes={1,16}
}

ENTRY %main (p: f32[16]) -> f32[16] {
  %outer = (s32[], f32[16]) while(%t), condition=%unread, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %both = (f32[16]{0}, f32[4]{0}) all-reduce(%c, %d), replica_groups=[2,4]<=[8], to_apply=%add, metadata={op_name="a/b"}
  %begun = (f32[2]{0}, f32[16]{0}) all-gather-start(%e), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
  %ended = f32[16]{0} all-gather-done(%begun)
  %sent = (f32[16]{0}, f32[16]{0}, u32[], u32[]) collective-permute-start(%f), source_target_pairs={{0,1},{1,0}}
  %fused = f32[1,16]{1,0} fusion(%g), kind=kCustom, calls=%scatter
  %part = f32[2]{0} reduce-scatter(%h), replica_groups={}, dimensions={0}, to_apply=%add
  ROOT %r = f32[16] copy(%p)
}
"""


def test_collectives_are_read_from_every_way_of_writing_them():
    found = collectives(TEXT, num_devices=8)
    assert [entry[:4] for entry in found] == [
        ("all-gather", 2 * 64, 4, 15),
        ("all-reduce", 4 * 20, 4, 1),
        ("all-gather", 4 * 16, 8, 1),
        ("collective-permute", 4 * 16, 8, 1),
        ("reduce-scatter", 4 * 16, 8, 1),
        ("reduce-scatter", 4 * 2, 8, 1),
    ]
    assert [entry.name for entry in found] == ["", "a/b", "", "", "", ""]


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
    assert bytes_sent(Collective(kind, result, group=8, times=3, name="")) == 3 * sent


def test_text_that_is_not_a_module_is_refused():
    with pytest.raises(ValueError, match="without an ENTRY"):
        collectives("nothing", num_devices=8)
    with pytest.raises(ValueError, match="no trip count"):
        collectives(TEXT.replace("constant(3)", "parameter(0)"), num_devices=8)


PROGRAM = """
import functools, json, jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from benchmarks.weak_scaling.collectives import collectives
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
print(json.dumps(collectives(text, num_devices=8)))
"""


def test_collectives_of_a_compiled_program_are_those_it_was_written_with():
    found = {tuple(entry[:4]) for entry in json.loads(_on_eight_devices(PROGRAM)[-1])}
    assert found >= {
        ("all-gather", 64, 2, 5),
        ("all-reduce", 64, 4, 5),
        ("reduce-scatter", 32, 2, 5),
        ("all-to-all", 32, 2, 1),
    }
    assert {entry[1] for entry in found if entry[0] == "collective-permute"} == {32}


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
    assert _on_eight_devices(STEPS)[-1] == "equal"


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


def _on_eight_devices(program: str) -> list[str]:
    """The lines that a program prints, in a process of its own."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()
