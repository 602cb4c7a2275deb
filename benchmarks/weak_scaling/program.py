"""The training step of a sharded decoder, compiled for devices that need not be there: run as a program of its own.

`python -m benchmarks.weak_scaling.program SETTING`, with a `Setting` as JSON, prints a `Compiled` as JSON. Its own
process, as the number of devices and the platform are fixed when JAX starts.
"""

import json
import os
import subprocess
import sys
from typing import NamedTuple

__all__ = ["EIGHT_BILLION", "Compiled", "DecoderSizes", "Setting", "compile_apart", "tpu_compiler"]

# Chips of a v5p slice -> the sides of its torus.
TOPOLOGIES = {8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8", 512: "8x8x8"}


class DecoderSizes(NamedTuple):
    """Of a decoder; see `LanguageModel`."""

    vocabulary: int
    dim: int
    num_layers: int
    heads: int
    kv_heads: int
    hidden: int


EIGHT_BILLION = DecoderSizes(128_256, 4096, 32, 32, 8, 14_336)  # those of Llama 3 8B


class Setting(NamedTuple):
    """What to compile.

    Attributes:
      platform: "abstract" (lowered alone, for devices that are nowhere), "tpu" (v5p, through libtpu's compiler) or
        "cpu" (devices that XLA makes up).
      num_devices: all of them hold a shard of everything, and their own sequences.
      sizes: of the decoder.
      sequences: on each device.
      tokens: of a sequence.
      chunk: positions that are read at a time.
      share: one position in so many is read at every layer; None trains by plain risk.
      dtype: what layers compute in, and weights and gradients travel in.
    """

    platform: str
    num_devices: int
    sizes: DecoderSizes
    sequences: int
    tokens: int
    chunk: int
    share: int | None
    dtype: str


class Compiled(NamedTuple):
    """What the compiler says.

    Attributes:
      sent: kind -> bytes that a device sends in a step.
      counts: kind -> how many collectives a step runs.
      argument_bytes: of the state and the batch, on a device.
      temporary_bytes: on a device.
      seconds: of compilation.
    """

    sent: dict[str, float]
    counts: dict[str, int]
    argument_bytes: int
    temporary_bytes: int
    seconds: float


def tpu_compiler() -> bool:
    """Whether libtpu is installed, which compiles for TPUs wherever it runs (extra ``tpu``)."""
    import importlib.util

    return importlib.util.find_spec("libtpu") is not None


def compile_apart(setting: Setting) -> Compiled:
    """Compiles in a process of its own.

    Raises:
      RuntimeError: with the end of what that process wrote, if it fails.
    """
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={setting.num_devices}"
    # Without TPU_SKIP_MDS_QUERY libtpu looks for the machine that it runs on, and waits.
    # Beside a process that has loaded it, it asks to be allowed.
    own = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "XLA_FLAGS": flags}
    environment = os.environ | own
    command = [sys.executable, "-m", "benchmarks.weak_scaling.program", json.dumps(setting._asdict())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"compiling for {setting.num_devices} devices failed: {done.stderr[-2000:]}")
    return Compiled(**json.loads(done.stdout.splitlines()[-1]))


def main(argument: str) -> None:
    """Compiles, and prints what `compile_apart` reads."""
    fields = json.loads(argument)
    setting = Setting(**fields | {"sizes": DecoderSizes(*fields["sizes"])})
    from benchmarks.weak_scaling.lowering import compiled

    print(json.dumps(compiled(setting)._asdict()))


if __name__ == "__main__":
    main(sys.argv[1])
