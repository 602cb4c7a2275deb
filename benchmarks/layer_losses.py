"""Losses of all layers under a shared head: chunked, against the whole logits, and
the memory of a decoder's step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from benchmarks.record import Record
from benchmarks.timing import interleaved, matmul_rate, table, temporary_mebibytes
from unroll_jax.constrained import chunked_cross_entropy
from unroll_jax.models import Decoder, DecoderConfig, decoder_readout, rms_norm

__all__ = ["LossSizes", "main", "step_mebibytes", "whole_cross_entropy"]

REPEATS, FEW = 5, 2
BAR = 1.15  # temporary memory of a constrained step over a plain one's


class LossSizes(NamedTuple):
    """Sizes of the decoder whose layers are read: Llama 3's vocabulary, a small
    width."""

    vocabulary: int = 128_256
    dim: int = 512
    num_layers: int = 8
    tokens: int = 512


SIZES, QUICK = LossSizes(), LossSizes(8192, 64, 4, 128)


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints forward and backward times of both losses, for the last layer and for
    all, and memory of steps."""
    del peers  # there are none
    sizes = QUICK if quick else SIZES
    rate, record = matmul_rate(sizes.tokens, sizes.dim, sizes.dim * 8), Record()
    head = jnp.asarray(
        np.random.default_rng(0).standard_normal((sizes.vocabulary, sizes.dim)),
        jnp.float32,
    )
    rows = []
    for layers in (1, sizes.num_layers):
        seconds = interleaved(
            _candidates(layers, head, sizes),
            repeats=FEW if quick else REPEATS,
            warmup=1,
        )
        products = 2.0 * layers * sizes.tokens * sizes.dim * sizes.vocabulary
        for kind, runs in seconds.items():
            # logits forward, once more where they were not kept, two gradients
            count = 4 if kind == "chunked" else 3
            record.time(
                f"{kind}_{layers}_seconds", runs, flops=count * products, rate=rate
            )
        ratio = record.ratio(
            f"chunked_over_whole_{layers}",
            f"chunked_{layers}_seconds",
            f"whole_{layers}_seconds",
        )
        rows.append(
            [
                str(layers),
                *(
                    f"{record.figures[f'{kind}_{layers}_seconds']:.2f}"
                    for kind in seconds
                ),
                f"{ratio:.2f}",
            ]
        )
    print(
        f"loss and gradients, {sizes.tokens} positions, {sizes.dim} wide,"
        f" {sizes.vocabulary} words, float32"
    )
    print(table(["layers", "chunked s", "whole logits s", "chunked / whole"], rows))
    plain_step, constrained = (
        step_mebibytes(sizes, constrained=constrained) for constrained in (False, True)
    )
    logits = 4 * sizes.tokens * sizes.vocabulary / 2**20
    record.figures |= {
        "plain_step_mib": plain_step,
        "constrained_step_mib": constrained,
        "logits_of_a_layer_mib": logits,
    }
    print(
        f"temporary memory of a decoder's gradient: plain {plain_step:.0f} MiB,"
        f" constrained {constrained:.0f}, {constrained / plain_step:.2f} of"
        f" it{'' if quick else f' (bar {BAR})'}; logits of one layer {logits:.0f} MiB"
    )
    record.draw = record.draw_times
    return record


def whole_cross_entropy(
    hidden: Float[Array, "*layers n d"],
    head: Float[Array, "vocabulary d"],
    labels: Int[Array, "n"],
) -> Float[Array, "*layers n"]:
    """The losses by all logits at once, as most training code takes them."""
    logits = hidden @ head.T
    return optax.softmax_cross_entropy_with_integer_labels(
        logits, jnp.broadcast_to(labels, logits.shape[:-1])
    )


def step_mebibytes(sizes: LossSizes, *, constrained: bool) -> float:
    """Temporary memory of a decoder's gradient of its last layer's loss, or of a
    weighted sum of all layers'."""
    weights = np.array(
        [-0.9, *[0.1] * (sizes.num_layers - 1), 2.0] if constrained else [1.0],
        np.float32,
    )
    config = DecoderConfig(
        sizes.vocabulary, sizes.dim, sizes.num_layers, 8, 2, 2 * sizes.dim, tied=False
    )
    model, tokens = (
        Decoder(config, remat=True),
        jax.ShapeDtypeStruct((1, sizes.tokens), jnp.int32),
    )

    def loss(params: Any, tokens: Array) -> Array:
        scale, head = decoder_readout(params)
        states: Any = model.apply(
            {"params": params}, tokens, record=lambda y: rms_norm(y[0], scale, 1e-5)
        )
        losses = chunked_cross_entropy(states[-len(weights) :], head, tokens[0])
        return jnp.dot(jnp.mean(losses, axis=-1), jnp.asarray(weights))

    params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    return temporary_mebibytes(jax.jit(jax.grad(loss)).lower(params, tokens).compile())


def _candidates(
    layers: int, head: Array, sizes: LossSizes
) -> dict[str, Callable[[], object]]:
    generator = np.random.default_rng(1)
    hidden = jnp.asarray(
        generator.standard_normal((layers, sizes.tokens, sizes.dim)) * sizes.dim**-0.5,
        jnp.float32,
    )
    labels = jnp.asarray(generator.integers(sizes.vocabulary, size=sizes.tokens))
    weights = jnp.asarray(generator.uniform(0.1, 1.0, layers), jnp.float32)

    def repeated(
        losses: Callable[[Array, Array, Array], Array],
    ) -> Callable[[], object]:
        def total(hidden, head):
            return jnp.dot(jnp.mean(losses(hidden, head, labels), axis=-1), weights)

        program = jax.jit(jax.value_and_grad(total, (0, 1)))
        return lambda: jax.block_until_ready(program(hidden, head))

    return {
        "chunked": repeated(chunked_cross_entropy),
        "whole": repeated(whole_cross_entropy),
    }
