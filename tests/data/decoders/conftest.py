"""Folders of language models as `transformers` writes them, with random weights
under names written out by hand."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers

from tests.data.conftest import drawn_tensors, write_model

DIM, HIDDEN, LAYERS, HEADS, KEY_HEADS, WORDS = 8, 12, 2, 4, 2, 270
CONFIG = {
    "model_type": "llama",
    "vocab_size": WORDS,
    "hidden_size": DIM,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "intermediate_size": HIDDEN,
    "max_position_embeddings": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 100.0,
    "tie_word_embeddings": False,
    "eos_token_id": 257,
}
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] not in ['user',"
    " 'assistant'] %}{{ raise_exception('no ' + message['role']) }}{% endif %}\n    {%"
    " if loop.first %}<s>{% endif %}{{ message['role'] + ': ' + message['content']"
    " }}<e>\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
WriteFolder = Callable[..., Path]


def llama_tensors(dtype: Any = np.float32) -> dict[str, np.ndarray]:
    width = KEY_HEADS * DIM // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (WORDS, DIM),
        "model.norm.weight": (DIM,),
        "lm_head.weight": (WORDS, DIM),
    }
    layer = {
        f"self_attn.{name}_proj": (DIM if name in "qo" else width, DIM)
        for name in "qkvo"
    }
    layer |= {
        "mlp.gate_proj": (HIDDEN, DIM),
        "mlp.up_proj": (HIDDEN, DIM),
        "mlp.down_proj": (DIM, HIDDEN),
    }
    layer |= {"input_layernorm": (DIM,), "post_attention_layernorm": (DIM,)}
    for number in range(LAYERS):
        shapes |= {
            f"model.layers.{number}.{name}.weight": shape
            for name, shape in layer.items()
        }
    return drawn_tensors(shapes, dtype)


def byte_tokenizer() -> tokenizers.Tokenizer:
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>", "<e>", "ab"]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "<e>"])
    tokenizer.enable_padding(length=6)  # as some come: not to be kept
    return tokenizer


def write_llama(
    root: Path,
    *,
    config: Any = None,
    tensors: dict[str, np.ndarray] | None = None,
    shards: int = 1,
) -> Path:
    tensors = llama_tensors() if tensors is None else tensors
    folder = write_model(
        root / "llama", CONFIG | (config or {}), byte_tokenizer(), tensors
    )
    settings = {
        "chat_template": TEMPLATE,
        "bos_token": {"__type": "AddedToken", "content": "<s>"},
        "eos_token": "<e>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if shards > 1:
        (folder / "model.safetensors").unlink()
        places = {}
        for number in range(shards):
            names = list(tensors)[number::shards]
            file = f"model-{number}.safetensors"
            save_file({name: tensors[name] for name in names}, folder / file)
            places |= dict.fromkeys(names, file)
        index = json.dumps({"weight_map": places})
        (folder / "model.safetensors.index.json").write_text(index)
    return folder


@pytest.fixture
def write_folder(tmp_path: Path) -> WriteFolder:
    return functools.partial(write_llama, tmp_path)
