"""The command for GPUs: its parts measure on any device, and one that fails does not end the others."""

import math
import time

import jax
import pytest

from benchmarks import gpu
from benchmarks.constrained_step.problems import Sizes, UnrolledSizes
from benchmarks.gpu import attention, loop, precision, steps, tested
from benchmarks.record import Record

TINY = Sizes(num_layers=2, dim=8, heads=2, hidden=12, vocabulary=11, tokens=8, batch=2, chunk=2)
STEPS = steps.StepSizes(UnrolledSizes(2, 4, 3, 2), TINY, product=16, repeats=2)


def test_without_a_gpu_one_line_is_printed_and_nothing_measured(capsys, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert gpu.main() is None
    assert capsys.readouterr().out == "no GPU here (JAX runs on cpu): nothing to measure\n"


def test_parts_take_eight_minutes_at_most():
    assert sum(part.seconds for part in gpu.PARTS.values()) <= 480


def test_a_part_that_fails_is_reported_and_the_others_go_on(capsys, monkeypatch):
    def measured(name, seconds, *, quick):
        if name == "attention":
            raise RuntimeError("no cuDNN")
        return Record({"passed": 3.0}, notes=["a note"])

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(gpu, "measured_apart", measured)
    record = gpu.main(quick=True)
    assert record.figures == {f"{name}: passed": 3.0 for name in gpu.PARTS if name != "attention"}
    assert "attention failed: no cuDNN" in record.notes
    assert "loop: a note" in record.notes
    assert "attention failed: no cuDNN" in capsys.readouterr().out


def test_a_part_runs_in_a_process_of_its_own_and_ends_with_its_budget():
    began = time.perf_counter()
    with pytest.raises(RuntimeError, match=r"not done after 0 s"):
        gpu.measured_apart("steps", 0.3, quick=True)
    assert time.perf_counter() - began < 30
    with pytest.raises(RuntimeError, match="exit code 1: KeyError: 'nope'"):
        gpu.measured_apart("nope", 60, quick=True)


def test_a_record_comes_back_from_a_part(monkeypatch, tmp_path):
    record = Record({"a": 1.0}, notes=["b"])
    part = gpu.Part("", lambda sizes: record if sizes == "small" else None, ("large", "small"), 1.0)
    monkeypatch.setattr(gpu, "PARTS", {"one": part})
    gpu.run_part("one", tmp_path / "record.json", quick=True)
    assert '"figures": {"a": 1.0}' in (tmp_path / "record.json").read_text()


def test_attention_is_compared_with_float64():
    record = attention.measure(attention.Sizes(2, 16, 8, repeats=2))
    assert record.figures["calls_cudnn"] == (jax.default_backend() == "gpu")
    for what in ("step", "gradient"):
        for way in ("own", "fused"):
            assert 1e-4 < record.figures[f"{way}_{what}_error"] < 2e-2  # bfloat16 has three digits
    assert record.figures["fused_over_own"] > 0.0


def test_equilibria_are_compared_with_float64_at_both_precisions():
    record = precision.measure(precision.Sizes(dim=8, channels=2, side=5, batch=2, repeats=1))
    residuals = {name: value for name, value in record.figures.items() if name.endswith("highest residual")}
    assert len(residuals) == 4
    assert max(residuals.values()) <= 1e-5
    errors = [value for name, value in record.figures.items() if name.endswith("highest gradient error")]
    assert max(errors) < 1e-3
    assert set(record.spreads) == {name for name in record.figures if name.endswith("seconds")}


def test_shares_of_the_peak_are_operations_over_seconds():
    record = steps.measure(STEPS)
    figures = record.figures
    for kind in ("plain", "constrained"):
        floor = record.floors[f"encoder_{kind}_seconds"]["flops"]
        rate = floor / figures[f"encoder_{kind}_seconds"]
        for peak in ("bfloat16", "tf32", "float32"):
            share = figures[f"encoder_{kind}_share_of_{peak}"]
            assert share == pytest.approx(rate / figures[f"peak_{peak}_flops_a_second"])


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
    assert record.figures == {"passed": 1, "failed": 1, "skipped": 1}
    assert record.notes == ["failed: test_wrong"]
    (tmp_path / "test_some.py").unlink()
    with pytest.raises(ValueError, match=r"no file below .* has a test marked gpu"):
        tested.measure(tmp_path)


def test_tests_that_need_a_gpu_are_skipped_without_one():
    record = tested.measure(tested.ROOT / "tests")
    if jax.default_backend() != "gpu":
        assert record.figures["passed"] == record.figures["failed"] == 0
    assert sum(record.figures.values()) > 2
