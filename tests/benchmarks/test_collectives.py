"""Reading collectives from HLO: modules written by hand, and compiled, whose figures are known."""

import json

import pytest

from benchmarks.weak_scaling.collectives import collectives
from tests.devices import on_eight_devices

# Written as XLA writes it: for TPUs (groups as axes of a mesh, trip counts in conditions), GPUs (started and done
# apart) and CPUs (trip counts known).
EVERY = """HloModule jit_step, is_scheduled=true, num_partitions=8

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
    operations = collectives(EVERY)
    assert [(one.kind, one.bytes, one.group, one.times, one.source) for one in operations] == [
        ("all-gather", 2 * 64, 4, 15, ""),
        ("reduce-scatter", 4 * 16, 8, 1, ""),
        ("all-reduce", 4 * 20, 4, 1, "a/b"),
        ("all-gather", 4 * 16, 8, 1, ""),
        ("collective-permute", 4 * 16, 2, 1, ""),
        ("reduce-scatter", 4 * 2, 8, 1, ""),
    ]
    assert all(one.bounded for one in operations)


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", 2),
        ("{}", 8),
        ("[4,2]<=[2,2,2]T(2,1,0)", 2),
        ("mesh['a'=2,'b'=2,'c'=2], device_ids=([2,2,2]T(2,1,0)) {'a','c'}", 4),
        ("mesh['a'=8,'b'=1] {'a':(2)4}", 4),
    ],
)
def test_groups_are_read_in_every_way_that_xla_writes_them(groups, size):
    assert collectives(EVERY.replace("[2,4]<=[8]", groups))[2].group == size


@pytest.mark.parametrize(
    ("line", "kind", "size"),
    [
        ("(f32[4]{0}, f32[32]{0}) all-gather-start(%p), replica_groups=[1,8]<=[8]", "all-gather", 128),
        (
            "(pred[4]{0}, pred[4]{0}, u32[]) collective-permute-start(%p), source_target_pairs={{0,1}}",
            "collective-permute",
            4,
        ),
        ("(f8e4m3fn[2,2]{1,0}, u32[2]{0}) all-to-all(%p, %q), replica_groups=[1,8]<=[8]", "all-to-all", 12),
    ],
)
def test_bytes_are_those_of_the_result(line, kind, size):
    last = collectives(EVERY.replace("  ROOT %r", f"  %s = {line}\n  ROOT %r"))[-1]
    assert (last.kind, last.bytes) == (kind, size)


@pytest.mark.parametrize(
    "other",
    [
        EVERY.replace("fusion(%g), kind=kCustom, calls", "call(%g), to_apply"),  # not run as one
        EVERY.replace("%own = f32[1,16]", "%own = f32[2,16]"),  # more than the own slice is kept
        EVERY.replace("dynamic-slice(%reduced", "negate(%reduced"),
    ],
)
def test_an_all_reduce_of_which_more_is_kept_is_one(other):
    op = collectives(other)[1]
    assert (op.kind, op.bytes) == ("all-reduce", 4 * 128)


@pytest.mark.parametrize(
    ("read", "instead"),
    [
        ("constant(3)", "parameter(0)"),  # the length is data
        ("direction=LT", "direction=GT"),  # counts down, from where is not said
        ("compare(%i, %bound)", "compare(%bound, %i)"),
        # As a solver's loop: until it has converged, and three times at most.
        ("ROOT %less = pred[]", "ROOT %go = pred[] and(%less, %unsolved)\n  %less = pred[]"),
    ],
)
def test_a_loop_that_may_end_otherwise_than_by_its_count_is_marked(read, instead):
    operations = collectives(EVERY.replace(read, instead))
    assert (operations[0].kind, operations[0].times, operations[0].bounded) == ("all-gather", 5, False)
    assert all(one.bounded for one in operations[1:])


def test_text_that_is_not_a_module_is_refused():
    with pytest.raises(ValueError, match="without an ENTRY computation: 'nothing'"):
        collectives("nothing")


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
print(json.dumps(collectives(text)))
"""


def test_collectives_of_a_compiled_program_are_those_it_was_written_with():
    read = json.loads(on_eight_devices(PROGRAM)[-1])
    entries = {(kind, size, group, times) for kind, size, _, group, times, *_ in read}
    assert entries >= {
        ("all-gather", 64, 2, 5),
        ("all-reduce", 64, 4, 5),
        ("reduce-scatter", 32, 2, 5),
        ("all-to-all", 32, 2, 1),
    }
    assert {entry[1] for entry in entries if entry[0] == "collective-permute"} == {32}
