"""Programs on eight simulated devices, whose number is fixed when JAX starts."""

import os
import subprocess
import sys

from tests.started import environment

__all__ = ["on_eight_devices"]


def on_eight_devices(program: str) -> list[str]:
    variables = environment(
        XLA_FLAGS=(
            f"{os.environ.get('XLA_FLAGS', '')}"
            " --xla_force_host_platform_device_count=8"
        )
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()
