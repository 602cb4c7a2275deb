"""Losses of all layers under a shared head, chunked and by whole logits.

And the memory of a decoder's step with them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from benchmarks.record import Record
from benchmarks.timing import interleaved, matmul_rate, temporary_mebibytes
from unroll_jax.constrained import chunked_cross_entropy
from unroll_jax.models import Decoder, DecoderConfig, decoder_readout, rms_norm

__all__ = ["LossSizes", "main", "step_mebibytes", "whole_cross_entropy"]

REPEATS, FEW = 5, 2
BAR = 1.15  # temporary memory of a constrained step over a plain one's


class LossSizes(NamedTuple):
    """Sizes of the decoder: Llama 3's vocabulary, a small width."""

    vocabulary: int = 128_256
    dim: int = 512
    num_layers: int = 8
    tokens: int = 512


SIZES, QUICK = LossSizes(), LossSizes(8192, 64, 4, 128)


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints times of both losses with gradients, and the memory of steps."""
    del peers  # there are none
    sizes = QUICK if quick else SIZES
    repeats = FEW if quick else REPEATS
    rate = matmul_rate(sizes.tokens, sizes.dim, sizes.dim * 8)
    record = Record()
    shape = (sizes.vocabulary, sizes.dim)
    head = jnp.float32(np.random.default_rng(0).standard_normal(shape))
    print(
        f"loss and gradients, {sizes.tokens} positions, {sizes.dim} wide,"
        f" {sizes.vocabulary} words, float32"
    )
    for layers in (1, sizes.num_layers):
        candidates = _candidates(layers, head, sizes)
        seconds = interleaved(candidates, repeats=repeats, warmup=1)
        product = 2.0 * layers * sizes.tokens * sizes.dim * sizes.vocabulary
        # Logits and two gradients. Chunked logits are computed again backward.
        work = dict(zip(seconds, (4 * product, 3 * product), strict=True))
        record.times(seconds, flops=work, rate=rate)
        names = (f"{who}_seconds" for who in seconds)
        ratio = record.ratio(f"chunked_over_whole_{layers}", *names)
        print(f"{layers} layers, chunked / whole logits: {ratio:.2f}")
    plain = step_mebibytes(sizes, constrained=False)
    constrained = step_mebibytes(sizes, constrained=True)
    logits = 4 * sizes.tokens * sizes.vocabulary / 2**20
    record.figures |= {
        "plain_step_mib": plain,
        "constrained_step_mib": constrained,
        "logits_of_a_layer_mib": logits,
    }
    bar = "" if quick else f" (bar {BAR})"
    print(
        f"temporary memory of a decoder's gradient: plain {plain:.0f} MiB, constrained"
        f" {constrained:.0f}, {constrained / plain:.2f} of it{bar}; logits of one layer"
        f" {logits:.0f} MiB"
    )
    return record


def whole_cross_entropy(
    hidden: Float[Array, "*layers n d"],
    head: Float[Array, "vocabulary d"],
    labels: Int[Array, "n"],
) -> Float[Array, "*layers n"]:
    """The losses by all logits at once, as most training code takes them."""
    logits = hidden @ head.T
    targets = jnp.broadcast_to(labels, logits.shape[:-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets)


def step_mebibytes(sizes: LossSizes, *, constrained: bool) -> float:
    """Temporary memory of a decoder's gradient.

    The loss is that of the last layer, or if constrained a weighted sum over layers.
    """
    weights = [1.0]
    if constrained:
        weights = [-0.9, *[0.1] * (sizes.num_layers - 1), 2.0]
    config = DecoderConfig(
        sizes.vocabulary, sizes.dim, sizes.num_layers, 8, 2, 2 * sizes.dim, tied=False
    )
    model = Decoder(config, remat=True)
    tokens = jax.ShapeDtypeStruct((1, sizes.tokens), jnp.int32)

    def loss(params: Any, tokens: Array) -> Array:
        scale, head = decoder_readout(params)

        def record(y):
            return rms_norm(y[0], scale, 1e-5)

        states: Any = model.apply({"params": params}, tokens, record=record)
        losses = chunked_cross_entropy(states[-len(weights) :], head, tokens[0])
        return jnp.dot(jnp.mean(losses, axis=-1), jnp.float32(weights))

    params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    return temporary_mebibytes(jax.jit(jax.grad(loss)).lower(params, tokens).compile())


def _candidates(
    layers: int, head: Array, sizes: LossSizes
) -> dict[str, Callable[[], object]]:
    generator = np.random.default_rng(1)
    values = generator.standard_normal((layers, sizes.tokens, sizes.dim))
    hidden = jnp.float32(values * sizes.dim**-0.5)
    labels = jnp.asarray(generator.integers(sizes.vocabulary, size=sizes.tokens))
    weights = jnp.float32(generator.uniform(0.1, 1.0, layers))

    def repeated(losses: Callable[..., Array]) -> Callable[[], object]:
        def total(hidden, head):
            return jnp.dot(jnp.mean(losses(hidden, head, labels), axis=-1), weights)

        program = jax.jit(jax.value_and_grad(total, (0, 1)))
        return lambda: jax.block_until_ready(program(hidden, head))

    return {
        f"chunked_{layers}": repeated(chunked_cross_entropy),
        f"whole_{layers}": repeated(whole_cross_entropy),
    }
