"""Options of text classification and of language models, both with perturbed
embeddings: models and runs."""

import dataclasses
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ...config.constrained import (
    ConstrainedConfig,
    DualConfig,
    check_heads,
)
from ...config.errors import option_text
from ...config.options import (
    WIDEST,
    Count,
    Depth,
    Fraction,
    Length,
    NonNegative,
    NonNegatives,
    Parts,
    Share,
    Text,
    Width,
    check_left_out,
    options,
)
from ...config.run import SourceConfig

Dtype = Literal["float32", "bfloat16"]
Noise = Literal["deviation", "variance"]
# Sizes of a model that is drawn.
SIZES = ("model.dim", "model.num_layers", "model.num_heads", "model.hidden_dim")


TextSource = Literal["verdicts", "imdb", "sst2", "mnli", "table"]


@options
class TextConfig(SourceConfig):
    """Texts to classify, and the folder for prepared data."""

    source: TextSource = "verdicts"
    """verdicts: made-up sentences, no files needed. imdb, sst2, mnli: the published
    files, as folder or archive. table: a TSV, CSV or JSONL of your own.
    """
    validation_share: Fraction = 0.1
    """Share of the train texts held out for validation, stratified, where the data come
    without it (imdb, mnli, a table without such a file). A table without test file
    gives as much for that.
    """
    text_column: Text = "text"
    """Of a table: the column of the text."""
    label_column: Text = "label"
    """Of a table: the column of the class, which is a name or a number."""


@options
class EncoderOptions:
    """An encoder and one readout that all of its layers share."""

    pretrained: Text | None = None
    """Folder with config.json, model.safetensors and tokenizer.json (BERT, DistilBERT,
    RoBERTa, MiniLM), or a repository of the Hugging Face hub; None draws a small
    encoder of words, whose sizes are those below.
    """
    frozen: bool = True
    """Keep a pretrained encoder's word embeddings as they are: noise then cannot be
    outgrown."""
    pooling: Literal["first", "mean"] = "first"
    """Input of the readout, of each layer: the first token ([CLS] of pretrained
    encoders), or the mean of all."""
    hidden: bool = False
    """Give the readout the hidden layer of the pretrained architecture; else it is
    linear, as in the paper."""
    dim: Width = 64
    """Width, without pretrained weights; the next three options likewise."""
    num_layers: Depth = 4
    """Depth L."""
    num_heads: Depth = 4
    """Attention heads, which share out the width."""
    hidden_dim: Annotated[int, Field(ge=1, le=4 * WIDEST)] = 128
    """Width between the dense layers."""
    dtype: Dtype = "float32"
    """Dtype of the layers; parameters, losses and multipliers stay float32."""


@options
class UnrolledConfig:
    """The unrolled transformer over word embeddings, and one readout that all of its
    layers share."""

    num_layers: Depth = 3
    """Depth L."""
    embeddings: Text | None = None
    """An encoder, as folder or repository, for its word embeddings; None learns
    them."""
    frozen: bool = True
    """Keep embeddings of an encoder as they are."""
    dim: Width = 64
    """Width of learned embeddings."""
    positions: bool = False
    """Learn positions; without them the order of words counts for nothing."""
    rank: Width | None = None
    """Rows of V; None means the width."""
    dtype: Dtype = "float32"
    """Dtype of the layers; parameters, losses and multipliers stay float32."""


@options
class TokensConfig(ConstrainedConfig):
    """Train on tokens whose embeddings are perturbed."""

    train_examples: Count | None = None
    """Number of texts, or instructions, of the train split to train on, a fixed
    random choice; None means all."""
    validation_examples: Count | None = None
    """The same of the validation split."""
    test_examples: Count | None = None
    """The same of the test split."""
    train_gamma: NonNegative = 0.0
    """Noise of training: this times the standard deviation of clean embeddings of train
    tokens is its standard deviation or its variance, see --noise. The embeddings are
    those that training starts with.
    """
    test_gammas: NonNegatives = (
        0.0,
        0.25,
        0.5,
        0.75,
        1.0,
        1.25,
        1.5,
        1.75,
        2.0,
    )
    """Noise levels of the evaluation, over which the area under the accuracy is
    taken."""
    noise: Noise = "deviation"
    """gamma times the standard deviation of embeddings is the noise's deviation, or
    (as in the paper) its variance."""
    dual: DualConfig = dataclasses.field(
        default_factory=lambda: DualConfig(learning_rate=0.05)
    )


@options
class TextRunConfig(TokensConfig):
    """Classify texts whose embeddings are perturbed (Porras-Valenzuela et al.,
    Section 5)."""

    metric: ClassVar[str] = "validation cross entropy (nats)"

    steps: Count = 800
    batch_size: Parts = 32
    """Texts a step."""
    max_length: Length = 128
    """Most tokens of a text; longer ones lose their end, and the log has their
    number."""
    min_count: Count = 1
    """Least number of times that a word must occur in the train split."""
    train_gamma: NonNegative = 0.6
    validate_every: Count = 200
    data: TextConfig = dataclasses.field(default_factory=TextConfig)
    model: EncoderOptions | UnrolledConfig = dataclasses.field(
        default_factory=EncoderOptions
    )

    @property
    def pretrained(self) -> str | None:
        """The source of pretrained weights or word embeddings; None without one."""
        return (
            self.model.pretrained
            if isinstance(self.model, EncoderOptions)
            else self.model.embeddings
        )

    @property
    def is_encoder(self) -> bool:
        """True for an encoder, False for an unrolled transformer."""
        return isinstance(self.model, EncoderOptions)

    def check(self) -> None:
        """Checks the rules of all such runs, and those of weights that are given or
        drawn."""
        super().check()
        model = self.model
        given = self.pretrained is not None
        if isinstance(model, UnrolledConfig):
            names = ["model.dim"] if given else ["model.frozen"]
            check_left_out(self, names, which_model(given, "model.embeddings"))
            return
        names = ["min_count", *SIZES] if given else ["model.frozen", "model.hidden"]
        check_left_out(self, names, which_model(given, "model.pretrained"))
        if not given:
            check_heads(model)


@options
class TextEncoderConfig(TextRunConfig):
    """Fine-tune a pretrained encoder on texts whose embeddings are perturbed."""

    task: ClassVar[str] = "text-encoder"
    model: EncoderOptions = dataclasses.field(default_factory=EncoderOptions)
    dropout: Share = 0.0
    """Share of the outputs of a layer's parts that a step of training drops."""


@options
class TextUnrolledConfig(TextRunConfig):
    """Train an unrolled transformer on texts whose embeddings are perturbed."""

    task: ClassVar[str] = "text-ut"
    model: UnrolledConfig = dataclasses.field(default_factory=UnrolledConfig)


def which_model(given: bool, source: str) -> str:
    """The words for a model that is drawn, which one that is given is not, and the
    other way round."""
    if given:
        return f"a model that is drawn ({option_text(source, None)})"
    return option_text(source)
