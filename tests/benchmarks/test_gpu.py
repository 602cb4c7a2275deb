"""The command for GPUs: its parts measure on any device, and one that fails does not end the others."""

import itertools
import math
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import unroll_jax as uj
from benchmarks import gpu
from benchmarks.constrained_step.problems import Sizes, UnrolledSizes
from benchmarks.gpu import ahead, decoder, equilibria, loop, opteq, pairs, steps, tested
from benchmarks.record import Record
from unroll_jax.energies.equilibrium import convolution

OPTEQ = opteq.Sizes(batch=2, side=6, changed={"widths": (2,) * 5, "features": 2}, product=16, repeats=1)
EQUILIBRIA = equilibria.Sizes(dim=8, channels=2, side=5, batch=2, repeats=1)
LLAMA = decoder.LLAMA._replace(num_layers=2, dim=16, heads=4, kv_heads=2, hidden=24, vocabulary=11)
DECODER = decoder.DecoderSizes(LLAMA._replace(tokens=8, chunk=4, attention=None), 4, (4, 2), 32, 1)
TINY = Sizes(num_layers=2, dim=8, heads=2, hidden=12, vocabulary=11, tokens=8, batch=2, chunk=2)
STEPS = steps.StepSizes(UnrolledSizes(2, 4, 3, 2), TINY, product=16, repeats=2)


def last(records):
    *_, record = records
    return record


def share(record, name, peak):
    rate = record.floors[f"{name}_seconds"]["flops"] / record.figures[f"{name}_seconds"]
    return rate / record.figures[f"{peak}_flops_a_second"]


def test_without_a_gpu_programs_are_lowered_and_nothing_is_measured(capsys, monkeypatch):
    parts = {"opteq": gpu.PARTS["opteq"]._replace(sizes=(OPTEQ, OPTEQ)), "loop": gpu.PARTS["loop"]}
    monkeypatch.setattr(gpu, "PARTS", parts)
    monkeypatch.setattr(opteq, "NETWORKS", {"plain": opteq.NETWORKS["plain"]})  # compiles in a tenth of the time
    assert gpu.main(only=["opteq", "loop"]) is None
    printed = capsys.readouterr().out
    assert f"no GPU here (JAX runs on {jax.default_backend()}): nothing to measure" in printed
    for figure in ("argument_mebibytes", "product_gigaflops", "lowered_kilobytes", "temporary_mebibytes"):
        assert f"plain step {figure}" in printed


def test_a_part_that_fails_is_reported_and_the_others_go_on(capsys, monkeypatch, tmp_path):
    def measured(name, seconds, *, quick, file):
        assert file == tmp_path / "gpu" / f"{name}.json"
        if name == "pairs":
            raise RuntimeError("no Triton")
        return Record({"passed": 3.0}, notes=["a note"])

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(gpu, "measured_apart", measured)
    record = gpu.main(quick=True, out=tmp_path)
    assert record.figures == {f"{name}: passed": 3.0 for name in gpu.DEFAULT if name != "pairs"}
    assert "pairs failed: no Triton" in record.notes
    assert "opteq: a note" in record.notes
    assert "pairs failed: no Triton" in capsys.readouterr().out
    assert set(gpu.main(only=["loop"], out=tmp_path).figures) == {"loop: passed"}


def test_a_part_runs_in_a_process_of_its_own_and_ends_with_its_budget(tmp_path):
    began = time.perf_counter()
    with pytest.raises(RuntimeError, match=r"not done after 0 s"):
        gpu.measured_apart("steps", 0.3, quick=True, file=tmp_path / "gpu" / "steps.json")
    assert time.perf_counter() - began < 30
    with pytest.raises(RuntimeError, match="exit code 1: KeyError: 'nope'"):
        gpu.measured_apart("nope", 60, quick=True, file=tmp_path / "nope.json")


def test_a_record_comes_back_from_a_part_and_keeps_its_figures_where_that_is_cut_off(monkeypatch, tmp_path):
    def measure(sizes):
        record = Record({"a": sizes})
        yield record
        record.figures["b"] = 2.0
        yield record
        raise ValueError("out of memory")

    class Process:
        returncode = 1

        def __init__(self, command, **options):
            _, _, _, name, file, sizes = command
            with pytest.raises(ValueError, match="out of memory"):
                gpu.run_part(name, Path(file), quick=sizes == "quick")

        def communicate(self, timeout):
            return None, "Traceback\nValueError: out of memory\n"

        def poll(self):
            return 1

    whole = gpu.Part("", lambda sizes: Record({"a": sizes}), (0.0, 1.0), 1.0)
    monkeypatch.setattr(gpu, "PARTS", {"one": whole._replace(measure=measure), "whole": whole})
    monkeypatch.setattr(gpu.subprocess, "Popen", Process)
    record = gpu.measured_apart("one", 1.0, quick=True, file=tmp_path / "one.json")
    assert record.figures == {"a": 1.0, "b": 2.0}
    assert record.notes == ["cut off: exit code 1: ValueError: out of memory"]
    gpu.run_part("whole", tmp_path / "whole.json", quick=True)
    assert '"figures": {"a": 1.0}' in (tmp_path / "whole.json").read_text()


def test_kernels_are_timed_against_each_other(monkeypatch):
    """XLA code replaces every kernel, as tests have only a CPU; the layer with blocks of 32 does not compile."""
    attention = uj.attention

    def layer(kernel, block, **options):
        made = attention(**options)
        return made._replace(step_and_energy=None) if block == 32 else made

    monkeypatch.setattr(pairs.unroll_jax, "attention", layer)
    record = last(pairs.measure(pairs.Sizes((8, 4), 16, 3, ("log",), (16, 32), 1, None)))
    assert len(record.notes) == 1
    assert "block 32" in record.notes[0]
    assert "failed" in record.notes[0]
    step, both = "step_and_gradient", "step_and_energy_and_gradient"
    for over, ways in {
        "over_cudnn": {f"pallas: {step}", f"pallas: {both}", f"pallas, block 16: {both}"},
        "over_xla": {f"pallas: {both}", f"pallas, block 16: {both}"},
    }.items():
        assert {f"n=8, bfloat16, softmax, {way} {over}" for way in ways} <= set(record.figures)
    for case in ("n=4, bfloat16", "n=8, float32"):
        assert f"{case}, log, pallas: {both} over_xla" in record.figures
    assert not any("float32" in name and "cudnn" in name for name in record.figures)


@pytest.mark.skipif(not hasattr(jax.sharding, "AbstractDevice"), reason="this JAX has no abstract GPU to lower for")
def test_programs_of_full_size_lower_for_an_h100():
    """Every kernel for pairs, and the decoder's constrained step, whose products are known."""
    of_pairs = pairs.programs(pairs.FULL._replace(rhos=(), blocks=()))
    for kernel, words in (("pallas", ahead.TRITON), ("cudnn", "fmha"), ("xla", "dot_general")):
        name, program = next((name, program) for name, program in of_pairs.items() if program.kernel == kernel)
        module, flops = ahead.for_an_h100(program)
        assert words in module, name
        if kernel == "pallas":
            assert flops == 7 * 2.0 * 8 * 4096**2 * 64  # two products forward, five backward
    programs = decoder.programs(decoder.FULL)
    module, flops = ahead.for_an_h100(programs["constrained step, batch 1"])
    assert "fmha" in module
    state, _ = programs["constrained step, batch 1"].arguments
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    embedding = 32_000 * 2048
    assert parameters == pytest.approx(1.2e9, rel=0.02)
    # Forward, backward, and once more but for the last product of a layer; 1 position in 32 is read at 25 states.
    layers, read = 4 * (parameters - 2 * embedding) - 24 * 2048 * 5632, 4 * (1 + 25 / 32) * embedding
    assert flops == pytest.approx(2.0 * 2048 * (layers + read), rel=0.005)


def test_the_decoder_s_share_of_the_peak_is_of_what_a_token_takes(monkeypatch):
    monkeypatch.setattr(decoder, "BAR", math.inf)  # a trace is made below the bar
    model = DECODER.model
    record = last(decoder.measure(DECODER))
    figures = record.figures
    flops = 6 * figures["parameters"] + 6 * model.num_layers * model.dim * model.tokens
    rate = figures["plain_tokens_a_second"] * flops
    assert figures["plain_share_of_peak"] == pytest.approx(rate / figures["peak_flops_a_second"])
    assert figures["plain_tokens_a_second"] == pytest.approx(4 * 8 / figures["plain_seconds"])
    assert figures["constrained_over_plain"] > 0.0
    assert figures["batch"] == 4
    assert sum(note.startswith("not a product: ") for note in record.notes) == 3


def test_the_batch_is_the_largest_that_fits(monkeypatch):
    device = SimpleNamespace(memory_stats=lambda: {"bytes_limit": 1000})
    planned = {8: 990, 4: 600}
    monkeypatch.setattr(decoder.jax, "devices", lambda: [device])
    monkeypatch.setattr(decoder, "_planned", lambda sizes, batch: 200 + 100 * batch)
    monkeypatch.setattr(decoder, "_step", lambda sizes, batch, kind: SimpleNamespace(program=batch))
    monkeypatch.setattr(decoder, "planned_bytes", planned.__getitem__)
    assert decoder._largest(DECODER._replace(batches=(16, 8, 4)))[1] == 4
    with pytest.raises(RuntimeError, match="no batch of"):
        decoder._largest(DECODER._replace(batches=(16,)))


def few_cells(monkeypatch, count):
    cells = equilibria._cells
    monkeypatch.setattr(equilibria, "_cells", lambda sizes: cells(sizes)[:count])


def ending_in(record, words):
    return [value for name, value in record.figures.items() if name.endswith(words)]


def test_equilibria_are_raced_against_jaxopt(monkeypatch):
    few_cells(monkeypatch, 2)
    monkeypatch.setattr(equilibria, "WAYS", ("Anderson 5, cg",))
    record = last(equilibria.measure(EQUILIBRIA))
    assert len(ending_in(record, "residual")) == 3  # ours of both cells, theirs of the one that is symmetric
    assert max(ending_in(record, "residual")) <= 1e-5
    assert len(ending_in(record, "over_jaxopt")) == 1


def test_equilibria_are_compared_with_float64_at_both_precisions(monkeypatch):
    few_cells(monkeypatch, 1)
    record = equilibria.measure_precision(EQUILIBRIA)
    assert len(ending_in(record, "highest residual")) == len(ending_in(record, "default residual")) == 2
    assert max(ending_in(record, "highest residual")) <= 1e-5
    assert max(ending_in(record, "highest gradient error")) < 1e-3
    assert set(record.spreads) == {name for name in record.figures if name.endswith("seconds")}


def test_the_published_network_is_timed_by_the_image():
    record = last(opteq.measure(OPTEQ))
    figures = record.figures
    for name in ("opteq", "plain"):
        assert figures[f"{name}_share_of_peak"] == pytest.approx(share(record, name, "peak"))
        hours = 200 * 50_000 / figures[f"{name}_images_a_second"] / 3600
        assert figures[f"{name}_hours_for_200_epochs"] == pytest.approx(hours)
    params, _ = opteq.programs(opteq.FULL._replace(batch=1))["opteq step"].arguments[0]
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 199_338


def test_products_are_counted_wherever_they_are():
    weight, image, kernel = jnp.ones((3, 3)), jnp.ones((2, 5, 5, 4)), jnp.ones((3, 3, 4, 6))

    def looped(y):
        return jax.lax.scan(lambda y, _: (jax.checkpoint(jnp.matmul)(y, weight), None), y, length=7)[0]

    assert ahead.product_flops(jax.make_jaxpr(looped)(jnp.ones((2, 3))).jaxpr) == 7 * 2 * 2 * 3 * 3
    convolved = jax.make_jaxpr(convolution.convolve)(kernel, image).jaxpr
    assert ahead.product_flops(convolved) == 2 * (2 * 5 * 5 * 6) * (3 * 3 * 4)


def test_shares_of_the_peak_are_operations_over_seconds():
    record = steps.measure(STEPS)
    for name, peak in itertools.product(("encoder_plain", "encoder_constrained"), steps.PEAKS):
        assert record.figures[f"{name}_share_of_{peak}"] == pytest.approx(share(record, name, f"peak_{peak}"))


def test_planned_memory_holds_the_state_at_least():
    record = steps.measure_memory(STEPS)
    step = steps.compiled_step(steps.encoder(TINY), constrained=True)
    state = sum(leaf.nbytes for leaf in jax.tree.leaves((step.state, step.batch)))
    assert state <= record.figures["planned_bytes"] < 100 * state
    assert ("measured_bytes" in record.figures) == bool(jax.devices()[0].memory_stats())


def test_the_loop_compiles_nothing_after_its_first_step():
    record = loop.measure(loop.Sizes(layers=2, dim=4, batch=8, steps=20, warmup=4))
    assert record.figures["loop_compiled_in_20_steps"] == 0
    assert record.figures["loop_steps_a_second"] > 0.0
    assert math.isfinite(record.figures["loop_over_bare"])


def test_tests_marked_gpu_are_counted(tmp_path):
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "pytestmark = pytest.mark.gpu\n"
        "def test_right():\n    pass\n"
        "def test_wrong():\n    assert 1 == 2\n"
        "def test_elsewhere():\n    pytest.skip('no GPU')\n"
    )
    record = tested.measure(tmp_path)
    assert (record.figures, record.notes) == ({"passed": 1, "failed": 1, "skipped": 1}, ["failed: test_wrong"])
    (tmp_path / "test_some.py").unlink()
    with pytest.raises(ValueError, match=r"no file below .* has a test marked gpu"):
        tested.measure(tmp_path)
