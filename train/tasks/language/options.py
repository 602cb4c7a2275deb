"""Options of language models: data, the decoder and its runs."""

import dataclasses
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from ...config.constrained import (
    ConstraintConfig,
)
from ...config.errors import OptionError, option_text
from ...config.options import (
    WIDEST,
    Count,
    Depth,
    Fraction,
    Length,
    NonNegative,
    Parts,
    Share,
    Text,
    Width,
    check_left_out,
    options,
    with_value,
)
from ...config.run import DecayedPrimalConfig, SourceConfig
from ..text.options import SIZES, Dtype, TokensConfig, which_model

InstructionSource = Literal["chores", "alpaca"]


@options
class InstructionConfig(SourceConfig):
    """Instructions that a language model learns to follow, and the folder for
    prepared data."""

    source: InstructionSource = "chores"
    """chores: made-up instructions of a few words, no files needed. alpaca: a .json
    list or .jsonl, or a folder with train.jsonl, and where there are any
    validation.jsonl and test.jsonl; each object has "instruction", perhaps "input", and
    "output"; or "prompt" and "answer".
    """
    validation_share: Fraction = 0.1
    """Share held out for validation, and as much for test; chores, and a folder with
    such files, keep their own."""


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
            check_left_out(self, names, which_model(True, "model.pretrained"))
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
