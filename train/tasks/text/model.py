"""Inputs of text classification, and the classifier of them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from unroll_jax.models import Classifier, Encoder, EncoderConfig, UnrolledClassifier

from ...config.errors import OptionError, UserError, option_text
from ...core.task import Log, Params, Row
from ...data.files import SPLITS
from ...data.prepared import keep_examples
from ...data.pretrained.encoders import Pretrained, load_pretrained, start_from
from ...sharding import path_name
from ...system.distributed import weights_checksum
from ..common import START, loop_options, unrolled_transformer
from . import data as text
from .options import TextRunConfig
from .tokens import TextSpec, TokenData, learn_words, token_deviation

FEWEST_TO_VALIDATE = 2  # one for each half
WORDS = "embeddings/word/embedding"  # end of the path of the table of words
# Factor of a drawn encoder's tables: they start with a standard deviation of 0.02, and
# the unit of noise is 1.
UNIT_VARIANCE = 50.0
SIZES = ("dim", "num_layers", "num_heads", "hidden_dim")  # of a drawn encoder


class TextInputs(NamedTuple):
    """Texts and the pretrained part of the model. Absent parts are None.

    Attributes:
      spec: classes and tokenizer.
      tokens: batches of texts. A prediction has none.
      pretrained: an encoder.
      table: given word embeddings, (tokens, dim), also those of an encoder.
      embedding_std: standard deviation of an entry of the clean embeddings of train
        tokens, 1 where these are learned, as they start with it.
    """

    spec: TextSpec
    tokens: TokenData | Any = None
    pretrained: Pretrained | None = None
    table: np.ndarray | None = None
    embedding_std: float = 1.0

    @property
    def vocabulary_size(self) -> int:
        """The number of different tokens."""
        return len(self.spec.tokenizer.vocabulary if self.table is None else self.table)

    def fingerprint(self) -> Row:
        """Returns figures that change when the texts, their labels, the numbers of
        tokens or the given weights do. Words are not stored: a run learns them again
        from the texts, and edited texts may give them other numbers.
        """
        given: Any = self.table
        if self.pretrained is not None:
            given = self.pretrained.params, self.pretrained.head
        return {
            "examples": {split: self.tokens.num_examples(split) for split in SPLITS},
            "classes": list(self.spec.class_names),
            "vocabulary": self.vocabulary_size,
            "texts_checksums": self.tokens.checksums,
            "tokenizer_checksum": self.spec.tokenizer.checksum,
            "weights_checksum": weights_checksum(given),
        }

    def to_json(self) -> Row:
        """Returns all that a model needs without the texts, as JSON values."""
        return {
            **self.spec.to_json(),
            "embedding_std": self.embedding_std,
            "hidden": None if self.pretrained is None else self.pretrained.hidden,
            "table": None if self.table is None else list(self.table.shape),
        }


def from_json(values: Row) -> TextInputs:
    """Reads what `TextInputs.to_json` wrote: enough for a model, whose parameters are
    then loaded."""
    rest = dict(values)
    deviation, hidden, shape = map(rest.pop, ("embedding_std", "hidden", "table"))
    spec = TextSpec.from_json(rest)
    pretrained = table = None
    if hidden is not None:
        config = spec.tokenizer.config
        pretrained = Pretrained(config, {}, {}, hidden, spec.tokenizer)
    if shape is not None:
        table = np.broadcast_to(np.float32(0.0), shape)
    return TextInputs(spec, None, pretrained, table, deviation)


def load_inputs(options: TextRunConfig, log: Log) -> TextInputs:
    """Opens the texts and the pretrained part of the model."""
    data = text.load(options.data, log=log)
    keep_examples(data, options)
    if (count := data.num_examples("validation")) < FEWEST_TO_VALIDATE:
        allowed = (
            f"at least {FEWEST_TO_VALIDATE}, one for each half of early exit; or give"
            " more texts"
        )
        raise OptionError("validation_examples", allowed, count)

    pretrained = None
    if options.pretrained is None:
        tokenizer: Any = learn_words(data, at_least=options.min_count)
    else:
        pretrained = _pretrained(options, options.pretrained, log)
        tokenizer = pretrained.tokenizer

    length = options.max_length
    try:
        tokenizer.encode(["a"], ["a"] if data.pairs else None, max_length=length)
    except ValueError as error:
        raise UserError(
            f"{option_text('max_length', length)} does not fit the tokenizer: {error}"
        ) from error
    tokens = TokenData(data, tokenizer, max_length=length, log=log)
    if pretrained is None:
        return TextInputs(tokens.spec, tokens)
    table = np.asarray(pretrained.params["embeddings"]["word"]["embedding"])
    deviation = _deviation(table, tokens)
    encoder = pretrained if options.is_encoder else None
    return TextInputs(tokens.spec, tokens, encoder, table, deviation)


def _pretrained(options: TextRunConfig, source: str, log: Log) -> Pretrained:
    option = "--model.pretrained" if options.is_encoder else "--model.embeddings"
    # allowed, as it may be the experiment's default for learned embeddings
    if options.min_count != 1:
        log(
            f"{option_text('min_count', options.min_count)} has no effect: the tokens"
            f" are those of {source}"
        )
    return load_pretrained(source, option=option, log=log)


def _deviation(table: np.ndarray, tokens: TokenData) -> float:
    """Returns the standard deviation of an entry of the embeddings of train tokens."""
    if np.ptp(table) == 0.0:
        raise UserError(
            "all entries of the given word embeddings are one number, so noise would be"
            " 0; give others"
        )
    counts = np.zeros(len(table))
    for batch in tokens.examples("train", batch_size=1024):
        counts += np.bincount(batch.tokens[batch.mask], minlength=len(counts))
    wide = table.astype(np.float64)
    return token_deviation(counts, np.mean(wide, axis=1), np.mean(wide**2, axis=1))


def build_module(
    options: TextRunConfig, data: TextInputs
) -> Classifier | UnrolledClassifier:
    """Builds the classifier of options: an encoder, or an unrolled transformer."""
    settings: Any = options.model
    given, loop = data.pretrained, loop_options(options)
    classes = len(data.spec.class_names)
    if not options.is_encoder:
        return UnrolledClassifier(
            unrolled_transformer(settings, width(options, data), **loop, **START),
            data.vocabulary_size,
            classes,
            max_positions=options.max_length if settings.positions else None,
        )
    if given is not None:
        config = given.config
    else:
        config = EncoderConfig(
            vocabulary_size=data.vocabulary_size,
            max_positions=options.max_length,
            padding_token=data.spec.tokenizer.padding_token,
            **{name: getattr(settings, name) for name in SIZES},
        )
    hidden = given.hidden if given is not None and settings.hidden else None
    dropout = getattr(options, "dropout", 0.0)
    encoder = Encoder(config, dtype=jnp.dtype(settings.dtype), dropout=dropout, **loop)
    return Classifier(encoder, classes, settings.pooling, hidden)


def width(options: TextRunConfig, data: TextInputs) -> int:
    """Returns the width of tokens."""
    return options.model.dim if data.table is None else data.table.shape[1]


def init(module: Any, data: TextInputs, key: jax.Array) -> Params:
    """Draws parameters, with pretrained ones in their place."""
    given, table = data.pretrained, data.table
    if given is not None and given.params:
        return start_from(given, module, key)
    params = module.init(key, jnp.zeros((1, 1), jnp.int32))
    is_encoder = isinstance(module, Classifier)

    def start(path: Any, leaf: Any) -> Any:
        name = path_name(path)
        if table is None and is_encoder and name.endswith("embedding"):
            return UNIT_VARIANCE * leaf
        if table is not None and name.endswith(WORDS):
            return jnp.asarray(table)
        return leaf

    return jax.tree.map_with_path(start, params)


def all_but_words(params: Params) -> Any:
    """Returns which parameters are trained where word embeddings are frozen."""
    return jax.tree.map_with_path(
        lambda path, _: not path_name(path).endswith(WORDS), params
    )
