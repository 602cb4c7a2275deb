"""Inputs of language models, and the decoder whose layers are read out where answers
are predicted."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from unroll_jax.models import (
    Decoder,
    DecoderConfig,
    decoder_readout,
    low_rank_changes,
    merged_changes,
    rms_norm,
)

from ...config.errors import OptionError, UserError, option_text
from ...core.task import Log, Params, Row
from ...data.files import SPLITS
from ...data.prepared import keep_examples
from ...data.pretrained.chat import byte_tokenizer
from ...data.pretrained.decoders import DecoderSource, open_decoder_source
from ...sharding import keep_rows, make_mesh, path_name, shardings
from ..common import loop_options
from ..text.tokens import token_deviation
from . import instructions
from .answers import AnswerTokenizer, PackedBatch, PackedData, tell
from .options import BYTE_ENTROPY, DescentOptions, LanguageConfig

# Factor of a drawn table: it starts with a standard deviation of 0.02, and the unit of
# noise is 1.
UNIT_VARIANCE = 50.0
LORA_ALPHA = 16.0  # low-rank changes are multiplied by this over their rank
SIZES = ("dim", "num_layers", "num_heads", "num_key_value_heads", "hidden_dim")


class _Start(NamedTuple):
    """Parameters as `shardings` takes a state."""

    params: Any


class LanguageInputs(NamedTuple):
    """A decoder to start from, and instructions in its tokens.

    Attributes:
      source: the decoder.
      answers: makes tokens of conversations.
      packed: rows of tokens. A prediction has none.
      checksums: of conversations, by split.
      embedding_std: standard deviation of an entry of the clean embeddings of train
        tokens, 1 where these are drawn.
    """

    source: DecoderSource
    answers: AnswerTokenizer
    packed: PackedData | Any
    checksums: Mapping[str, int]
    embedding_std: float

    def fingerprint(self) -> Row:
        """Returns figures that change when the conversations, their tokens or the
        pretrained parameters do."""
        given = self.source.summary
        return {
            "examples": self.packed.texts,
            "rows": {split: self.packed.num_examples(split) for split in SPLITS},
            "checksums": dict(self.checksums),
            "tokenizer_checksum": self.source.tokenizer.checksum,
            "weights_checksum": None if given is None else given.checksum,
        }

    def to_json(self) -> Row:
        """Returns all that a model needs without data and parameters, as JSON
        values."""
        return {
            "model": self.source.to_json(),
            "template": self.answers.template,
            "embedding_std": self.embedding_std,
        }


def from_json(values: Row) -> LanguageInputs:
    """Reads what `LanguageInputs.to_json` wrote: enough for a model, whose parameters
    are then loaded."""
    source = DecoderSource.from_json(**values["model"])
    answers = AnswerTokenizer(source.tokenizer, values["template"])
    return LanguageInputs(source, answers, None, {}, values["embedding_std"])


def load_inputs(options: LanguageConfig, log: Log) -> LanguageInputs:
    """Opens the instructions, and the decoder whose tokens they become."""
    data = instructions.load(options.data, log=log)
    keep_examples(data, options)
    source = open_source(options, log)
    answers = AnswerTokenizer(source.tokenizer, options.template)
    texts = {}
    for split in SPLITS:
        found = answers.fitting(data.whole(split), options.max_length)
        tell(found, split, options.max_length, log)
        texts[split] = found.texts
    packed = PackedData(texts, length=options.max_length, packing=options.packing)
    deviation = _deviation(source, packed.whole("train"))
    return LanguageInputs(source, answers, packed, data.checksums, deviation)


def token_share(data: LanguageInputs) -> float:
    """Returns the entropy of a token of the train answers over that of a byte of the
    built-in ones, 1 without data."""
    if data.packed is None:
        return 1.0
    train = data.packed.whole("train")
    counts = np.bincount(train.labels[train.weights > 0.0])
    shares = counts[counts > 0] / counts.sum()
    return float(-np.sum(shares * np.log(shares))) / BYTE_ENTROPY


def _deviation(source: DecoderSource, train: PackedBatch) -> float:
    """Returns the standard deviation of an entry of the embeddings of train tokens."""
    given = source.summary if source.has_weights else None
    if given is None:
        return 1.0  # of drawn embeddings. A plan without weights takes any
    used = train.tokens[train.segments > 0]
    counts = np.bincount(used, minlength=len(given.means))
    return token_deviation(counts, given.means, given.squares)


def open_source(options: LanguageConfig, log: Log) -> DecoderSource:
    """Returns the decoder that options name, with its weights on the mesh, or a drawn
    one of bytes."""
    given, length = options.model.pretrained, options.max_length
    if given is None:
        tokenizer = byte_tokenizer()
        config = DecoderConfig(
            vocabulary_size=tokenizer.size,
            max_positions=length,
            rotary_base=1e4,
            tied=False,
            **{name: getattr(options.model, name) for name in SIZES},
        )
        return DecoderSource(config, tokenizer)
    opened = open_decoder_source(given, option="--model.pretrained", log=log)
    if length > opened.config.max_positions:
        raise UserError(
            f"{option_text('max_length', length)} is longer than {given} reads,"
            f" {opened.config.max_positions} tokens; lower it"
        )
    mesh = make_mesh(
        options.mesh, batch_size=options.batch_size, accumulate=options.accumulate
    )
    return dataclasses.replace(
        opened,
        dtype=stored_dtype(options),
        place=lambda params: shardings(_Start(params), mesh).params,
    )


def stored_dtype(options: LanguageConfig) -> Any:
    """Returns the dtype of the decoder's parameters: float32 where they are trained,
    else the computation's."""
    return jnp.dtype(options.model.dtype) if options.freezes else jnp.float32


class LanguageModel(NamedTuple):
    """A decoder, some of whose layers are read out.

    Attributes:
      layers: their numbers, rising from 0, the embedded input.
      init: ``key -> params``: those of the decoder and, with a rank, low-rank changes,
        which start at 0.
      trained: ``params -> bool`` for each: changes only. None where all are trained.
      read: ``(params, batch, noise, keys) -> (states, head)``: normalised states of
        these layers at the places of a batch, (layers, batch, kept, dim), and the
        matrix that they are read out by. ``keys`` of dropout by row, None for none.
      decoder: ``params -> parameters`` for `unroll_jax.models.generate`, the changes
        added.
    """

    layers: tuple[int, ...]
    init: Callable[[jax.Array], Params]
    trained: Callable[[Params], Any] | None
    read: Callable[..., tuple[jax.Array, jax.Array]]
    decoder: Callable[[Params], Any]


def build_model(options: LanguageConfig, config: DecoderConfig) -> LanguageModel:
    """Builds the decoder of options."""
    dtype, rank = jnp.dtype(options.model.dtype), options.model.lora_rank
    layers = layers_read(options.descent, config.num_layers)
    module = Decoder(
        config,
        dtype=dtype,
        param_dtype=stored_dtype(options),
        dropout=options.dropout,
        **loop_options(options),
    )

    def init(key: jax.Array) -> Params:
        of_decoder, of_changes = jax.random.split(key)
        variables: Any = module.init(of_decoder, jnp.zeros((1, 1), jnp.int32))
        drawn = dict(variables["params"])
        drawn["embedding"] = UNIT_VARIANCE * drawn["embedding"]
        params = {"decoder": drawn}
        if rank is not None:
            params["changes"] = low_rank_changes(of_changes, config, rank=rank)
        return params

    def trained(params: Params) -> Any:
        return jax.tree.map_with_path(
            lambda path, _: path_name(path).startswith("changes"), params
        )

    def parts(params: Params) -> tuple[Any, Any]:
        """Returns the decoder, and the changes as layers take them."""
        if rank is None:
            return params["decoder"], None
        changes = {
            name: {**change, "expand": LORA_ALPHA / rank * change["expand"]}
            for name, change in params["changes"].items()
        }
        return params["decoder"], changes

    def read(params: Params, batch: PackedBatch, noise: Any, keys: Any = None) -> Any:
        tokens, segments, places = (keep_rows(jnp.asarray(part)) for part in batch[:3])
        decoder, changes = parts(params)
        scale, head = decoder_readout(decoder)
        states: Any = module.apply(
            {"params": decoder},
            tokens,
            segments=segments,
            perturbation=noise,
            record=lambda y: jnp.take_along_axis(
                keep_rows(y), places[..., None], axis=1
            ),
            changes=changes,
            dropout_key=keys,
        )
        return rms_norm(states[jnp.array(layers)], scale, config.norm_epsilon), head

    def decoder(params: Params) -> Any:
        start, changes = parts(params)
        if changes is None:
            return start
        return {**start, "layers": merged_changes(start["layers"], changes)}

    return LanguageModel(
        layers, init, trained if options.freezes else None, read, decoder
    )


def layers_read(options: DescentOptions, num_layers: int) -> tuple[int, ...]:
    """Returns the numbers of the layers that are read out, rising, 0 among them."""
    if options.every > num_layers:
        raise OptionError(
            "descent.every", f"at most the {num_layers} layers there are", options.every
        )
    return (0, *reversed(range(num_layers, 0, -options.every)))
