"""Options of text classification and of language models, both with perturbed
embeddings: models and runs."""

import dataclasses
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from ...config.constrained import ConstrainedConfig, check_heads
from ...config.constraints import ConstraintConfig, DualConfig
from ...config.data import InstructionConfig, TextConfig
from ...config.errors import OptionError, option_text
from ...config.options import (
    WIDEST,
    Count,
    Depth,
    Length,
    NonNegative,
    NonNegatives,
    Parts,
    Share,
    Text,
    Width,
    check_left_out,
    options,
    with_value,
)
from ...config.run import DecayedPrimalConfig

Dtype = Literal["float32", "bfloat16"]
Noise = Literal["deviation", "variance"]
# Sizes of a model that is drawn.
SIZES = ("model.dim", "model.num_layers", "model.num_heads", "model.hidden_dim")


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
            check_left_out(self, names, _which(given, "model.embeddings"))
            return
        names = ["min_count", *SIZES] if given else ["model.frozen", "model.hidden"]
        check_left_out(self, names, _which(given, "model.pretrained"))
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


@options
class DecoderOptions:
    """A decoder of Llama's family, whose every layer is read out by its own norm and
    head."""

    pretrained: Text | None = None
    """Folder with config.json, model.safetensors and tokenizer.json of Llama 3,
    SmolLM2, Qwen2 or Qwen3; None draws a small decoder of bytes, as below.
    """
    dim: Width = 64
    """Width, without pretrained weights; the next four options likewise."""
    num_layers: Depth = 4
    """Depth L."""
    num_heads: Depth = 4
    """Heads of queries, which share out the width."""
    num_key_value_heads: Depth = 2
    """Heads of keys and values, each of which serves as many heads of queries."""
    hidden_dim: Annotated[int, Field(ge=1, le=4 * WIDEST)] = 176
    """Width between the dense layers."""
    lora_rank: Width | None = None
    """Train low-rank changes of this rank to every dense layer, and nothing else;
    None trains all parameters."""
    dtype: Dtype = "float32"
    """Dtype of the layers; parameters, losses and multipliers stay float32."""


@options
class DescentOptions:
    """Layers that are read out, and positions: layers between two of them count as
    one layer of the constraints."""

    every: Count = 1
    """Every k-th layer, counted back from the last."""
    positions: Count = 1
    """Read layers before the last at one in so many of a row's positions, drawn anew
    in each step."""


# Without a reference a decoder that is drawn meets descent bounds by making layer 0 bad
# (a loss of 8.7, plain 3.9).
@options
class LanguageConfig(TokensConfig):
    """Fine-tune a decoder on instructions whose embeddings are perturbed
    (Porras-Valenzuela et al., Section 6)."""

    task: ClassVar[str] = "language"
    metric: ClassVar[str] = "validation loss of a token (nats)"

    steps: Count = 1000
    batch_size: Parts = 16
    """Rows a step, each with as many instructions as have room."""
    max_length: Length = 128
    """Tokens of a row; longer answers lose their end, and instructions that leave no
    room for one are left out."""
    packing: bool = True
    """Put several instructions into a row, none of which sees another; else each has
    its row."""
    template: Literal["chat", "alpaca"] | None = None
    """chat: the tokenizer's; alpaca: Stanford's; None: the former where the
    tokenizer has one."""
    train_gamma: NonNegative = 0.25
    validate_every: Count = 250
    data: InstructionConfig = dataclasses.field(default_factory=InstructionConfig)
    model: DecoderOptions = dataclasses.field(default_factory=DecoderOptions)
    descent: DescentOptions = dataclasses.field(default_factory=DescentOptions)
    dropout: Share = 0.0
    """Share of the outputs of a layer's parts that a step of training drops."""
    primal: DecayedPrimalConfig = dataclasses.field(
        default_factory=lambda: DecayedPrimalConfig(learning_rate=3e-3)
    )
    constraints: ConstraintConfig = dataclasses.field(
        default_factory=lambda: ConstraintConfig(
            alpha=(0.1,), reference=4.5, margin=0.0, first_margin=0.0
        )
    )

    def resolved(self) -> Self:
        """Low-rank changes leave the embedding, and so the loss of layer 0, as it
        is: no reference bounds it."""
        config = super().resolved()
        if not self.freezes:
            return config
        return with_value(config, "constraints.reference", None)

    def check(self) -> None:
        """Checks the rules of all such runs, and of the decoder."""
        super().check()
        model = self.model
        if not self.constraints.of_means:
            allowed = "of means for language, whose losses are means over all tokens"
            raise OptionError("constraints.form", allowed, self.constraints.form)
        if model.pretrained is not None:
            names = [*SIZES, "model.num_key_value_heads"]
            check_left_out(self, names, _which(True, "model.pretrained"))
            return
        if model.lora_rank is not None:
            allowed = "None for a decoder that is drawn"
            raise OptionError("model.lora_rank", allowed, model.lora_rank)
        if model.dim % (2 * model.num_heads):
            dim = option_text("model.dim", model.dim)
            allowed = f"such that {dim} over it is even"
            raise OptionError("model.num_heads", allowed, model.num_heads)
        if model.num_heads % model.num_key_value_heads:
            allowed = f"a divisor of {option_text('model.num_heads', model.num_heads)}"
            name = "model.num_key_value_heads"
            raise OptionError(name, allowed, model.num_key_value_heads)

    @property
    def depth(self) -> None:
        """None: `descent` chooses layers of the model that is read."""

    @property
    def freezes(self) -> bool:
        """True where the decoder stays as it is."""
        return self.model.lora_rank is not None


def _which(given: bool, source: str) -> str:
    """The words for a model that is drawn, which one that is given is not, and the
    other way round."""
    if given:
        return f"a model that is drawn ({option_text(source, None)})"
    return option_text(source)
