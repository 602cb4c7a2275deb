"""Does training an 8-billion-parameter decoder scale from 8 devices to 512? On paper, and by programs."""

from benchmarks.record import Record
from benchmarks.timing import table
from benchmarks.weak_scaling.lowering import lowered_bytes
from benchmarks.weak_scaling.model import ACCELERATORS, flops_a_device, formula_bytes, num_params, step_time
from benchmarks.weak_scaling.program import compile_apart, tpu_compiler
from benchmarks.weak_scaling.setting import EIGHT_BILLION, Compiled, DecoderSizes, Setting

__all__ = ["main"]

DEVICES = (8, 16, 32, 64, 128, 256, 512)
COMPILED_AT = (8, 512)
# Two sequences of 4,096 tokens a device are 4 million tokens a step on 512.
LARGE = Setting("abstract", 8, EIGHT_BILLION, sequences=2, tokens=4096, chunk=512, share=32, dtype="bfloat16")
SMALL = Setting("cpu", 8, DecoderSizes(512, 64, 3, 4, 2, 128), 2, 64, chunk=16, share=8, dtype="float32")


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints bytes sent per device and step, by formula, as lowered and as compiled, and the step times that follow."""
    del peers  # there are none
    sizes, numbers = LARGE.sizes, COMPILED_AT if quick else DEVICES
    print(
        f"decoder of {sum(num_params(sizes)) / 1e9:.2f} billion parameters ({sizes.num_layers} layers, "
        f"d = {sizes.dim}, vocabulary {sizes.vocabulary}), {LARGE.sequences} x {LARGE.tokens} tokens a device; "
        f"constraints on every layer, one position in {LARGE.share}"
    )
    print("parameters, Adam's state and batch are sharded over all devices; each layer is gathered twice, as it runs")
    print("forward again in the backward pass, and gradients are scattered; float32 at home, bfloat16 on the way")
    constrained = {devices: _lowered(devices, LARGE.share) for devices in numbers}
    plain = {devices: _lowered(devices, None) for devices in numbers}
    added = max(constrained[devices] - plain[devices] for devices in numbers)
    print(f"constraints add at most {added:.0f} bytes a step and device")
    figures = _checked() | {"bytes_added": added} | _table(constrained, {} if quick else _compiled_for_tpu())
    _print_assumptions()
    return Record(figures)


def _lowered(devices: int, share: int | None) -> float:
    return sum(lowered_bytes(LARGE._replace(num_devices=devices, share=share)).values())


def _checked() -> dict[str, float]:
    """Returns the ratio of compiled to computed traffic, for a small decoder on devices that XLA makes up."""
    ratio = sum(compile_apart(SMALL).sent.values()) / sum(formula_bytes(SMALL).values())
    print(
        f"check: compiled for {SMALL.num_devices} devices made up on the CPU, a decoder of "
        f"{sum(num_params(SMALL.sizes)):,} parameters sends {ratio:.4f} of the formula, which counts matrices alone"
    )
    return {"small_compiled_over_formula": ratio}


def _compiled_for_tpu() -> dict[int, Compiled]:
    """The program compiled for TPU v5p, at some numbers of devices."""
    if not tpu_compiler():
        print('without libtpu (pip install "unroll_jax[tpu]"), which compiles for TPUs that are not there')
        return {}
    programs = {}
    for devices in COMPILED_AT:
        programs[devices] = compiled = compile_apart(LARGE._replace(platform="tpu", num_devices=devices))
        kinds = ", ".join(f"{compiled.counts[kind]} {kind} {sent / 1e9:.2f} GB" for kind, sent in compiled.sent.items())
        state, temporary = compiled.argument_bytes / 2**30, compiled.temporary_bytes / 2**30
        print(
            f"compiled for {devices} TPU v5p, a device sends {kinds}; state {state:.1f} GiB, temporary {temporary:.1f}"
        )
    return programs


def _table(lowered: dict[int, float], compiled: dict[int, Compiled]) -> dict[str, float]:
    titles = [
        f"{accelerator.name}: {what}" for accelerator in ACCELERATORS for what in ("ms", "network", "within", "after")
    ]
    rows, figures = [], {}
    for devices, sent in lowered.items():
        setting = LARGE._replace(num_devices=devices)
        expected = sum(formula_bytes(setting).values())
        figures |= {f"formula_{devices}_bytes": expected, f"lowered_{devices}_bytes": sent}
        row = [str(devices), f"{expected / 1e9:.2f}", f"{sent / 1e9:.2f}", "-"]
        if devices in compiled:
            figures[f"tpu_{devices}_bytes"] = total = sum(compiled[devices].sent.values())
            row[-1] = f"{total / 1e9:.2f}"
        for accelerator in ACCELERATORS:
            time = step_time(setting, sent, accelerator)
            shares = time.compute / time.overlapped, time.compute / time.apart
            row += [f"{1e3 * time.compute:.0f}", f"{1e3 * time.network:.0f}", *(f"{share:.0%}" for share in shares)]
            for name, share in zip(("overlapped", "apart"), shares, strict=True):
                figures[f"{accelerator.name}_{devices}_{name}"] = share
        rows.append(row)
    print(f"\n{table(['devices', 'formula GB', 'lowered', 'compiled', *titles], rows)}\n")
    return figures


def _print_assumptions() -> None:
    print(
        f"ms: {flops_a_device(LARGE) / 1e12:.0f} TFLOP a device and step at the published peak, which no program "
        "reaches: slower computing hides the network better"
    )
    print("network: the lowered bytes at the published bandwidth, by ring algorithms, without latency")
    print("within, after: share of the peak if the network runs behind the computing, or before and after it")
    for accelerator in ACCELERATORS:
        print(f"{accelerator.name}: {accelerator.published}")


if __name__ == "__main__":
    main()
