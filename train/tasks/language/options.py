"""Options and experiments of language models: data, the decoder and its runs."""

import dataclasses
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from ...config.constrained import (
    ConstraintConfig,
    DualConfig,
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
from ...config.run import DecayedPrimalConfig, Experiment, SourceConfig
from ..text.options import SIZES, Dtype, TokensConfig, which_model

InstructionSource = Literal["chores", "alpaca"]
# Default bound on the loss of the input, of bytes of the built-in instructions: 1.3
# times the entropy of a byte of their answers, which is the other number. Of other
# answers and tokens it is in proportion.
BYTES = 4.5
BYTE_ENTROPY = 3.463


@options
class InstructionConfig(SourceConfig):
    """Instructions that a language model learns to follow, and the folder for
    prepared data."""

    own: ClassVar[str] = "alpaca"

    source: InstructionSource = "chores"
    """chores: made-up instructions of a few words, no files needed. alpaca: a .json
    list or .jsonl, or a folder with train.jsonl, and where there are any
    validation.jsonl and test.jsonl; each object has "instruction", perhaps "input", and
    "output"; or "prompt" and "answer".
    """
    validation_share: Fraction = 0.1
    """Share held out for validation, and as much for test. Chores, and a folder with
    such files, keep their own."""


@options
class DecoderOptions:
    """A decoder of Llama's family, whose every layer is read out by its own norm and
    head."""

    pretrained: Text | None = None
    """Folder with config.json, model.safetensors and tokenizer.json of Llama 3,
    SmolLM2, Qwen2 or Qwen3. None draws a small decoder of bytes, as below.
    """
    dim: Width = 64
    """Width, without pretrained weights. The next four options likewise."""
    num_layers: Depth = 4
    """Depth L."""
    num_heads: Depth = 4
    """Heads of queries, which share out the width."""
    num_key_value_heads: Depth = 2
    """Heads of keys and values, each of which serves as many heads of queries."""
    hidden_dim: Annotated[int, Field(ge=1, le=4 * WIDEST)] = 176
    """Width between the dense layers."""
    lora_rank: Width | None = None
    """Train low-rank changes of this rank to every dense layer, and nothing else.
    None trains all parameters."""
    dtype: Dtype = "float32"
    """Dtype of the layers. Parameters, losses and multipliers stay float32."""


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
    """Tokens of a row. Longer answers lose their end, and instructions that leave no
    room for one are left out."""
    packing: bool = True
    """Put several instructions into a row, none of which sees another. Else each has
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
            alpha=(0.1,), reference=BYTES, margin=0.0, first_margin=0.0
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


PAPER = "Porras-Valenzuela, Hadou, Ribeiro, Section 6 and Appendix B.7"


# Table 5: 1 - alpha = 0.95, f_ref = 12, L = 32, batches of 4, two epochs of AdamW in
# full precision. Its learning rates did not survive. 0.25 is the noise of training in
# Table 2. Whether rows hold one text each is not published.
BOUNDS = ConstraintConfig(alpha=(0.05,), reference=12.0, margin=0.0, first_margin=0.0)


# Layers 1 to 4 must take the loss from 4.5 to .32 nats a token, since an early exit is
# what pays. Each later layer must remove 1% of the rest. Chosen on validation texts,
# seed 0, among three: with .2 and .1 at layers 5 to 8 in place of .01 layer 5 stays 24%
# over its bound. With .45, .65, .8, .5 at layers 1 to 4 accuracy falls by 2 points.
EARLY = ConstraintConfig(
    alpha=(0.4, 0.4, 0.6, 0.5, 0.01, 0.01, 0.01, 0.01),
    reference=BYTES,
    margin=0.0,
    first_margin=0.0,
)


# The head reads 110 nats a token from the embeddings, whose matrix it shares. Layer 10
# may leave 8.6, which LayerSkip's weights reach in as many steps. Multipliers start
# near LayerSkip's weights and stay below 1: from 0, uncapped, layer 10's rose to 9 at
# once, and accuracy was 4 points lower. Chosen on validation texts, seed 0.
EXITS = ConstraintConfig(
    alpha=(0.925, 0.3, 0.62), reference=115.0, margin=0.0, first_margin=0.0
)


EXIT_MULTIPLIERS = DualConfig(
    start=(0.0, 0.6, 0.5, 0.3), cap=1.0, proportional_gain=0.1, learning_rate=0.01
)


EXPERIMENTS: dict[str, Experiment] = {
    "sft-tiny": Experiment(
        config=LanguageConfig(),
        summary=(
            "small decoder of bytes on built-in instructions, or a pretrained one on"
            " yours; one method or several"
        ),
        paper=PAPER,
        expect=(
            "token accuracy of 91% constrained and 60% plain, feasible; 4 minutes a"
            " method on 1 core"
        ),
    ),
    "sft-drafts": Experiment(
        config=LanguageConfig(
            steps=600,
            validate_every=200,
            model=DecoderOptions(
                dim=256,
                num_layers=8,
                num_heads=8,
                num_key_value_heads=4,
                hidden_dim=704,
            ),
            primal=DecayedPrimalConfig(learning_rate=1e-3),
            constraints=EARLY,
        ),
        summary=(
            "decoder of bytes under bounds that the first layers meet, which then draft"
            " for all (LayerSkip)"
        ),
        paper=f"{PAPER}; Elhoushi et al. (2024)",
        expect=(
            "layer 3 of 8 names the last one's token in 98% of places (plain 73%),"
            " token accuracy of 98.1% (plain 98.1%), not feasible; long answers 1.40"
            " times as fast (seed 0); 11 minutes a method on 1 core"
        ),
    ),
    "sft-smollm2": Experiment(
        config=LanguageConfig(
            steps=240,
            batch_size=4,
            max_length=128,
            test_examples=100,
            validation_examples=50,
            test_gammas=(0.0, 0.5, 1.0, 1.5, 2.0),
            validate_every=60,
            data=InstructionConfig(source="alpaca"),
            model=DecoderOptions(pretrained="HuggingFaceTB/SmolLM2-135M-Instruct"),
            descent=DescentOptions(every=10, positions=4),
            primal=DecayedPrimalConfig(learning_rate=2e-4),
            constraints=EXITS,
            dual=EXIT_MULTIPLIERS,
        ),
        summary=(
            "SmolLM2-135M fine-tuned on Alpaca, bounds on layers 10, 20, 30;"
            " --model.pretrained is its folder"
        ),
        paper=f"{PAPER}; Elhoushi et al. (2024)",
        expect=(
            "token accuracy of 53.3% (plain 56.1%), acceptance of 37% at layer 20"
            " (plain 18%), feasible (seed 0); 25 minutes a method on 1 core, from"
            " weights that were rounded to 4 bits; needs --data.root and the weights"
        ),
    ),
    "sft-llama": Experiment(
        config=LanguageConfig(
            steps=26000,
            batch_size=4,
            max_length=512,
            packing=False,
            template="alpaca",
            validate_every=1000,
            validation_examples=500,
            remat="everything",
            data=InstructionConfig(source="alpaca", validation_share=0.02),
            model=DecoderOptions(pretrained="meta-llama/Llama-3.1-8B"),
            primal=DecayedPrimalConfig(learning_rate=1e-5, weight_decay=0.01),
            constraints=BOUNDS,
        ),
        summary=(
            "Llama 3.1 8B fine-tuned on Alpaca with the paper's bounds;"
            " --model.pretrained is its folder"
        ),
        paper=PAPER,
        expect=(
            "in the paper, a token accuracy that falls later under noise than plain"
            " training's; not yet run here; needs --data.root, the weights, and some"
            " 160 GB of memory on devices"
        ),
    ),
}
