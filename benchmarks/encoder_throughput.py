"""Tokens per second of an encoder of MiniLM's shape, against `transformers` in PyTorch.

Both have the same weights and the same batch, no padding, and no dropout. Both train
all but the word embeddings.
"""

import copy
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
from benchmarks.timing import floor_note, interleaved, matmul_rate
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
BARS = {"forward": 1.2, "training": 1.0}  # times the tokens of compiled PyTorch


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints tokens per second and their ratios to PyTorch's, from interleaved runs."""
    sizes = QUICK if quick else FULL
    shape = sizes.shape
    print(
        f"{shape.num_layers} layers, d = {shape.dim}, {sizes.batch} texts of"
        f" {sizes.tokens} tokens, {jax.default_backend()}"
    )
    generator = np.random.default_rng(0)
    places = (sizes.batch, sizes.tokens)
    batch = {
        "tokens": generator.integers(1, shape.vocabulary_size, places),
        "labels": generator.integers(0, 2, sizes.batch),
    }
    model = Classifier(Encoder(shape), 2, hidden="tanh")
    params, peer = _same_weights(model, peers=peers)
    calls = {
        "unroll_jax": {
            "forward": forward(model, params, batch),
            "training": training(model, params, batch),
        }
    }
    if peer is not None:
        calls |= torch_calls(peer, batch)

    widest = (sizes.batch * sizes.tokens, shape.dim, shape.hidden_dim)
    rate = matmul_rate(*widest)
    record = Record()
    for what in BARS:
        chosen = {name: both[what] for name, both in calls.items()}
        seconds = interleaved(chosen, repeats=sizes.repeats, warmup=3)
        print(f"\n{what}, {sizes.repeats} runs")
        _add(record, what, seconds, sizes, rate)
    print(f"\n{floor_note(rate, *widest)}")
    return record


def _add(
    record: Record, what: str, seconds: dict[str, Any], sizes: Sizes, rate: float
) -> None:
    """Adds times, tokens per second and ratios of a pass, and prints them."""
    # the gradients of a product take two products
    work = flops(sizes) * (3.0 if what == "training" else 1.0)
    tokens = sizes.batch * sizes.tokens
    record.times(
        seconds, flops=dict.fromkeys(seconds, work), rate=rate, prefix=f"{what}_"
    )
    for who in seconds:
        name = f"{what}_{who}"
        a_second = tokens / record.figures[f"{name}_seconds"]
        record.figures[f"{name}_tokens_a_second"] = a_second
        print(f"{who}: {a_second:.0f} tokens a second")

    ours, *peers = seconds
    for peer in peers:
        names = (f"{what}_{who}_seconds" for who in (peer, ours))
        times = record.ratio(f"{what}_{ours}_over_{peer}", *names)
        print(f"{ours} / {peer}: {times:.2f} times the tokens (bar {BARS[what]:.1f})")


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
    """A call that takes a step of Adam on the last layer's cross entropy.

    It returns the cross entropy before the step.
    """
    tokens = jnp.asarray(batch["tokens"], jnp.int32)
    labels = jnp.asarray(batch["labels"], jnp.int32)

    def kind(path: Any, _: Any) -> str:
        return "still" if "'word'" in jax.tree_util.keystr(path) else "trained"

    # The compiler leaves out gradients that are set to zero.
    optimizer = optax.multi_transform(
        {"trained": optax.adam(RATE), "still": optax.set_to_zero()},
        lambda params: jax.tree.map_with_path(kind, params),
    )

    def loss(params: Any, tokens: jax.Array, labels: jax.Array) -> jax.Array:
        logits: Any = model.apply(params, tokens)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits[-1], labels)
        return jnp.mean(losses)

    def step(state: tuple[Any, Any], *batch: jax.Array) -> tuple[Any, jax.Array]:
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
        trained = [weight for weight in weights if weight.requires_grad]
        optimizer = torch.optim.Adam(trained, lr=RATE, fused=True)

        def logits() -> np.ndarray:
            with torch.no_grad():
                return model(input_ids=tokens, attention_mask=every).logits.numpy()

        def train() -> float:
            optimizer.zero_grad()
            scores = model(input_ids=tokens, attention_mask=every).logits
            loss = torch.nn.functional.cross_entropy(scores, labels)
            loss.backward()
            optimizer.step()
            return float(loss.detach())

        return {"forward": logits, "training": train}

    variants = {}
    ways = {"torch eager": lambda model: model, "torch compiled": torch.compile}
    for name, prepare in ways.items():
        copied = copy.deepcopy(peer)
        copied.bert.embeddings.word_embeddings.weight.requires_grad_(False)
        variants[name] = calls(prepare(copied), list(copied.parameters()))
    return variants


def flops(sizes: Sizes) -> float:
    """Matrix-product operations of a forward pass."""
    dim, tokens = sizes.shape.dim, sizes.tokens
    dense = 4 * dim**2 + 2 * dim * sizes.shape.hidden_dim
    each = 2.0 * sizes.shape.num_layers * (dense + 2 * tokens * dim)
    return each * sizes.batch * tokens


def _same_weights(model: Classifier, *, peers: bool = True) -> tuple[Any, Any]:
    """Random weights of ours, and a model of `transformers` with the same, if any."""
    shape = model.encoder.config
    torch = torch_peer.torch_if_wanted(peers)
    transformers: Any = None if torch is None else _transformers_or_none()
    if torch is None or transformers is None:
        example = jnp.zeros((1, 1), jnp.int32)
        return jax.jit(model.init)(jax.random.key(0), example), None
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
        settings = read_config(values, where=folder)
        with open_folder(Path(folder)) as tensors:
            encoder, head = read_weights(tensors, settings, architecture)
    head["logits"] = {
        "kernel": peer.classifier.weight.T.detach().numpy(),
        "bias": peer.classifier.bias.detach().numpy(),
    }
    params = {"params": {"encoder": encoder, "head": head}}
    return jax.tree.map(jnp.asarray, params), peer


def _transformers_or_none() -> Any:
    try:
        import transformers  # pyright: ignore[reportMissingImports]
    except ImportError:
        print('without transformers: pip install "unroll_jax[dev]" to compare with it')
        return None
    transformers.logging.disable_progress_bar()
    return transformers
