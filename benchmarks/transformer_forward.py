"""Cost of twelve transformer layers with energies, against the same in PyTorch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import unroll_jax
from benchmarks import torch_peer
from benchmarks.record import Record
from benchmarks.timing import floor_note, interleaved, matmul_rate
from unroll_jax.energies import TransformerParams

__all__ = ["Sizes", "flops_forward", "main"]


class Sizes(NamedTuple):
    """Sizes of the transformer, and the number of runs of each batch."""

    num_layers: int = 12
    dim: int = 300
    tokens: int = 230
    repeats: tuple[tuple[int, int], ...] = ((1, 20), (32, 8))


FULL, QUICK = Sizes(), Sizes(num_layers=6, repeats=((1, 10), (8, 5)))
BARS = {
    "recorded / plain": 1.10,
    "recorded / torch compiled": 1.0,
    "recorded / torch eager": 1 / 1.5,
}


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints times of interleaved runs, forward and with the gradient, and ratios."""
    sizes = QUICK if quick else FULL
    print(
        f"{sizes.num_layers} tied layers, d = {sizes.dim}, n = {sizes.tokens}, float32,"
        f" {jax.default_backend()}"
    )
    with_torch = torch_peer.torch_if_wanted(peers) is not None
    largest = max(batch for batch, _ in sizes.repeats)
    product = (largest * sizes.tokens, sizes.dim, sizes.dim)
    rate = matmul_rate(*product)
    record = Record()
    for batch, repeats in sizes.repeats:
        arrays = _draw(batch, sizes)
        for what in ("forward", "gradient"):
            candidates = {
                "recorded": _program(arrays, sizes, what, record="energy"),
                "plain": _program(arrays, sizes, what, record=None),
            }
            if with_torch:
                candidates |= _peers(arrays, sizes, what)
            seconds = interleaved(candidates, repeats=repeats, warmup=3)

            print(f"\nbatch {batch}, {what}, {repeats} runs")
            # the gradients of a product take two products
            flops = flops_forward(sizes, batch) * (3.0 if what == "gradient" else 1.0)
            case = f"batch_{batch}_{what}"
            work = dict.fromkeys(seconds, flops)
            record.times(seconds, prefix=f"{case}_", flops=work, rate=rate)
            _compare(record, case, seconds)
    print(f"\n{floor_note(rate, *product)}")
    return record


def flops_forward(sizes: Sizes, batch: int) -> float:
    """Matrix-product operations of a forward pass without energies.

    Each layer has two products with d x d and two with n x n. Energies share them, but
    add Y W_f at the layer's input: one with d x d.
    """
    tokens = sizes.num_layers * batch * sizes.tokens
    return 4.0 * tokens * sizes.dim * (sizes.dim + sizes.tokens)


def _compare(record: Record, case: str, seconds: dict[str, Any]) -> None:
    for ratio, bar in BARS.items():
        who = ratio.split(" / ")[1]
        if who in seconds:
            names = f"{case}_recorded_seconds", f"{case}_{who}_seconds"
            value = record.ratio(f"{case}_over_{who}", *names)
            print(f"{ratio}: {value:.3f} (bar {bar:.2f})")


def _draw(batch: int, sizes: Sizes) -> tuple[TransformerParams, jax.Array, jax.Array]:
    """Weights of the paper's experiments, W_f with spectrum in [0, 0.95], and tokens.

    Tokens are not negative.
    """
    keys = jax.random.split(jax.random.key(0), 3)
    params = unroll_jax.transformer(sizes.dim).init(keys[0])
    W_f = unroll_jax.energies.clip_spectrum(params.W_f @ params.W_f.T)
    shape = (batch, sizes.tokens, sizes.dim)
    y, x = (jax.random.uniform(key, shape) for key in keys[1:])
    return params._replace(W_f=W_f), y, x


def _program(
    arrays: tuple, sizes: Sizes, what: str, *, record: Any
) -> Callable[[], object]:
    layer = unroll_jax.transformer(sizes.dim)
    options = {"num_layers": sizes.num_layers, "record": record}

    def forward(
        params: TransformerParams, y: jax.Array, x: jax.Array
    ) -> tuple[jax.Array, Any]:
        return unroll_jax.unroll(layer, params, y, x, **options)

    def loss(
        params: TransformerParams, y: jax.Array, x: jax.Array
    ) -> tuple[jax.Array, Any]:
        last, trace = forward(params, y, x)
        return jnp.mean(last**2), trace

    gradient = jax.grad(loss, has_aux=True)
    program = jax.jit(forward if what == "forward" else gradient)
    return lambda: jax.block_until_ready(program(*arrays))


def _peers(arrays: tuple, sizes: Sizes, what: str) -> dict[str, Callable[[], object]]:
    torch = torch_peer.torch_or_none()
    params, y, x = jax.tree.map(lambda leaf: torch.from_numpy(np.array(leaf)), arrays)
    W_a, W_f = (W.requires_grad_(what == "gradient") for W in (params.W_a, params.W_f))
    eager, compiled = torch_peer.compiled(sizes.num_layers)

    def runner(function: Callable) -> Callable[[], object]:
        if what == "gradient":
            return lambda: torch_peer.gradients(function, W_a, W_f, y, x)
        return lambda: function(W_a, W_f, y, x)

    return {"torch eager": runner(eager), "torch compiled": runner(compiled)}
