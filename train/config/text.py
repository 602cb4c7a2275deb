"""Text classification with perturbed embeddings: encoders, unrolled transformers, and the numbers of their runs."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from .basic import Basic
from .checks import check_training
from .constraints import ConstrainedConfig, DualConfig
from .data import TextConfig
from .disturbances import DROPPED, disturbance_rules
from .fields import Rule, check_used, positive

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
    dim: int = 64
    """Width, without pretrained weights; the next three options likewise."""
    num_layers: Basic[int] = 4
    """Depth L."""
    num_heads: int = 4
    """Attention heads, which share out the width."""
    hidden_dim: int = 128
    """Width between the dense layers."""
    dtype: Dtype = "float32"
    """Dtype of the layers; parameters, losses and multipliers stay float32."""


@dataclasses.dataclass(frozen=True)
class UnrolledConfig:
    """The unrolled transformer over word embeddings, and one readout that all of its layers share."""

    num_layers: Basic[int] = 3
    """Depth L."""
    embeddings: Basic[str | None] = None
    """A file of word vectors in the format of GloVe; or a pretrained encoder, as folder or repository, whose table and
    tokenizer are taken; None learns them."""
    frozen: bool = True
    """Keep embeddings that are given as they are."""
    dim: int = 64
    """Width of learned embeddings."""
    positions: bool = False
    """Learn positions; without them the order of words counts for nothing."""
    pooling: Literal["first", "mean"] = "mean"
    """Input of the readout, of each layer: the mean of the tokens, or the first."""
    rank: int | None = None
    """Rows of V; None means the width."""
    attention_scale: float = 0.25
    """V starts as this times the cosine transform: the square sharpens or softens attention."""
    mixing: float = 0.2
    """W starts as this times the identity and U as the rest: how much of a layer's first output is attention's."""
    dtype: Dtype = "float32"
    """Dtype of the layers; parameters, losses and multipliers stay float32."""


@dataclasses.dataclass(frozen=True)
class TextRunConfig(ConstrainedConfig):
    """Classify texts whose embeddings are perturbed (Porras-Valenzuela et al., Section 5)."""

    metric: ClassVar[str] = "validation cross entropy (nats)"
    unit: ClassVar[str] = "nats"
    ranges: ClassVar[Mapping[str, str]] = {"primal": "1e-5:3e-3", "dual": "5e-3:0.5", "alpha": "0.05:0.4"}

    steps: int = 800
    """Training steps."""
    batch_size: int = 32
    """Texts a step."""
    max_length: int = 128
    """Most tokens of a text; longer ones lose their end, and the log has their number."""
    train_examples: int | None = None
    """Number of texts of the train split to train on, a fixed random choice; None means all."""
    validation_examples: int | None = None
    """The same of the validation split."""
    test_examples: int | None = None
    """The same of the test split."""
    min_count: int = 1
    """Least number of times that a word must occur to be a token: in the train split, or in all where word vectors from
    a file stay as they are. A pretrained encoder has its own tokens, whatever this is."""
    train_gamma: float = 0.6
    """Noise of training: this times the standard deviation of clean word embeddings of train tokens is its
    standard deviation or its variance, see --noise. The embeddings are those that training starts with."""
    test_gammas: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
    """Noise levels of the evaluation, over which the area under the accuracy is taken."""
    noise: Noise = "deviation"
    """Meaning of gamma times the standard deviation of embeddings. deviation: the standard deviation of the noise, so
    that gamma is its size relative to an embedding that is kept as it is; variance: its variance, as the paper writes
    it, which drowns embeddings that are much smaller than 1."""
    test_disturbances: tuple[str, ...] = ()
    """Disturbances of the texts in the evaluation, beside the noise of training, as in dropped=0.1 dropped=0.2: the
    share of a text's tokens that are masked out, its first one never."""
    validate_every: int = 200
    """Steps between validations; each writes a checkpoint."""
    on_collapse: Literal["stop", "warn"] = "warn"
    """Response to two validations in a row that show a collapsed model."""
    data: TextConfig = dataclasses.field(default_factory=TextConfig)
    dual: DualConfig = dataclasses.field(default_factory=lambda: DualConfig(learning_rate=0.05))
    model: EncoderOptions | UnrolledConfig = dataclasses.field(default_factory=EncoderOptions)

    @property
    def pretrained(self) -> str | None:
        """The source of pretrained weights or word vectors; None without one."""
        return self.model.pretrained if isinstance(self.model, EncoderOptions) else self.model.embeddings

    def check(self) -> None:
        """Checks every number; what depends on the depth is checked with the model."""
        model = self.model
        rules: list[Rule] = []
        if isinstance(model, EncoderOptions):
            divides = model.pretrained is not None or (model.dim % max(model.num_heads, 1) == 0)
            rules.append(("model.num-heads", f"a divisor of --model.dim {model.dim}", divides))
        else:
            rules.append(("model.mixing", "in [0, 1]", 0.0 <= model.mixing <= 1.0))
            rules.append(("model.attention-scale", "positive and finite", positive(model.attention_scale)))
        check_training(self, *rules, *disturbance_rules(self.test_disturbances, (DROPPED,)))
        check_used(self, type(self)(), _conditions(self))

    def label(self) -> str:
        """Source, depth, what is given, method, noise and seed."""
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


def _conditions(config: TextRunConfig) -> list[tuple[str, str, bool]]:
    """Returns the conditions under which options have an effect."""
    model = config.model
    if isinstance(model, EncoderOptions):
        given, drawn = "--model.pretrained", "an encoder that is drawn (--model.pretrained None)"
        there = model.pretrained is not None
        return [
            *((name, given, there) for name in ("model.revision", "model.frozen", "model.hidden")),
            *((f"model.{name}", drawn, not there) for name in ("dim", "num-layers", "num-heads", "hidden-dim")),
            ("min-count", drawn, not there),
        ]
    there = model.embeddings is not None
    learned = "embeddings that are learned (--model.embeddings None)"
    return [("model.frozen", "--model.embeddings", there), ("model.dim", learned, not there)]
