"""The work of two processes, measured in new processes: ``python -m tests.sharding.pair OUT COORDINATOR NUMBER``."""

import sys
from pathlib import Path

import jax
import numpy as np

from tests.sharding.measure import options, trained, video
from unroll_jax.train.config.commands import Membership
from unroll_jax.train.system.distributed import is_first, join

PAIRS = {("options", "two data"): (options, "data=2"), ("video", "two fsdp"): (video, "fsdp=2")}


def main(out: Path, coordinator: str, number: int) -> None:
    """Writes pair.npz: the same as one device, in float64."""
    join(Membership(coordinator, 2, number))
    jax.config.update("jax_enable_x64", True)
    arrays = {}
    for (name, key), (model, mesh) in PAIRS.items():
        leaves, _ = trained(model(mesh, "float64"))
        arrays |= {f"{name}/{key}/float64/{path}": leaf for path, leaf in leaves.items()}
    if is_first():
        np.savez(out / "pair.npz", allow_pickle=False, **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
