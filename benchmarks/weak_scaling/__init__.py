"""Does training an 8-billion-parameter decoder scale from 8 devices to 512? On paper, and by compiled programs."""

from typing import Any

from benchmarks.timing import table
from benchmarks.weak_scaling.model import ACCELERATORS, flops_a_device, formula_bytes, num_params, step_time
from benchmarks.weak_scaling.program import (
    EIGHT_BILLION,
    Compiled,
    DecoderSizes,
    Setting,
    compile_apart,
    tpu_compiler,
)

__all__ = ["main"]

DEVICES = (8, 16, 32, 64, 128, 256, 512)
COMPILED_AT = (8, 64, 512)
# Two sequences of 4,096 tokens a device are 4 million tokens a step on 512.
LARGE = Setting("tpu", 8, EIGHT_BILLION, sequences=2, tokens=4096, chunk=512, share=32, dtype="bfloat16")
SMALL = Setting("cpu", 8, DecoderSizes(512, 64, 3, 4, 2, 128), 2, 64, chunk=16, share=8, dtype="float32")


def main() -> dict[str, Any]:
    """Prints bytes sent per device and step, by formula and as compiled, and the step times that follow."""
    sizes, layers_and_ends = LARGE.sizes, num_params(LARGE.sizes)
    print(
        f"decoder of {sum(layers_and_ends) / 1e9:.2f} billion parameters ({sizes.num_layers} layers, d = {sizes.dim}, "
        f"vocabulary {sizes.vocabulary}), {LARGE.sequences} x {LARGE.tokens} tokens a device; constraints on every "
        f"layer, one position in {LARGE.share}"
    )
    print("parameters, Adam and batch sharded over one axis of all devices; each layer is gathered twice, as it runs")
    print("forward again in the backward pass; parameters are float32, and travel as bfloat16, as do gradients")
    figures: dict[str, Any] = {}
    if tpu_compiler():
        found = {(devices, LARGE.share): _compiled(devices, LARGE.share) for devices in COMPILED_AT}
        found[COMPILED_AT[0], None] = _compiled(COMPILED_AT[0], None)
        figures |= _judged_large(found)
    else:
        print('without libtpu (pip install "unroll_jax[tpu]"), which compiles for TPUs that are not there:')
        found = {}
        figures |= _judged_small()
    figures |= _table(found)
    _assumptions()
    return figures


def _compiled(devices: int, share: int | None) -> Compiled:
    compiled = compile_apart(LARGE._replace(num_devices=devices, share=share))
    method = "plain risk" if share is None else "constrained"
    kinds = ", ".join(f"{compiled.counts[kind]} {kind} {sent / 1e9:.2f} GB" for kind, sent in compiled.sent.items())
    held, temporary = compiled.argument_bytes / 2**30, compiled.temporary_bytes / 2**30
    print(
        f"  TPU v5p x {devices}, {method}: a device sends {kinds}; state {held:.1f} GiB, temporary {temporary:.1f} GiB"
    )
    return compiled


def _judged_large(found: dict[tuple[int, int | None], Compiled]) -> dict[str, float]:
    """Prints what the compiled programs send over the formula, and what constraints add."""
    figures = {}
    for (devices, share), compiled in found.items():
        expected = sum(formula_bytes(LARGE._replace(num_devices=devices)).values())
        method = "erm" if share is None else "constrained"
        figures[f"{method}_{devices}_bytes"] = sent = sum(compiled.sent.values())
        figures[f"{method}_{devices}_over_formula"] = sent / expected
    least = COMPILED_AT[0]
    added = figures[f"constrained_{least}_bytes"] - figures[f"erm_{least}_bytes"]
    print(f"constraints add {added / 1e6:.2f} MB a step and device on {least} devices")
    return figures


def _judged_small() -> dict[str, float]:
    """The formula, checked on a small decoder and 8 devices that XLA makes up on the CPU."""
    compiled = compile_apart(SMALL)
    expected = sum(formula_bytes(SMALL).values())
    ratio = sum(compiled.sent.values()) / expected
    print(
        f"  the formula is checked on 8 devices that XLA makes up on the CPU and a decoder of "
        f"{sum(num_params(SMALL.sizes)):,} parameters: compiled / formula {ratio:.4f}"
    )
    return {"small_8_over_formula": ratio}


def _table(found: dict[tuple[int, int | None], Compiled]) -> dict[str, float]:
    header = ["devices", "GB sent", "compiled"]
    header += [
        f"{accelerator.name}: {what}"
        for accelerator in ACCELERATORS
        for what in ("ms", "+ network", "overlap", "apart")
    ]
    rows, figures = [], {}
    for devices in DEVICES:
        setting = LARGE._replace(num_devices=devices)
        expected = sum(formula_bytes(setting).values())
        compiled = found.get((devices, LARGE.share))
        row = [
            str(devices),
            f"{expected / 1e9:.2f}",
            "-" if compiled is None else f"{sum(compiled.sent.values()) / 1e9:.2f}",
        ]
        for accelerator in ACCELERATORS:
            time = step_time(setting, expected, accelerator)
            row += [f"{1e3 * time.compute:.0f}", f"{1e3 * time.network:.0f}"]
            row += [f"{time.compute / time.overlapped:.0%}", f"{time.compute / time.apart:.0%}"]
            figures[f"{accelerator.name}_{devices}_overlapped"] = time.compute / time.overlapped
            figures[f"{accelerator.name}_{devices}_apart"] = time.compute / time.apart
        rows.append(row)
        figures[f"formula_{devices}_bytes"] = expected
    print(f"\n{table(header, rows)}\n")
    return figures


def _assumptions() -> None:
    print(f"ms: {flops_a_device(LARGE) / 1e12:.0f} TFLOP a device and step at the published peak, which no program")
    print("reaches: slower computing hides the network better. + network: bytes over published bandwidth, ring")
    print(
        "algorithms, no latency. overlap, apart: share of the peak if the network runs behind the computing, or before"
    )
    print("and after it.")
    for accelerator in ACCELERATORS:
        print(f"{accelerator.name}: {accelerator.published}")
