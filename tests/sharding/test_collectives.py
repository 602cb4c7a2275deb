"""Reading collectives from HLO: hand-written modules whose figures are known."""

import pytest

from train.sharding import collectives

MODULE = """\
HloModule step, num_partitions=8

%sum (a: f32[], b: f32[]) -> f32[] {{
  ROOT %add = f32[] add(%a, %b)
}}

%inner (p: f32[4]) -> f32[4] {{
  {inner}
}}

%outer (p: f32[4]) -> f32[4] {{
  %w = f32[4] while(%p), condition=%test, body=%inner, backend_config={{"known_trip_count":{{"n":"3"}}}}
}}

ENTRY %main (p: f32[4]) -> f32[4] {{
  %v = f32[4] while(%p), condition=%test, body=%outer{trips}
  {entry}
}}
"""
TWICE = ', backend_config={"known_trip_count":{"n":"2"}}'
REDUCE = "%r = (f32[16,4]{1,0}, bf16[3]{0}) all-reduce(%p, %q), replica_groups=GROUPS, to_apply=%sum"


def _read(inner="%n = f32[4] negate(%p)", entry="%n = f32[4] negate(%v)", trips=TWICE):
    return collectives(MODULE.format(inner=inner, entry=entry, trips=trips))


def test_a_collective_in_two_loops_runs_as_often_as_both_together():
    (found,) = _read(inner='%g = f32[8,4]{1,0} all-gather(%p), dimensions={0}, metadata={op_name="jit(f)/jvp()/dot"}')
    assert (found.kind, found.bytes, found.arrays, found.times, found.bounded) == ("all-gather", 128, 1, 6, True)
    assert found.source == "jit(f)/jvp()/dot"
    assert found.group == 8, "without groups, all devices take part"


def test_a_loop_of_unknown_length_counts_once_and_is_marked():
    (found,) = _read(inner=REDUCE.replace("GROUPS", "{{0,1,2,3},{4,5,6,7}}"), trips="")
    assert (found.times, found.bounded, found.arrays, found.bytes) == (3, False, 2, 16 * 4 * 4 + 3 * 2)


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", 2),
        ("{}", 8),
        ("[2,4]<=[8]", 4),
        ("[4,2]<=[2,2,2]T(2,1,0)", 2),
        ("mesh['a'=4,'b'=1,'c'=2] {'a'}", 4),
        ("mesh['a'=2,'b'=2,'c'=2], device_ids=([2,2,2]T(2,1,0)) {'a','c'}", 4),
        ("mesh['a'=8,'b'=1] {'a':(2)4}", 4),
    ],
)
def test_groups_are_read_in_every_way_that_xla_writes_them(groups, size):
    (found,) = _read(entry=REDUCE.replace("GROUPS", groups))
    assert (found.group, found.times) == (size, 1)


@pytest.mark.parametrize(
    ("line", "kind", "size"),
    [
        ("%s = (f32[4]{0}, f32[32]{0}) all-gather-start(%p), replica_groups=[1,8]<=[8]", "all-gather", 128),
        ("%s = f32[32]{0} all-reduce-start(%p), replica_groups=[1,8]<=[8]", "all-reduce", 128),
        (
            "%s = (pred[4]{0}, pred[4]{0}, u32[], u32[]) collective-permute-start(%p), source_target_pairs={{0,1}}",
            "collective-permute",
            4,
        ),
        ("%s = s8[7]{0} reduce-scatter(%p), replica_groups=[1,8]<=[8], dimensions={0}", "reduce-scatter", 7),
        ("%s = (f8e4m3fn[2,2]{1,0}, u32[2]{0}) all-to-all(%p, %q), replica_groups=[1,8]<=[8]", "all-to-all", 12),
    ],
)
def test_the_bytes_are_those_of_the_result(line, kind, size):
    (found,) = _read(entry=line)
    assert (found.kind, found.bytes) == (kind, size)


def test_the_end_of_an_asynchronous_one_is_not_another_one():
    assert _read(entry="%d = f32[32]{0} all-gather-done(%s)") == []
