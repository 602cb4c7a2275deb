"""The allocator keeps what programs free, where it is glibc's and the user has said nothing of it."""

import os
import platform
import subprocess
import sys

import pytest

# Page faults of writing 64 MiB for the tenth time.
FAULTS = """
import resource
import numpy as np
from unroll_jax.train.system.machine import keep_memory
print(keep_memory())
for turn in range(10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(2**23)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def kept_and_faults(**variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", FAULTS]
    printed, faults = subprocess.check_output(command, env=environment | variables, text=True).split()
    return printed == "True", int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator than glibc's")
def test_freed_memory_is_used_again_without_a_page_fault():
    kept, faults = kept_and_faults()
    assert kept
    assert faults < 100


def test_settings_of_the_users_own_stay():
    kept, _ = kept_and_faults(MALLOC_MMAP_THRESHOLD_="1048576")
    assert not kept
