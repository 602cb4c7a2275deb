"""Folders as Hugging Face writes them, with random weights under names written out
here by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from tests.data.conftest import drawn_tensors, write_model

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = [
    *SPECIAL,
    "a",
    "film",
    "that",
    "is",
    "good",
    "bad",
    "long",
    "and",
    "never",
    "ends",
]
DIM, HIDDEN, LAYERS, POSITIONS = 8, 12, 2, 16
# a RoBERTa has its padding token second
ROBERTA_WORDS = [WORDS[1], WORDS[0], *WORDS[2:]]
CONFIG = {
    "model_type": "bert",
    "vocab_size": 20,
    "hidden_size": DIM,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "intermediate_size": HIDDEN,
    "max_position_embeddings": POSITIONS,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "id2label": {"0": "bad", "1": "good", "2": "neither"},
}
WriteFolder = Callable[..., Path]


# Matrices of a layer, by their shapes.
DENSE = {
    "attention.self.query": (DIM, DIM),
    "attention.self.key": (DIM, DIM),
    "attention.self.value": (DIM, DIM),
    "attention.output.dense": (DIM, DIM),
    "intermediate.dense": (HIDDEN, DIM),
    "output.dense": (DIM, HIDDEN),
}


def bert_tensors(
    prefix: str = "bert.", *, weight: str = "weight", bias: str = "bias"
) -> dict[str, np.ndarray]:
    rows = {"word": 20, "position": POSITIONS, "token_type": 2}
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}embeddings.{name}_embeddings.weight": (count, DIM)
        for name, count in rows.items()
    }
    norms = [f"{prefix}embeddings.LayerNorm"]
    dense = {f"{prefix}pooler.dense": (DIM, DIM), "classifier": (3, DIM)}
    for stem in (f"{prefix}encoder.layer.{layer}" for layer in range(LAYERS)):
        dense |= {f"{stem}.{name}": shape for name, shape in DENSE.items()}
        norms += [f"{stem}.attention.output.LayerNorm", f"{stem}.output.LayerNorm"]
    for name, shape in dense.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name in norms:
        shapes |= {f"{name}.{weight}": (DIM,), f"{name}.{bias}": (DIM,)}
    return drawn_tensors(shapes)


def word_tokenizer(words: list[str]) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(
        models.WordLevel({word: place for place, word in enumerate(words)}, "[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.enable_truncation(4)  # as some checkpoints come: not to be kept
    tokenizer.enable_padding(length=6)
    return tokenizer


@pytest.fixture
def write_folder(tmp_path: Path) -> WriteFolder:
    def write(
        *,
        config: Any = None,
        tensors: dict[str, np.ndarray] | None = None,
        words: Any = WORDS,
    ) -> Path:
        tensors = bert_tensors() if tensors is None else tensors
        tokenizer = word_tokenizer(words)
        values = CONFIG | (config or {})
        return write_model(tmp_path / "bert", values, tokenizer, tensors)

    return write
