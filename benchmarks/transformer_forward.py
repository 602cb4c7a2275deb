"""What does a transformer with its energies cost? Twelve layers against the same equations in PyTorch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import unroll_jax
from benchmarks import torch_peer
from benchmarks.timing import interleaved, matmul_rate, table
from unroll_jax.energies import TransformerParams

__all__ = ["main"]

NUM_LAYERS, DIM, TOKENS, BATCHES = 12, 300, 230, (1, 32)
REPEATS = {1: 20, 32: 8}
BARS = {"recorded / plain": 1.10, "recorded / torch compiled": 1.0, "recorded / torch eager": 1 / 1.5}


def main() -> dict[str, float]:
    """Prints medians of interleaved runs, forward alone and with the gradient in the weights, and their ratios."""
    with_torch = torch_peer.torch_or_none() is not None
    print(f"{NUM_LAYERS} tied layers, d = {DIM}, n = {TOKENS}, float32, {jax.default_backend()}")
    if not with_torch:
        print('without PyTorch: pip install "unroll_jax[peers]" to compare with it')
    rate, figures = matmul_rate(32 * TOKENS, DIM, DIM), {}
    for batch in BATCHES:
        arrays = _draw(batch)
        for what, build in (("forward", _forward), ("gradient", _gradient)):
            candidates = {
                "recorded": build(arrays, record="energy"),
                "plain": build(arrays, record=None),
                **(_peers(arrays, what) if with_torch else {}),
            }
            seconds = interleaved(candidates, repeats=REPEATS[batch], warmup=3)
            median = {name: float(np.median(values)) for name, values in seconds.items()}
            floor = _flops(batch) * (3.0 if what == "gradient" else 1.0) / rate
            print(f"\nbatch {batch}, {what}, {REPEATS[batch]} runs")
            print(table(["who", "median ms", "least ms"], _rows(median, seconds, floor)))
            for ratio, bar in BARS.items():
                name = ratio.split(" / ")[1]
                if name in median:
                    figures[f"batch_{batch}_{what}_over_{name.replace(' ', '_')}"] = median["recorded"] / median[name]
                    held = f" (bar {bar:.2f})" if batch == max(BATCHES) and what == "gradient" else ""
                    print(f"{ratio}: {median['recorded'] / median[name]:.3f}{held}")
            figures |= {f"batch_{batch}_{what}_{name.replace(' ', '_')}_seconds": s for name, s in median.items()}
    print(
        f"\nfloor: the matrix products alone at {rate / 1e9:.0f} GFLOP/s, that of a {32 * TOKENS} x {DIM} x {DIM} one"
    )
    return figures


def _draw(batch: int) -> tuple[TransformerParams, jax.Array, jax.Array]:
    """Weights as the paper's experiments draw them: the spectrum of W_f in [0, 0.95]. Tokens are not negative."""
    keys = jax.random.split(jax.random.key(0), 3)
    params = unroll_jax.transformer(DIM).init(keys[0])
    W_f = unroll_jax.energies.clip_spectrum(params.W_f @ params.W_f.T)
    y, x = (jax.random.uniform(key, (batch, TOKENS, DIM)) for key in keys[1:])
    return params._replace(W_f=W_f), y, x


def _unroll(record: Any) -> Callable[..., tuple[jax.Array, Any]]:
    layer = unroll_jax.transformer(DIM)

    def unrolled(params: TransformerParams, y: jax.Array, x: jax.Array) -> tuple[jax.Array, Any]:
        return unroll_jax.unroll(layer, params, y, x, num_layers=NUM_LAYERS, record=record)

    return unrolled


def _forward(arrays: tuple, *, record: Any) -> Callable[[], object]:
    program = jax.jit(_unroll(record))
    return lambda: jax.block_until_ready(program(*arrays))


def _gradient(arrays: tuple, *, record: Any) -> Callable[[], object]:
    unrolled = _unroll(record)

    def loss(params: TransformerParams, y: jax.Array, x: jax.Array) -> tuple[jax.Array, Any]:
        last, trace = unrolled(params, y, x)
        return jnp.mean(last**2), trace

    program = jax.jit(jax.grad(loss, has_aux=True))
    return lambda: jax.block_until_ready(program(*arrays))


def _peers(arrays: tuple, what: str) -> dict[str, Callable[[], object]]:
    torch = torch_peer.torch_or_none()
    params, y, x = jax.tree.map(lambda leaf: torch.from_numpy(np.array(leaf)), arrays)
    W_a, W_f = (W.requires_grad_(what == "gradient") for W in (params.W_a, params.W_f))
    eager, compiled = torch_peer.compiled(NUM_LAYERS)

    def runner(function: Callable) -> Callable[[], object]:
        if what == "gradient":
            return lambda: torch_peer.gradients(function, W_a, W_f, y, x)
        return lambda: function(W_a, W_f, y, x)

    return {"torch eager": runner(eager), "torch compiled": runner(compiled)}


def _flops(batch: int) -> float:
    """Matrix-product operations of a forward pass: two with d x d and two with n x n a layer, energies shared."""
    return NUM_LAYERS * batch * TOKENS * DIM * (4.0 * DIM + 4.0 * TOKENS)


def _rows(median: dict[str, float], seconds: dict[str, np.ndarray], floor: float) -> list[list[str]]:
    rows = [[name, f"{1e3 * median[name]:.1f}", f"{1e3 * np.min(seconds[name]):.1f}"] for name in median]
    return [*rows, ["floor", f"{1e3 * floor:.1f}", ""]]


if __name__ == "__main__":
    main()
