"""The benchmarks run, on sizes too small to mean anything."""

import math

import numpy as np
import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import (
    compile_time,
    encoder_throughput,
    fast_weights,
    general_constraints,
    layer_losses,
    torch_peer,
    transformer_forward,
    video_step,
)
from benchmarks.constrained_step.problems import UnrolledSizes
from benchmarks.record import Record, write
from unroll_jax.models import EncoderConfig

# For each benchmark: smaller sizes, and figures of its record.
SHAPE = EncoderConfig(20, dim=8, num_layers=2, num_heads=2, hidden_dim=12)
FEW = general_constraints.QUICK._replace(inputs=8, width=8, batch=6, repeats=2)
RUNS = {
    transformer_forward: (
        {
            "QUICK": transformer_forward.Sizes(2, 4, 5, repeats=((1, 2), (2, 2))),
            "matmul_rate": lambda *sizes: 1e9,
        },
        ("batch_2_gradient_over_plain", "batch_1_forward_recorded_seconds"),
    ),
    encoder_throughput: (
        {"QUICK": encoder_throughput.Sizes(SHAPE, batch=3, tokens=5, repeats=2)},
        ("forward_unroll_jax_seconds", "training_unroll_jax_tokens_a_second"),
    ),
    fast_weights: (
        {"QUICK": fast_weights.Sizes(dim=4, lengths=(64, 128), repeats=1)},
        ("delta_rule_seconds", "delta_rule_128_mebibytes", "mesa_mebibytes_power"),
    ),
    general_constraints: (
        {"QUICK": FEW, "cooper_or_none": lambda: None},
        ("ours, dense, 100 over plain",),
    ),
    layer_losses: (
        {
            "QUICK": layer_losses.LossSizes(
                vocabulary=64, dim=16, num_layers=2, tokens=8
            )
        },
        ("chunked_over_whole_1", "chunked_over_whole_2"),
    ),
    compile_time: (
        {
            "SPEC": compile_time.SPEC._replace(num_tokens=3, token_dim=4),
            "LAYERS": ("feedforward", "layer_norm"),
            "QUICK_LAYERS": ("feedforward", "layer_norm"),
            "DEPTHS": (1, 3),
        },
        (
            "layers_1_seconds",
            "layers_3_over_layers_1",
            "layer_norm_over_layer_norm, plain",
        ),
    ),
    video_step: (
        {"UNROLLED": UnrolledSizes(num_layers=2, dim=16, tokens=3, batch=2), "FEW": 2},
        ("DUST_seconds", "DUST, c moves_seconds"),
    ),
}


@pytest.mark.xdist_group("torch")
@pytest.mark.parametrize("module", RUNS, ids=lambda module: module.__name__)
def test_a_benchmark_runs_without_peers(module, monkeypatch):
    sizes, names = RUNS[module]
    for name, value in sizes.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(torch_peer, "torch_or_none", lambda: None)
    record = module.main(quick=True, peers=True)
    assert set(names) <= set(record.figures)
    assert all(
        0 < value < math.inf
        for name, value in record.figures.items()
        if not name.endswith("power")
    )
    assert not [name for name in record.figures if "torch" in name]


CONDITIONS = {
    "date": "2026-01-01",
    "quick": False,
    "machine": {"cpu": "a CPU", "cores": 2, "accelerator": "none"},
    "versions": {"jax": "1"},
    "allocator": {"keeps_memory": True},
}


def kept(folder, seconds, mebibytes):
    record = Record(
        figures={
            "step_mebibytes": mebibytes,
            "count": 0,
            "power": 1.0 + 0.005 * mebibytes,
        }
    )
    record.time("step_seconds", np.array(seconds))
    write(record, "growth", folder, CONDITIONS)
    return folder


def test_changes_beyond_the_spread_are_marked(capsys, tmp_path):
    old = kept(tmp_path / "old", [0.9, 1.0, 1.1], 10.0)  # a spread of 10%
    new = kept(tmp_path / "new", [1.08, 1.2, 1.32], 10.0)
    assert benchmarks.main(["--compare", str(old), str(new / "growth.json")]) == 0
    printed = capsys.readouterr().out
    assert "4 figures in both, 0 changed" in printed  # by as much as both spreads
    kept(tmp_path / "new", [1.2, 1.3, 1.4], 11.0)
    benchmarks.main(["--compare", str(old), str(new)])
    # and the power, by less than 10%
    assert "4 figures in both, 2 changed" in capsys.readouterr().out


def test_a_constrained_step_takes_little_memory_beyond_a_plain_one():
    """And less than all logits of a layer."""
    sizes = layer_losses.SIZES
    plain_step, constrained = (
        layer_losses.step_mebibytes(sizes, constrained=way) for way in (False, True)
    )
    assert constrained <= layer_losses.BAR * plain_step
    assert constrained < 4 * sizes.tokens * sizes.vocabulary / 2**20
