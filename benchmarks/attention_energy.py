"""What does an attention energy cost as sequences grow? Value and gradient from 128 to 16,384 tokens."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import unroll_jax
from benchmarks.timing import interleaved, matmul_rate, power_of, table, temporary_mebibytes
from unroll_jax.energies import AttentionParams

__all__ = ["main"]

SIZES, DIM = (128, 256, 512, 1024, 2048, 4096, 8192, 16384), 64
DENSE_UP_TO = 8192  # beyond, the dense expression's temporary arrays take gigabytes
FITTED_FROM = 1024  # below, the cost of a call counts
BAR, BAR_MEBIBYTES = 1.3, 256.0


def main() -> dict[str, float]:
    """Prints time and temporary memory of the library and of a dense expression, both fitted as powers of n."""
    rows, times, memory, ratios = [], {}, {}, {}
    rate = matmul_rate(1024, 1024, 1024)
    for n in SIZES:
        z = jax.random.normal(jax.random.key(0), (n, DIM)) / DIM**0.5
        compiled = {"blocks": _compiled(_energy, z)} | ({"dense": _compiled(_dense, z)} if n <= DENSE_UP_TO else {})
        runs = {
            name: lambda program=program, z=z: jax.block_until_ready(program(z)) for name, program in compiled.items()
        }
        seconds = interleaved(runs, repeats=int(np.clip(2**24 / n**2, 5, 100)))
        median = {name: float(np.median(values)) for name, values in seconds.items()}
        mebibytes = {name: temporary_mebibytes(program) for name, program in compiled.items()}
        times[n], memory[n] = median["blocks"], mebibytes["blocks"]
        if "dense" in median:
            ratios[n] = median["blocks"] / median["dense"]
        rows.append(_row(n, median, mebibytes, _flops(n) / rate))
    exponents = {"time": power_of(times, FITTED_FROM), "memory": power_of(memory, FITTED_FROM)}
    worst, peak = max(ratios.values()), memory[max(SIZES)]
    print(f"value and gradient of the softmax pair energy, d = {DIM}, one head, float32, {jax.default_backend()}")
    print(table(["n", "ms", "dense ms", "ratio", "floor ms", "temp MiB", "dense MiB"], rows))
    print(f"from n = {FITTED_FROM}: time as n^{exponents['time']:.2f}, temporary memory as n^{exponents['memory']:.2f}")
    print(f"over the dense expression at most {worst:.2f} (bar {BAR:.2f}), for n up to {max(ratios)}")
    print(f"temporary memory at n = {max(SIZES)}: {peak:.0f} MiB (bar {BAR_MEBIBYTES:.0f})")
    print(
        "floor: two products of n x n x d (distances, and weights with tokens), 4 n^2 d operations at the rate of a "
        f"1024 x 1024 x 1024 product, {rate / 1e9:.0f} GFLOP/s; bytes, 8 n d, are nothing beside it"
    )
    return {
        "worst_ratio": worst,
        "peak_mebibytes": peak,
        "time_exponent": exponents["time"],
        "memory_exponent": exponents["memory"],
        **{f"n_{n}_seconds": value for n, value in times.items()},
        **{f"n_{n}_ratio": value for n, value in ratios.items()},
    }


def _energy(z: jax.Array) -> jax.Array:
    return unroll_jax.attention().energy(AttentionParams(None), z, None)


def _dense(z: jax.Array) -> jax.Array:
    """The same arithmetic in one expression: -1/2 sum over u != v of exp(-|z_u - z_v|^2 / 2)."""
    halves = 0.5 * jnp.sum(z**2, axis=-1)
    distances = halves[:, None] + halves[None, :] - z @ z.T
    others = ~jnp.eye(len(z), dtype=bool)
    return -0.5 * jnp.sum(jnp.where(others, jnp.exp(-distances), 0.0))


def _compiled(energy: Any, z: jax.Array) -> jax.stages.Compiled:
    return jax.jit(jax.value_and_grad(energy)).lower(z).compile()


def _flops(n: int) -> float:
    return 4.0 * n**2 * DIM


def _row(n: int, median: dict[str, float], mebibytes: dict[str, float], floor: float) -> list[str]:
    row = [str(n), f"{1e3 * median['blocks']:.2f}"]
    if "dense" in median:
        row += [f"{1e3 * median['dense']:.2f}", f"{median['blocks'] / median['dense']:.2f}"]
    else:
        row += ["-", "-"]
    row += [f"{1e3 * floor:.2f}", f"{mebibytes['blocks']:.1f}"]
    return [*row, f"{mebibytes['dense']:.1f}" if "dense" in mebibytes else "-"]


if __name__ == "__main__":
    main()
