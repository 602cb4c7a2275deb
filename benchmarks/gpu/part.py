"""`python -m benchmarks.gpu.part NAME FILE quick|full`: one part of the benchmark.

Its record goes into the file.
"""

import sys
from pathlib import Path

from benchmarks.gpu import run_part
from unroll_jax.train.system.machine import keep_memory

if __name__ == "__main__":
    keep_memory()
    run_part(sys.argv[1], Path(sys.argv[2]), quick=sys.argv[3] == "quick")
