"""Options of text classification with perturbed embeddings: encoders, unrolled transformers and their runs."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le

from .constrained import ConstrainedConfig
from .constraints import DualConfig
from .data import TextConfig
from .disturbances import DROPPED, disturbance_rules
from .errors import option_text
from .fields import WIDEST, Basic, Condition, Count, Depth, Length, NonNegative, Parts, Positive, Rule, Width

Dtype = Literal["float32", "bfloat16"]
Noise = Literal["deviation", "variance"]


@dataclasses.dataclass(frozen=True)
class EncoderOptions:
    """An encoder and one readout that all of its layers share."""

    pretrained: Basic[str | None] = None
    """Folder with config.json, model.safetensors and tokenizer.json (BERT, DistilBERT, RoBERTa, MiniLM), or a
    repository of the Hugging Face hub; None draws a small encoder of words, whose sizes are those below."""
    revision: str | None = None
    """Of the repository: branch, tag or commit."""
    frozen: bool = True
    """Keep a pretrained encoder's word embeddings as they are, so that noise cannot be outgrown."""
    pooling: Literal["first", "mean"] = "first"
    """Input of the readout, of each layer: the first token, or the mean of all."""
    hidden: bool = False
    """Give the readout the hidden layer of the pretrained architecture; else it is linear, as in the paper."""
    dim: Width = 64
    """Width, without pretrained weights; the next three options likewise."""
    num_layers: Basic[Depth] = 4
    """Depth L."""
    num_heads: Depth = 4
    """Attention heads, which share out the width."""
    hidden_dim: Annotated[int, Ge(1), Le(4 * WIDEST)] = 128
    """Width between the dense layers."""
    dtype: Dtype = "float32"
    """Dtype of the layers; parameters, losses and multipliers stay float32."""


@dataclasses.dataclass(frozen=True)
class UnrolledConfig:
    """The unrolled transformer over word embeddings, and one readout that all of its layers share."""

    num_layers: Basic[Depth] = 3
    """Depth L."""
    embeddings: Basic[str | None] = None
    """A file of word vectors in the format of GloVe; or a pretrained encoder, as folder or repository, whose table and
    tokenizer are taken; None learns them."""
    frozen: bool = True
    """Keep embeddings that are given as they are."""
    dim: Width = 64
    """Width of learned embeddings."""
    positions: bool = False
    """Learn positions; without them the order of words counts for nothing."""
    pooling: Literal["first", "mean"] = "mean"
    """Input of the readout, of each layer: the mean of the tokens, or the first."""
    rank: Width | None = None
    """Rows of V; None means the width."""
    attention_scale: Positive = 0.25
    """V starts as this times the cosine transform: the square sharpens or softens attention."""
    mixing: Annotated[float, Ge(0), Le(1)] = 0.2
    """W starts as this times the identity and U as the rest: how much of a layer's first output is attention's."""
    dtype: Dtype = "float32"
    """Dtype of the layers; parameters, losses and multipliers stay float32."""


@dataclasses.dataclass(frozen=True)
class TokensConfig(ConstrainedConfig):
    """Train on tokens whose embeddings are perturbed."""

    train_examples: Count | None = None
    """Number of texts, or instructions, of the train split to train on, a fixed random choice; None means all."""
    validation_examples: Count | None = None
    """The same of the validation split."""
    test_examples: Count | None = None
    """The same of the test split."""
    train_gamma: NonNegative = 0.0
    """Noise of training: this times the standard deviation of clean embeddings of train tokens is its standard
    deviation or its variance, see --noise. The embeddings are those that training starts with."""
    test_gammas: tuple[NonNegative, ...] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
    """Noise levels of the evaluation, over which the area under the accuracy is taken."""
    noise: Noise = "deviation"
    """Meaning of gamma times the standard deviation of embeddings. deviation: the standard deviation of the noise, so
    that gamma is its size relative to an embedding that is kept as it is; variance: its variance, as the paper writes
    it, which drowns embeddings that are much smaller than 1."""
    on_collapse: Literal["stop", "warn"] = "warn"
    dual: DualConfig = dataclasses.field(default_factory=lambda: DualConfig(learning_rate=0.05))


@dataclasses.dataclass(frozen=True)
class TextRunConfig(TokensConfig):
    """Classify texts whose embeddings are perturbed (Porras-Valenzuela et al., Section 5)."""

    metric: ClassVar[str] = "validation cross entropy (nats)"

    steps: Count = 800
    batch_size: Parts = 32
    """Texts a step."""
    max_length: Length = 128
    """Most tokens of a text; longer ones lose their end, and the log has their number."""
    min_count: Count = 1
    """Least number of times that a word must occur to be a token: in the train split, or in all where word vectors from
    a file stay as they are. A pretrained encoder has its own tokens, whatever this is."""
    train_gamma: NonNegative = 0.6
    test_disturbances: tuple[str, ...] = ()
    """Disturbances of the texts in the evaluation, beside the noise of training, as in dropped=0.1 dropped=0.2: the
    share of a text's tokens that are masked out, its first one never."""
    validate_every: Count = 200
    data: TextConfig = dataclasses.field(default_factory=TextConfig)
    model: EncoderOptions | UnrolledConfig = dataclasses.field(default_factory=EncoderOptions)

    @property
    def pretrained(self) -> str | None:
        """The source of pretrained weights or word vectors; None without one."""
        return self.model.pretrained if isinstance(self.model, EncoderOptions) else self.model.embeddings

    def rules(self) -> Iterator[Rule]:
        """Yields those of all such runs, and of the encoder."""
        yield from super().rules()
        model = self.model
        if isinstance(model, EncoderOptions):
            divides = model.pretrained is not None or model.dim % model.num_heads == 0
            yield "model.num_heads", f"a divisor of {option_text('model.dim', model.dim)}", divides
        yield from disturbance_rules(self.test_disturbances, (DROPPED,))

    def conditions(self) -> Iterator[Condition]:
        """Yields those of all such runs, and of weights that are given or drawn."""
        yield from super().conditions()
        there = self.pretrained is not None
        if isinstance(self.model, UnrolledConfig):
            yield "model.frozen", option_text("model.embeddings"), there
            yield "model.dim", f"embeddings that are learned ({option_text('model.embeddings', None)})", not there
            return
        for name in ("revision", "frozen", "hidden"):
            yield f"model.{name}", option_text("model.pretrained"), there
        drawn = f"an encoder that is drawn ({option_text('model.pretrained', None)})"
        for name in ("model.dim", "model.num_layers", "model.num_heads", "model.hidden_dim", "min_count"):
            yield name, drawn, not there

    def label(self) -> str:
        """Source, depth, pretrained weights, method, noise and seed."""
        encoder = isinstance(self.model, EncoderOptions)
        depth = "" if encoder and self.pretrained else f"L{self.model.num_layers}"
        given = Path(self.pretrained).name if self.pretrained else ""
        words = (self.data.source, depth, given, self.method, f"gamma{self.train_gamma}", f"seed{self.seed}")
        return "-".join(word for word in words if word)


@dataclasses.dataclass(frozen=True)
class TextEncoderConfig(TextRunConfig):
    """Fine-tune a pretrained encoder on texts whose embeddings are perturbed."""

    task: ClassVar[str] = "text-encoder"

    model: EncoderOptions = dataclasses.field(default_factory=EncoderOptions)


@dataclasses.dataclass(frozen=True)
class TextUnrolledConfig(TextRunConfig):
    """Train an unrolled transformer on texts whose embeddings are perturbed."""

    task: ClassVar[str] = "text-ut"

    model: UnrolledConfig = dataclasses.field(default_factory=UnrolledConfig)
