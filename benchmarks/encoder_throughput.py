"""Tokens per second of an encoder of MiniLM's shape, against `transformers` in PyTorch.

Both have the same weights and the same batch, no padding, and no dropout; both train
all but the word embeddings.
"""

import copy
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import torch_peer
from benchmarks.record import Record
from benchmarks.timing import SAME_ALLOCATOR, interleaved, matmul_rate, table
from unroll_jax.models import Classifier, Encoder, EncoderConfig
from unroll_jax.train.data.pretrained.architectures import (
    read_architecture,
    read_config,
)
from unroll_jax.train.data.pretrained.encoders import read_weights
from unroll_jax.train.data.pretrained.folders import open_folder, read_json

__all__ = ["main"]

RATE = 1e-5
SHAPE = EncoderConfig(30522, dim=384, num_layers=6, num_heads=12, hidden_dim=1536)


class Sizes(NamedTuple):
    """Sizes of the encoder and its batch, and the number of runs."""

    shape: EncoderConfig = SHAPE
    batch: int = 32
    tokens: int = 64
    repeats: int = 10


FULL, QUICK = Sizes(), Sizes(batch=8, repeats=5)
BARS = {"forward": 1.2, "training": 1.0}


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints tokens per second, medians of interleaved runs, and the ratios to
    PyTorch's."""
    sizes = QUICK if quick else FULL
    shape, count = sizes.shape, sizes.batch * sizes.tokens
    print(f"{shape.num_layers} layers, d = {shape.dim}, {sizes.batch} texts of {sizes.tokens} tokens, "
          f"{jax.default_backend()}")  # fmt: skip
    generator = np.random.default_rng(0)
    batch = {
        "tokens": generator.integers(
            1, shape.vocabulary_size, (sizes.batch, sizes.tokens)
        ),
        "labels": generator.integers(0, 2, sizes.batch),
    }
    model = Classifier(Encoder(shape), 2, hidden="tanh")
    params, peer = _same_weights(model, peers=peers)
    unrolled = Classifier(Encoder(shape, unroll=shape.num_layers), 2, hidden="tanh")
    ours = {"unroll_jax": model, "unroll_jax, unroll=L": unrolled}
    calls = {
        "forward": {name: forward(one, params, batch) for name, one in ours.items()},
        "training": {name: training(one, params, batch) for name, one in ours.items()},
    }
    theirs = {} if peer is None else torch_calls(peer, batch)
    rate, record = matmul_rate(count, shape.dim, shape.hidden_dim), Record()
    for what in BARS:
        both = {
            **calls[what],
            **{name: peer_calls[what] for name, peer_calls in theirs.items()},
        }
        seconds = interleaved(both, repeats=sizes.repeats, warmup=3)
        print(f"\n{what}, {sizes.repeats} runs")
        _add(record, what, seconds, sizes, rate, list(theirs))
    print(
        f"\nfloor: the matrix products alone at {rate / 1e9:.0f} GFLOP/s, that of the"
        " widest of them"
    )
    record.draw = record.draw_times
    return record


def _add(
    record: Record,
    what: str,
    seconds: dict[str, Any],
    sizes: Sizes,
    rate: float,
    theirs: list[str],
) -> None:
    """Adds the times of a pass and what follows from them to the record, and prints
    them."""
    work, count = (
        flops(sizes) * (3.0 if what == "training" else 1.0),
        sizes.batch * sizes.tokens,
    )
    names = {who: f"{what}_{_key(who)}_seconds" for who in seconds}
    median = {
        who: record.time(names[who], seconds[who], flops=work, rate=rate)
        for who in seconds
    }
    rows = [
        [who, f"{1e3 * value:.0f}", f"{count / value:.0f}"]
        for who, value in median.items()
    ]
    print(
        table(
            ["who", "median ms", "tokens/s"],
            [*rows, ["floor", f"{1e3 * work / rate:.0f}", ""]],
        )
    )
    for who, value in median.items():
        rate_of = f"{what}_{_key(who)}_tokens_a_second"
        record.figures[rate_of], record.spreads[rate_of] = (
            count / value,
            record.spreads[names[who]],
        )
    for ours, peer in itertools.product(
        [who for who in seconds if who not in theirs], theirs
    ):
        times = record.ratio(
            f"{what}_{_key(ours)}_over_{_key(peer)}", names[peer], names[ours]
        )
        held = (
            f" (bar {BARS[what]:.1f})"
            if (ours, peer) == ("unroll_jax", "torch compiled")
            else ""
        )
        print(f"{ours} / {peer}: {times:.2f} times the tokens{held}")


def forward(
    model: Classifier, params: Any, batch: dict[str, np.ndarray]
) -> Callable[[], np.ndarray]:
    """A call that gives the logits of the last layer."""
    tokens = jnp.asarray(batch["tokens"], jnp.int32)
    program = jax.jit(lambda params, tokens: model.apply(params, tokens)[-1])  # pyright: ignore[reportIndexIssue]
    return lambda: np.asarray(program(params, tokens))


def training(
    model: Classifier, params: Any, batch: dict[str, np.ndarray]
) -> Callable[[], float]:
    """A call that takes one step of Adam on the last layer's cross entropy and
    returns its value before the step."""
    tokens, labels = (
        jnp.asarray(batch["tokens"], jnp.int32),
        jnp.asarray(batch["labels"], jnp.int32),
    )
    is_word = lambda path: "word" in [entry.key for entry in path]

    def trained(params):
        return jax.tree.map_with_path(lambda path, _: not is_word(path), params)

    optimizer = optax.masked(optax.adam(RATE), trained)

    def loss(params: Any, tokens: jax.Array, labels: jax.Array) -> jax.Array:
        def still(path, leaf):
            return jax.lax.stop_gradient(leaf) if is_word(path) else leaf

        logits: Any = model.apply(jax.tree.map_with_path(still, params), tokens)
        return jnp.mean(
            optax.softmax_cross_entropy_with_integer_labels(logits[-1], labels)
        )

    def step(
        state: tuple[Any, Any], *batch: jax.Array
    ) -> tuple[tuple[Any, Any], jax.Array]:
        params, moments = state
        value, gradient = jax.value_and_grad(loss)(params, *batch)
        updates, moments = optimizer.update(gradient, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    program = jax.jit(step, donate_argnums=0)
    copied = jax.tree.map(jnp.array, params)
    held = {"state": (copied, jax.jit(optimizer.init)(copied))}

    def run() -> float:
        held["state"], value = program(held["state"], tokens, labels)
        return float(value)

    return run


def torch_calls(
    peer: Any, batch: dict[str, np.ndarray]
) -> dict[str, dict[str, Callable[[], Any]]]:
    """The same two calls of `transformers`, eager and compiled."""
    torch = torch_peer.torch_or_none()
    tokens, labels = (torch.from_numpy(batch[name]) for name in ("tokens", "labels"))
    every = torch.ones_like(tokens)

    def calls(model: Any, weights: Any) -> dict[str, Callable[[], Any]]:
        optimizer = torch.optim.Adam(
            [weight for weight in weights if weight.requires_grad], lr=RATE, fused=True
        )

        def logits() -> np.ndarray:
            with torch.no_grad():
                return model(input_ids=tokens, attention_mask=every).logits.numpy()

        def train() -> float:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(
                model(input_ids=tokens, attention_mask=every).logits, labels
            )
            loss.backward()
            optimizer.step()
            return float(loss.detach())

        return {"forward": logits, "training": train}

    variants = {}
    for name, prepare in (
        ("torch eager", lambda model: model),
        ("torch compiled", torch.compile),
    ):
        copied = copy.deepcopy(peer)
        copied.bert.embeddings.word_embeddings.weight.requires_grad_(False)
        variants[name] = calls(prepare(copied), list(copied.parameters()))
    return variants


def flops(sizes: Sizes) -> float:
    """Matrix-product operations of a forward pass."""
    dim, tokens = sizes.shape.dim, sizes.tokens
    dense = 4 * dim**2 + 2 * dim * sizes.shape.hidden_dim
    return (
        2.0 * sizes.batch * tokens * sizes.shape.num_layers * (dense + 2 * tokens * dim)
    )


def _key(name: str) -> str:
    return name.replace(", unroll=L", " unrolled").replace(" ", "_")


def _same_weights(model: Classifier, *, peers: bool = True) -> tuple[Any, Any]:
    """Random weights of ours and, where PyTorch and `transformers` are installed, a
    model of theirs with the same."""
    transformers, shape = (
        (_transformers_or_none() if peers else None),
        model.encoder.config,
    )
    if transformers is None:
        if peers:
            print(
                'without PyTorch and transformers: pip install "unroll_jax[dev]" to'
                " compare with them"
            )
        return (
            jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)),
            None,
        )
    print(SAME_ALLOCATOR)
    torch = torch_peer.torch_or_none()
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=shape.vocabulary_size,
        hidden_size=shape.dim,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        intermediate_size=shape.hidden_dim,
        max_position_embeddings=shape.max_positions,
    )
    peer = transformers.BertForSequenceClassification(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        peer.save_pretrained(folder)
        values = read_json(Path(folder) / "config.json")
        architecture = read_architecture(values, where=folder)
        with open_folder(Path(folder)) as tensors:
            encoder, head = read_weights(
                tensors, read_config(values, where=folder), architecture
            )
    kernel, bias = (
        leaf.detach().numpy()
        for leaf in (peer.classifier.weight.T, peer.classifier.bias)
    )
    head["logits"] = {"kernel": kernel, "bias": bias}
    return (
        jax.tree.map(jnp.asarray, {"params": {"encoder": encoder, "head": head}}),
        peer,
    )


def _transformers_or_none() -> Any:
    if torch_peer.torch_or_none() is None:
        return None
    try:
        import transformers  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    transformers.logging.disable_progress_bar()
    return transformers
