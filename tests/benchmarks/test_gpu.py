"""The command for GPUs: its parts measure on any device, and lower for an H100."""

import jax
import pytest

from benchmarks import gpu
from benchmarks.constrained_step.problems import Sizes, UnrolledSizes
from benchmarks.gpu import ahead, decoder, equilibria, loop, opteq, pairs, steps
from benchmarks.record import Record

OPTEQ = opteq.Sizes(
    batch=2, side=6, changed={"widths": (2,) * 5, "features": 2}, product=16, repeats=1
)
EQUILIBRIA = equilibria.Sizes(dim=8, channels=2, side=5, batch=2, repeats=1)
LLAMA = decoder.LLAMA._replace(
    num_layers=2, dim=16, heads=4, kv_heads=2, hidden=24, vocabulary=11
)
DECODER = decoder.DecoderSizes(
    LLAMA._replace(tokens=8, chunk=4, attention=None), 4, (4, 2), 32, 1
)
TINY = Sizes(
    num_layers=2, dim=8, heads=2, hidden=12, vocabulary=11, tokens=8, batch=2, chunk=2
)
STEPS = steps.StepSizes(UnrolledSizes(2, 4, 3, 2), TINY, product=16, repeats=2)
# For each part: tiny sizes, and how the name of one of its figures ends.
MEASURED = {
    "pairs": (pairs.Sizes((8,), 16, 3, (), (), 1, None), "over_cudnn"),
    "decoder": (DECODER, "constrained_over_plain"),
    "equilibria": (EQUILIBRIA, "over_jaxopt"),
    "opteq": (OPTEQ, "opteq_share_of_peak"),
    "precision": (EQUILIBRIA, "default residual"),
    "memory": (STEPS, "planned_bytes"),
    "steps": (STEPS, "encoder_constrained_share_of_tf32"),
    "loop": (
        loop.Sizes(layers=2, dim=4, batch=8, steps=20, warmup=4),
        "loop_over_bare",
    ),
}


@pytest.mark.parametrize("name", MEASURED)
def test_every_part_measures_on_any_device(name, monkeypatch):
    """XLA code replaces every kernel on a CPU."""
    attention, cells, (sizes, ending) = (
        pairs.unroll_jax.attention,
        equilibria._cells,
        MEASURED[name],
    )
    monkeypatch.setattr(
        pairs.unroll_jax,
        "attention",
        lambda kernel, block, **options: attention(**options),
    )
    monkeypatch.setattr(equilibria, "_cells", lambda sizes: cells(sizes)[:1])
    monkeypatch.setattr(equilibria, "WAYS", ("Anderson 5, cg",))
    records = gpu.PARTS[name].measure(sizes)
    *_, record = [records] if isinstance(records, Record) else records
    figures = record.figures
    assert any(figure.endswith(ending) for figure in figures)
    assert all(
        value > 0.0 for figure, value in figures.items() if figure.endswith("seconds")
    )
    assert figures.get("loop_compiled_in_20_steps", 0) == 0


@pytest.mark.skipif(
    not hasattr(jax.sharding, "AbstractDevice"),
    reason="this JAX has no abstract GPU to lower for",
)
def test_programs_of_full_size_lower_for_an_h100():
    """Every kernel for pairs, and the decoder's constrained step, whose products are
    known."""
    of_pairs = pairs.programs(pairs.FULL._replace(rhos=(), blocks=()))
    for kernel, words in (
        ("pallas", ahead.TRITON),
        ("cudnn", "fmha"),
        ("xla", "dot_general"),
    ):
        name, program = next(
            (name, program)
            for name, program in of_pairs.items()
            if program.kernel == kernel
        )
        module, flops = ahead.for_an_h100(program)
        assert words in module, name
        if kernel == "pallas":
            # two products forward, five backward
            assert flops == 7 * 2.0 * 8 * 4096**2 * 64
    programs = decoder.programs(decoder.FULL)
    module, flops = ahead.for_an_h100(programs["constrained step, batch 1"])
    assert "fmha" in module
    state, _ = programs["constrained step, batch 1"].arguments
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    embedding = 32_000 * 2048
    assert parameters == pytest.approx(1.2e9, rel=0.02)
    # Forward, backward, and once more but for the last product of a layer. 1 position
    # in 32 is read at 25 states.
    layers, read = (
        4 * (parameters - 2 * embedding) - 24 * 2048 * 5632,
        4 * (1 + 25 / 32) * embedding,
    )
    assert flops == pytest.approx(2.0 * 2048 * (layers + read), rel=0.005)
