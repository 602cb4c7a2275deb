"""The training step of a sharded decoder, compiled for devices that need not be there: run as a program of its own.

`python -m benchmarks.weak_scaling.program SETTING`, with a `Setting` as JSON, prints a `Compiled` as JSON. Its own
process, as the number of devices and the platform are fixed when JAX starts.
"""

import json
import os
import subprocess
import sys

from benchmarks.weak_scaling.lowering import compiled
from benchmarks.weak_scaling.setting import Compiled, DecoderSizes, Setting

__all__ = ["compile_apart", "tpu_compiler"]


def tpu_compiler() -> bool:
    """Returns whether libtpu is installed, which compiles for TPUs on any machine (extra ``tpu``)."""
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
    variables = {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "XLA_FLAGS": flags,
    }
    environment = os.environ | variables
    command = [sys.executable, "-m", "benchmarks.weak_scaling.program", json.dumps(setting._asdict())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"compiling for {setting.num_devices} devices failed: {done.stderr[-2000:]}")
    return Compiled(**json.loads(done.stdout.splitlines()[-1]))


def main(argument: str) -> None:
    """Compiles, and prints what `compile_apart` reads."""
    fields = json.loads(argument)
    setting = Setting(**fields | {"sizes": DecoderSizes(*fields["sizes"])})
    print(json.dumps(compiled(setting)._asdict()))


if __name__ == "__main__":
    main(sys.argv[1])
