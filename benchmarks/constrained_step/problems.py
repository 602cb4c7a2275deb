"""Problems to train: the library's unrolled transformer, a plain encoder, and a
decoder with a large vocabulary."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import unroll_jax
from benchmarks.constrained_step.steps import Problem
from benchmarks.language_model import (
    LanguageModel,
    Read,
    Sample,
    cross_entropy,
    matmul_flops_a_token,
)
from unroll_jax.energies.unrolled_layer import UnrolledLayerParams, unrolled_layer
from unroll_jax.models import UnrolledTransformer, dct, scaled_identity

__all__ = [
    "DECODER",
    "ENCODER",
    "UNROLLED",
    "Sizes",
    "UnrolledSizes",
    "decoder",
    "encoder",
    "unrolled_transformer",
]

ALPHA = 0.05


class UnrolledSizes(NamedTuple):
    """Sizes of the unrolled transformer, as in the video experiment."""

    num_layers: int = 7
    dim: int = 256
    tokens: int = 20
    batch: int = 64


class Sizes(NamedTuple):
    """Sizes of a plain transformer and its batch; ``chunk`` positions are read at a
    time.

    ``kv_heads`` of None is ``heads``; ``dtype``, ``remat`` and ``attention`` are as in
    `LanguageModel`.
    """

    num_layers: int
    dim: int
    heads: int
    hidden: int
    vocabulary: int
    tokens: int
    batch: int
    chunk: int
    kv_heads: int | None = None
    dtype: str = "float32"
    remat: bool = False
    attention: str | None = None


UNROLLED = UnrolledSizes()
# The depth, width and parameters of MiniLM-L12-H384: three gated products of 1024 are
# two of 1536.
ENCODER = Sizes(12, 384, 12, 1024, 30_522, tokens=128, batch=4, chunk=1)
DECODER = Sizes(8, 512, 8, 1408, 32_000, tokens=128, batch=8, chunk=16)
SHARE = 32  # of the decoder's positions, one in so many is read at every layer


def unrolled_transformer(sizes: UnrolledSizes) -> Problem:
    """Denoising: f_l is half the squared error of a token at layer l, meaned over
    tokens and batch."""
    model = UnrolledTransformer(
        dim=sizes.dim,
        num_layers=sizes.num_layers,
        V_init=dct(0.25),
        W_init=scaled_identity(0.2),
        U_init=scaled_identity(0.8),
    )
    batch = jax.device_put(noisy_frames(sizes))

    def loss(y: Array, clean: Array) -> Array:
        return 0.5 * jnp.mean(jnp.sum((y - clean) ** 2, axis=-1))

    def last_loss(params: Any, batch: Any) -> Array:
        layers = UnrolledLayerParams(*params["params"]["layers"])
        y, _ = unroll_jax.unroll(
            lambda layer, y, _: unrolled_layer(layer, y),
            layers,
            batch["noisy"],
            num_layers=sizes.num_layers,
            tied=False,
            record=None,
        )
        return loss(y, batch["clean"])

    def layer_losses(params: Any, batch: Any, step: Array) -> tuple[Array, Array]:
        record = jax.checkpoint(
            functools.partial(loss, clean=batch["clean"]), prevent_cse=False
        )
        losses: Any = model.apply(params, batch["noisy"], record=record)
        return losses[-1], losses

    forward = (
        2.0
        * sizes.batch
        * sizes.tokens
        * (3 * sizes.dim**2 + 2 * sizes.tokens * sizes.dim)
    )
    return Problem(
        name=f"unrolled transformer, L = {sizes.num_layers}",
        init=lambda key: model.init(key, batch["noisy"]),
        batch=batch,
        last_loss=last_loss,
        layer_losses=layer_losses,
        constraints=unroll_jax.descent_constraints(ALPHA, num_layers=sizes.num_layers),
        flops=(3.0 * sizes.num_layers * forward, 0.0),
    )


def encoder(sizes: Sizes) -> Problem:
    """Two classes, read from the first token of every layer."""
    rng = np.random.default_rng(0)
    batch = {
        "tokens": rng.integers(
            sizes.vocabulary, size=(sizes.batch, sizes.tokens), dtype=np.int32
        ),
        "labels": rng.integers(2, size=(sizes.batch, 1), dtype=np.int32),
    }

    def read(batch: Any, _: Any) -> Read:
        return lambda readout, y: cross_entropy(
            readout, y[..., :1, :], batch["labels"], chunk=1
        )

    reads = (sizes.batch, sizes.num_layers * sizes.batch)
    return _language_problem(
        "encoder", sizes, batch, _Reading(read, read), reads, classes=2, causal=False
    )


def decoder(sizes: Sizes, *, share: int = 1) -> Problem:
    """The next token. Constraints are on every position, or on one in ``share``, from a
    random offset in each step.

    Every position is read as often as any other, which makes the estimated violations
    unbiased; the objective is the loss of all positions at the last layer.
    """
    tokens = np.random.default_rng(0).integers(
        sizes.vocabulary, size=(sizes.batch, sizes.tokens + 1), dtype=np.int32
    )
    few = sizes.tokens // share

    def read(batch: Any, _: Any) -> Read:
        return lambda readout, y: cross_entropy(
            readout, y, batch["labels"], chunk=sizes.chunk
        )

    def chosen(step: Array) -> Array:
        return jax.random.randint(
            jax.random.key(step), (), 0, share
        ) + share * jnp.arange(few)

    def read_few(batch: Any, step: Array) -> Read:
        labels = batch["labels"][:, chosen(step)]
        return lambda readout, y: cross_entropy(
            readout, y, labels, chunk=min(few, sizes.chunk)
        )

    batch = {"tokens": tokens[:, :-1], "labels": tokens[:, 1:]}
    full, layers = sizes.batch * sizes.tokens, sizes.num_layers
    build = functools.partial(_language_problem, classes=sizes.vocabulary, causal=True)
    if share == 1:
        return build(
            "decoder", sizes, batch, _Reading(read, read), (full, layers * full)
        )
    sampled = _Reading(read, read_few, lambda step: lambda y: y[:, chosen(step)])
    reads = (full, (layers + 1) * sizes.batch * few)
    return build(f"decoder, 1 position in {share}", sizes, batch, sampled, reads)


class _Reading(NamedTuple):
    """``(batch, step) -> Read`` of the objective and of the constraints, and
    ``step -> Sample`` if these are of one."""

    last: Callable[[Any, Any], Read]
    every: Callable[[Any, Any], Read]
    sample: Callable[[Array], Sample] | None = None


def _language_problem(
    name: str,
    sizes: Sizes,
    batch: Any,
    reading: _Reading,
    reads: tuple[int, int],
    *,
    classes: int,
    causal: bool,
) -> Problem:
    """``reads`` counts the states that go through the readout: for plain risk, and
    the constraints' extra ones."""
    model = LanguageModel(
        vocabulary=sizes.vocabulary,
        classes=classes,
        dim=sizes.dim,
        num_layers=sizes.num_layers,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads or sizes.heads,
        hidden=sizes.hidden,
        causal=causal,
        dtype=jnp.dtype(sizes.dtype),
        remat=sizes.remat,
        attention=sizes.attention,
    )
    run: Callable[..., Any] = model.apply

    def last_loss(params: Any, batch: Any) -> Array:
        return run(params, batch["tokens"], reading.last(batch, None))[0]

    def layer_losses(params: Any, batch: Any, step: Array) -> tuple[Array, Array]:
        last = reading.last(batch, step)
        every = last if reading.every is reading.last else reading.every(batch, step)
        sample = None if reading.sample is None else reading.sample(step)
        return run(params, batch["tokens"], last, every=every, sample=sample)

    batch = jax.device_put(batch)
    layers, readout = matmul_flops_a_token(model, sizes.tokens)
    objective, extra = reads
    return Problem(
        name=f"{name}, L = {sizes.num_layers}",
        init=lambda key: model.init(key, batch["tokens"], reading.last(batch, None)),
        batch=batch,
        last_loss=last_loss,
        layer_losses=layer_losses,
        constraints=unroll_jax.descent_constraints(ALPHA, num_layers=sizes.num_layers),
        flops=(
            3.0 * (layers * batch["tokens"].size + readout * objective),
            3.0 * readout * extra,
        ),
    )


def noisy_frames(sizes: UnrolledSizes) -> dict[str, np.ndarray]:
    """Random pixels in [0, 1], and the same with noise."""
    rng = np.random.default_rng(0)
    clean = rng.uniform(size=(sizes.batch, sizes.tokens, sizes.dim)).astype(np.float32)
    return {
        "clean": clean,
        "noisy": clean + 0.2 * rng.standard_normal(clean.shape).astype(np.float32),
    }
