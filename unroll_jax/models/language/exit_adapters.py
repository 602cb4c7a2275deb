"""Exit adapters: a small block at an early layer of a frozen decoder that learns to name the last layer's tokens."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from unroll_jax.arguments import at_least, check, in_interval, require
from unroll_jax.models.language.decoder import Decoder, decoder_readout, head_products
from unroll_jax.models.language.decoder_parts import (
    DecoderConfig,
    causal_mask,
    decoder_layer,
    layer_shapes,
    new_layers,
    rms_norm,
    rotation,
    segment_positions,
)
from unroll_jax.models.language.decoding import KeyValueCache, decode

__all__ = [
    "DraftHead",
    "ExitAdapter",
    "adapted",
    "adapter_losses",
    "check_adapter",
    "decode_adapted",
    "draft_head",
    "draft_logits",
    "draft_vocabulary",
    "exit_adapter",
    "exit_states",
]

_INITIAL = nn.initializers.normal(0.02)  # as in `Decoder`


class ExitAdapter(NamedTuple):
    """An adapter of one exit layer: train ``weights`` alone.

    Attributes:
      weights: ``norm.scale``, (dim,), and ``layers``, one decoder layer as in `Decoder`, with a leading axis of 1.
      words: the tokens that the adapter may draft, in the order of its logits; None lets it draft all.

    Example: see `exit_adapter`.
    """

    weights: Any
    words: Int[Array, "k"] | None = None


class DraftHead(NamedTuple):
    """The decoder's norm and the rows of its head that drafts are read out by."""

    scale: Float[Array, "d"]
    rows: Float[Array, "k d"]


def exit_adapter(
    key: jax.Array,
    config: DecoderConfig,
    *,
    hidden_dim: int | None = None,
    words: Sequence[int] | np.ndarray | None = None,
    dtype: Any = jnp.float32,
) -> ExitAdapter:
    """A new adapter, by which an exit layer is at first read out as it is without one.

    It is a norm and one decoder layer that attends over keys and values of its own; the frozen norm and head of the
    decoder read it out. The layer's output projections start at 0.

    Args:
      key: of the initial weights.
      config: of the decoder.
      hidden_dim: width of the feed-forward part; None takes that of the decoder.
      words: the draft vocabulary, see `draft_vocabulary`; None is the whole one. Verification keeps all tokens.
      dtype: of the weights.

    Returns:
      An `ExitAdapter`.

    Raises:
      ValueError: if hidden_dim is below 1, or words are not different tokens of the decoder.

    Source: Liu et al., "Kangaroo: lossless self-speculative decoding via double early exiting" (2024), section 3.1;
    Zhao et al., "FR-Spec: accelerating large-vocabulary language models via frequency-ranked speculative sampling"
    (2025), for the draft vocabulary.

    Example:
      >>> import jax
      >>> config = DecoderConfig(100, dim=8, num_layers=2, num_heads=4, num_key_value_heads=2, hidden_dim=16)
      >>> adapter: ExitAdapter = exit_adapter(jax.random.key(0), config, hidden_dim=12, words=[5, 7, 9])
      >>> adapter.weights["layers"]["gate"]["kernel"].shape, adapter.words.tolist()
      ((1, 8, 12), [5, 7, 9])
    """
    check("hidden_dim", hidden_dim, at_least(1), optional=True)
    hidden_dim = config.hidden_dim if hidden_dim is None else hidden_dim
    layers = new_layers(key, dataclasses.replace(config, num_layers=1, hidden_dim=hidden_dim), _INITIAL, dtype)
    still = {name: jax.tree.map(jnp.zeros_like, layers[name]) for name in ("output", "down")}
    numbers = None if words is None else jnp.asarray(_checked_words(words, config))
    return ExitAdapter({"norm": {"scale": jnp.ones(config.dim, dtype)}, "layers": layers | still}, numbers)


def draft_vocabulary(
    texts: Sequence[Sequence[int] | np.ndarray], size: int, *, always: Sequence[int] = ()
) -> Int[np.ndarray, "k"]:
    """The most frequent tokens of texts, in ascending order.

    Args:
      texts: tokens of each.
      size: tokens wanted; fewer come back where the texts have fewer.
      always: tokens that are taken in any case, as the stops of answers.

    Raises:
      ValueError: if size is below 1 or below the number of ``always``.

    Example:
      >>> texts = [[5, 5, 7], [7, 5, 9]]
      >>> draft_vocabulary(texts, size=2).tolist(), draft_vocabulary(texts, size=2, always=[8]).tolist()
      ([5, 7], [5, 8])
    """
    fixed = np.unique(np.asarray(always, np.int32))
    check("size", size, at_least(max(1, len(fixed))))
    require(len(texts) > 0, "texts", "be one or more", list(texts))
    words, counts = np.unique(np.concatenate([np.asarray(text, np.int32) for text in texts]), return_counts=True)
    ranked = words[np.argsort(-counts, kind="stable")]
    return np.sort(np.concatenate([fixed, ranked[~np.isin(ranked, fixed)][: size - len(fixed)]]))


def exit_states(
    config: DecoderConfig,
    params: Any,
    tokens: Int[Array, "batch n"],
    exit_layer: int,
    *,
    segments: Int[Array, "batch n"] | None = None,
) -> tuple[Float[Array, "batch n d"], Float[Array, "batch n d"]]:
    """Outputs of the exit layer and of the last one, in one pass without a gradient: what an adapter is trained on.

    Args:
      config, params: of the decoder, see `speculate`.
      tokens: of texts.
      exit_layer: number of layers that draft, from 1 to num_layers - 1.
      segments: see `Decoder`.

    Example: see `adapter_losses`.
    """
    check("exit_layer", exit_layer, in_interval(f"[1, num_layers={config.num_layers})"))
    states: Any = Decoder(config).apply({"params": params}, tokens, segments=segments)
    return jax.lax.stop_gradient((states[exit_layer], states[-1]))


def adapter_losses(
    config: DecoderConfig,
    params: Any,
    adapter: ExitAdapter,
    states: tuple[Float[Array, "batch n d"], Float[Array, "batch n d"]],
    *,
    places: Int[Array, "batch m"] | None = None,
    segments: Int[Array, "batch n"] | None = None,
) -> Float[Array, "batch m"]:
    r"""KL(p, q) of the next token at positions: p of the last layer, q of the adapter; the decoder has no gradient.

    With a draft vocabulary both are distributions over its words alone.

    Args:
      config, params: of the decoder, see `speculate`.
      adapter: see `exit_adapter`.
      states: of `exit_states`.
      places: positions of each text that logits are computed at; None takes all.
      segments: as in `exit_states`.

    Returns:
      The divergences in nats.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> config = DecoderConfig(50, dim=8, num_layers=2, num_heads=2, num_key_value_heads=2, hidden_dim=16)
      >>> tokens = jnp.array([[5, 6, 7]])
      >>> params = jax.jit(Decoder(config).init)(jax.random.key(0), tokens)["params"]
      >>> adapter = exit_adapter(jax.random.key(1), config)
      >>> states = exit_states(config, params, tokens, 1)
      >>> def loss(weights):
      ...     return adapter_losses(config, params, adapter._replace(weights=weights), states).mean()
      >>> value, gradients = jax.value_and_grad(loss)(adapter.weights)
      >>> bool(value > 0.0), gradients["layers"]["output"]["kernel"].shape
      (True, (1, 8, 8))
    """
    check_adapter(config, adapter)
    params, states = jax.lax.stop_gradient((params, states))
    head = draft_head(params, adapter)
    segments = jnp.zeros(states[0].shape[:-1], jnp.int32) if segments is None else segments
    y = adapted(config, adapter, states[0], segments)
    both = (states[1], y) if places is None else tuple(_taken(each, places) for each in (states[1], y))
    p, q = (jax.nn.log_softmax(draft_logits(config, head, each)) for each in both)
    return jnp.sum(jnp.exp(p) * (p - q), axis=-1)


def check_adapter(config: DecoderConfig, adapter: ExitAdapter) -> None:
    """Checks that an adapter fits a decoder; its width between the dense layers is free."""
    names = {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(adapter.weights)}
    needed = {"['norm']['scale']", "['layers']['gate']['kernel']"}
    require(
        needed <= names, "adapter", "have weights norm.scale and layers", sorted(names), "make it with exit_adapter"
    )
    if adapter.words is not None and not isinstance(adapter.words, Tracer):
        _checked_words(adapter.words, config)
    layers = adapter.weights["layers"]
    hidden = layers["gate"]["kernel"].shape[-1]
    shapes = layer_shapes(dataclasses.replace(config, hidden_dim=hidden))
    wanted = {f"{part}.{name}": (1, *shape) for part, named in shapes.items() for name, shape in named.items()}
    got = {f"{part}.{name}": leaf.shape for part, named in layers.items() for name, leaf in named.items()}
    wanted["norm.scale"], got["norm.scale"] = (config.dim,), adapter.weights["norm"]["scale"].shape
    wrong = {name: got.get(name) for name in wanted if got.get(name) != wanted[name]}
    allowed = "have the decoder's shapes" + "".join(f", {name} {wanted[name]}" for name in wrong)
    require(not wrong, "adapter", allowed, wrong, "make it with exit_adapter and the decoder's config")


def draft_head(params: Any, adapter: ExitAdapter | None) -> DraftHead:
    """The norm and the rows of the head that drafts are read out by."""
    scale, rows = decoder_readout(params)
    return DraftHead(scale, rows if adapter is None or adapter.words is None else rows[adapter.words])


def draft_logits(config: DecoderConfig, head: DraftHead, y: Float[Array, "*batch d"]) -> Float[Array, "*batch k"]:
    """Logits of the draft vocabulary, in float32 or wider; see `decoder_logits`."""
    normed = rms_norm(y, head.scale, config.norm_epsilon)
    return head_products(normed, head.rows, normed.dtype)


def decode_adapted(
    config: DecoderConfig,
    adapter: ExitAdapter,
    y: Float[Array, "batch n d"],
    cache: KeyValueCache,
    positions: Int[Array, "batch n"],
) -> tuple[Float[Array, "batch n d"], KeyValueCache]:
    """Runs outputs of the exit layer through the adapter, on its own cache; see `decode`."""
    normed = rms_norm(y, adapter.weights["norm"]["scale"], config.norm_epsilon)
    return decode(dataclasses.replace(config, num_layers=1), adapter.weights, normed, cache, positions)


def adapted(config: DecoderConfig, adapter: ExitAdapter, y: Array, segments: Array) -> Array:
    """Runs whole texts through the adapter."""
    normed = rms_norm(y, adapter.weights["norm"]["scale"], config.norm_epsilon)
    layer = jax.tree.map(lambda leaf: leaf[0].astype(y.dtype), adapter.weights["layers"])
    angles = rotation(config, segment_positions(segments), y.dtype)
    return decoder_layer(config, layer, normed, angles, causal_mask(segments))


def _taken(y: Array, places: Array) -> Array:
    return jnp.take_along_axis(y, places[..., None], axis=-2)


def _checked_words(words: Any, config: DecoderConfig) -> np.ndarray:
    numbers = np.asarray(words)
    whole = numbers.ndim == 1 and len(numbers) > 0 and np.issubdtype(numbers.dtype, np.integer)
    known = whole and numbers.min() >= 0 and numbers.max() < config.vocabulary_size
    different = known and len(np.unique(numbers)) == len(numbers)
    limit = f"hold different integers from 0 to vocabulary_size - 1={config.vocabulary_size - 1}"
    require(different, "words", limit, words, "None drafts from the whole vocabulary")
    return numbers.astype(np.int32)
