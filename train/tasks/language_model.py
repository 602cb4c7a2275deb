"""The decoder of a language experiment: its source, the rows of instructions in its
tokens, and the layers read out."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.models import (
    Decoder,
    DecoderConfig,
    decoder_readout,
    low_rank_changes,
    merged_changes,
    rms_norm,
)

from ..config.errors import OptionError, UserError, option_text
from ..config.tokens import DecoderOptions, DescentOptions, LanguageConfig
from ..core.task import Log, Params
from ..data import instructions
from ..data.answers import AnswerTokenizer, PackedBatch, PackedData, Template, tell
from ..data.files import SPLITS
from ..data.pretrained.chat import byte_tokenizer
from ..data.pretrained.decoders import DecoderSource, open_decoder_source
from ..data.reader import keep_examples
from ..data.tokens import token_deviation
from ..sharding.mesh import keep_rows, make_mesh
from ..sharding.rules import shardings
from .networks import loop_options

# Factor of a drawn table: it starts with a standard deviation of 0.02, and the unit of
# noise is 1.
UNIT_VARIANCE = 50.0

LORA_ALPHA = 16.0  # low-rank changes are multiplied by this over their rank


class _Start(NamedTuple):
    """Parameters as `shardings` takes a state."""

    params: Any


class LanguageInputs:
    """A decoder and instructions as ``packed`` rows of its tokens; to predict, only the
    decoder. ``answers`` makes tokens of conversations, whose ``checksums`` are by
    split.
    """

    def __init__(
        self,
        source: DecoderSource,
        answers: AnswerTokenizer,
        *,
        packed: PackedData | Any,
        checksums: Mapping[str, int] | None = None,
        embedding_std: float | None = None,
    ) -> None:
        self.source, self.answers, self.checksums = (
            source,
            answers,
            dict(checksums or {}),
        )
        self.packed, self._embedding_std = packed, embedding_std

    @property
    def num_rows(self) -> int | None:
        """Rows of the train split; None without data."""
        return None if self.packed is None else self.packed.num_examples("train")

    @functools.cached_property
    def embedding_std(self) -> float:
        """Standard deviation of an entry of the clean embeddings of train tokens; 1
        where these are drawn."""
        if self._embedding_std is not None:
            return self._embedding_std
        given = self.source.summary if self.source.has_weights else None
        if given is None:
            return 1.0  # of drawn embeddings; a plan without weights takes any
        train = self.packed.whole("train")
        counts = np.bincount(
            train.tokens[train.segments > 0], minlength=len(given.means)
        )
        return token_deviation(counts, given.means, given.squares)

    def to_json(self) -> dict[str, Any]:
        """Returns all that a model needs without data and parameters, as JSON
        values."""
        return {
            "model": self.source.to_json(),
            "template": self.answers.template,
            "embedding_std": self.embedding_std,
        }

    @classmethod
    def from_json(
        cls, model: Mapping[str, Any], template: Template, embedding_std: float
    ) -> "LanguageInputs":
        """Reads what `to_json` wrote: enough for a model, whose parameters are then
        loaded."""
        source = DecoderSource.from_json(**model)
        return cls(
            source,
            AnswerTokenizer(source.tokenizer, template),
            packed=None,
            embedding_std=embedding_std,
        )

    def data_fingerprint(self) -> dict[str, Any]:
        """Returns figures that change when the conversations, their tokens or the
        pretrained parameters do."""
        given = self.source.summary
        return {
            "examples": self.packed.texts,
            "rows": {split: self.packed.num_examples(split) for split in SPLITS},
            "checksums": self.checksums,
            "tokenizer_checksum": self.source.tokenizer.checksum,
            "weights_checksum": None if given is None else given.checksum,
        }


class LanguageModel:
    """A decoder whose ``layers`` (by number, from 0, the embedded input) are read
    out where answers are predicted."""

    def __init__(self, config: LanguageConfig, source: DecoderSource) -> None:
        options, shape = config.model, source.config
        self.source, self.dim, self._options, self._dtype = (
            source,
            shape.dim,
            options,
            stored_dtype(config),
        )
        self.layers = layers_read(config.descent, shape.num_layers)
        self.module = Decoder(
            shape, dtype=jnp.dtype(options.dtype), **loop_options(config)
        )

    def init(self, key: jax.Array) -> Params:
        """Draws parameters; with a rank, also low-rank changes, which start at 0."""
        of_decoder, of_changes = jax.random.split(key)
        drawn: Any = self.module.init(of_decoder, jnp.zeros((1, 1), jnp.int32))
        decoder = {
            **drawn["params"],
            "embedding": UNIT_VARIANCE * drawn["params"]["embedding"],
        }
        decoder = jax.tree.map(lambda leaf: leaf.astype(self._dtype), decoder)
        rank = self._options.lora_rank
        if rank is None:
            return {"decoder": decoder}
        return {
            "decoder": decoder,
            "changes": low_rank_changes(of_changes, self.source.config, rank=rank),
        }

    def trained(self, params: Params) -> Any:
        """Returns for each parameter whether it is trained; None where all are."""
        if params.keys() == {"decoder"}:
            return None
        return {
            name: jax.tree.map(lambda _, free=name != "decoder": free, part)
            for name, part in params.items()
        }

    def states(
        self, params: Params, batch: PackedBatch, noise: Array | None
    ) -> Float[Array, "layers batch kept dim"]:
        """Normalised states of the layers that are read, at the places of a batch,
        ready for the head."""
        tokens, segments, places = (keep_rows(jnp.asarray(part)) for part in batch[:3])
        decoder, changes = self._parts(params)
        scale, _ = decoder_readout(decoder)

        def kept(y: Array) -> Array:
            return jnp.take_along_axis(keep_rows(y), places[..., None], axis=1)

        recorded = self.module.apply(
            {"params": decoder},
            tokens,
            segments=segments,
            perturbation=noise,
            record=kept,
            changes=changes,
        )
        read: Any = recorded[jnp.array(self.layers)]  # pyright: ignore (Flax gives no type)
        return rms_norm(read, scale, self.source.config.norm_epsilon)

    def head(self, params: Params) -> Float[Array, "vocabulary dim"]:
        """Returns the matrix that states are read out by."""
        return decoder_readout(self._parts(params)[0])[1]

    def decoder(self, params: Params) -> Any:
        """The decoder, its kernels with their changes added, as
        `unroll_jax.models.generate` takes it."""
        decoder, changes = self._parts(params)
        return (
            decoder
            if changes is None
            else {**decoder, "layers": merged_changes(decoder["layers"], changes)}
        )

    def _parts(self, params: Params) -> tuple[Any, Any]:
        """The decoder, and the changes as layers take them; frozen parameters have
        no gradient."""
        if "changes" not in params:
            return params["decoder"], None
        rank = self._options.lora_rank
        assert rank is not None
        scale = LORA_ALPHA / rank
        changes = {
            part: {**change, "expand": scale * change["expand"]}
            for part, change in params["changes"].items()
        }
        return jax.lax.stop_gradient(params["decoder"]), changes


def layers_read(options: DescentOptions, num_layers: int) -> tuple[int, ...]:
    """Numbers of the layers that are read out, rising, 0 among them."""
    if options.every > num_layers:
        raise OptionError(
            "descent.every", f"at most the {num_layers} layers there are", options.every
        )
    return (0, *reversed(range(num_layers, 0, -options.every)))


def load_inputs(config: LanguageConfig, log: Log) -> LanguageInputs:
    """Opens the instructions, and the decoder whose tokens they become."""
    data = instructions.load(config.data, log=log)
    keep_examples(data, config)
    source = open_source(config, log)
    answers = AnswerTokenizer(source.tokenizer, config.template)
    by_split = {
        split: answers.fitting(data.whole(split), config.max_length) for split in SPLITS
    }
    for split, tokenised in by_split.items():
        tell(tokenised, split, config.max_length, log)
    texts = {split: one.texts for split, one in by_split.items()}
    packed = PackedData(texts, length=config.max_length, packing=config.packing)
    return LanguageInputs(source, answers, packed=packed, checksums=data.checksums)


def open_source(config: LanguageConfig, log: Log) -> DecoderSource:
    """Returns the decoder that a configuration names, with its weights on the mesh;
    or a drawn one of bytes."""
    model, length = config.model, config.max_length
    if model.pretrained is None:
        tokenizer = byte_tokenizer()
        return DecoderSource(_drawn(model, tokenizer.size, length), tokenizer)
    opened = open_decoder_source(model.pretrained, option="--model.pretrained", log=log)
    if length > opened.config.max_positions:
        raise UserError(
            f"{option_text('max_length', length)} is longer than {model.pretrained}"
            f" reads, {opened.config.max_positions} tokens; lower it"
        )
    mesh = make_mesh(
        config.mesh, batch_size=config.batch_size, accumulate=config.accumulate
    )

    def place(params: Any) -> Any:
        return shardings(_Start(params), mesh).params

    return dataclasses.replace(opened, dtype=stored_dtype(config), place=place)


def stored_dtype(config: LanguageConfig) -> Any:
    """Returns the dtype of the decoder's parameters: float32 where they are trained,
    else the computation's."""
    return jnp.dtype(config.model.dtype) if config.freezes else jnp.float32


def _drawn(options: DecoderOptions, vocabulary_size: int, length: int) -> DecoderConfig:
    names = ("dim", "num_layers", "num_heads", "num_key_value_heads", "hidden_dim")
    sizes = {name: getattr(options, name) for name in names}
    return DecoderConfig(
        vocabulary_size=vocabulary_size,
        max_positions=length,
        rotary_base=1e4,
        tied=False,
        **sizes,
    )
