"""Word vectors and pretrained encoders meant to break what reads them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.data.pretrained.conftest import CONFIG, WORDS, bert_tensors, word_tokenizer
from tests.hostile.command import Command
from tests.hostile.given import Given, both, cut, files, folders, link

TABLE = {"t.csv": "text,label\n" + "".join(f"film {n},{'ab'[n % 2]}\n" for n in range(40))}
OF_TABLE = "--data.source table --data.root t.csv --out runs/x"
VECTORS = f"run text-ut --model.embeddings v.txt {OF_TABLE}"
ENCODER = f"run text-encoder --model.pretrained e {OF_TABLE}"
PICKLE = b"\x80\x04cos\nsystem\n(S'touch owned'\ntR."
LARGE = "embeddings.word_embeddings.weight"


def encoder(tensors: dict[str, np.ndarray] | None = None, words: list[str] = WORDS, **config: Any) -> Given:
    """A table, and a small BERT with another configuration, other tensors or other words."""

    def write(folder: Path) -> None:
        files({**TABLE, "e/config.json": json.dumps(CONFIG | config)})(folder)
        save_file(bert_tensors() | (tensors or {}), folder / "e/model.safetensors")
        word_tokenizer(words).save(str(folder / "e/tokenizer.json"))

    return write


def vectors(content: str | bytes) -> Given:
    return files({**TABLE, "v.txt": content})


def changed(contents: dict[str, str | bytes]) -> Given:
    """The encoder with some of its files replaced."""
    return both(encoder(), files({f"e/{name}": content for name, content in contents.items()}))


def without(name: str) -> Given:
    return both(encoder(), lambda folder: (folder / "e" / name).unlink())


REFUSED = [
    (VECTORS, ("--model.embeddings v.txt is empty",), vectors("")),
    (VECTORS, ("v.txt line 1 has 0 numbers",), vectors("film\n")),
    (VECTORS, ("v.txt line 1 holds a number that is not finite",), vectors("film 1 nan\n")),
    (VECTORS, ("not finite",), vectors("film 1 inf\n")),
    (VECTORS, ("not finite",), vectors("film 1e39 1\n")),
    (VECTORS, ("line 1: b'two' is no number",), vectors("film 1 two\n")),
    (VECTORS, ("line 2 has 1 numbers after its word",), vectors("film 1 2\nb 1\n")),
    (VECTORS, ("line 2 has 3 numbers after its word",), vectors("film 1 2\nb 1 2 3\n")),
    (VECTORS, ("none of the 44 words",), vectors("zzz 1 2\n")),
    (VECTORS, ("nothing but zeros",), vectors("film 0 0\n")),
    (VECTORS, ("line 1 has 0 numbers",), vectors(b"\x80\x04\n")),
    (VECTORS, ("line 1 is not UTF-8",), vectors(b"caf\xe9 1 2\n")),
    (VECTORS, ("v.txt has no config.json",), both(files(TABLE), folders("v.txt"))),
    (VECTORS, ("--model.embeddings v.txt is neither",), both(files(TABLE), link("v.txt", "v.txt"))),
    (VECTORS.replace("v.txt", "nowhere.txt"), ("--model.embeddings nowhere.txt is neither",), files(TABLE)),
    (
        VECTORS.replace("v.txt", "~nobody-here/v.txt"),
        ("--model.embeddings ~nobody-here/v.txt is in nobody's home",),
        files(TABLE),
    ),
    (VECTORS + " --model.dim 8", ("--model.dim 8 has no effect",), vectors("film 1 2\n")),
    (VECTORS + " --model.rank 10000", ("--model.rank must be at most",), vectors("film 1 2\n")),
    (ENCODER.replace(" e ", " ./nowhere "), ("--model.pretrained ./nowhere is neither",), files(TABLE)),
    (ENCODER.replace(" e ", " ~nobody-here/e "), ("--model.pretrained ~nobody-here/e",), files(TABLE)),
    (ENCODER, ("e has no config.json",), both(files(TABLE), folders("e"))),
    (ENCODER, ("--model.pretrained e is neither a folder nor a repository",), files({**TABLE, "e": "a file"})),
    (ENCODER, ("e has no config.json",), both(files(TABLE), folders("e/config.json"))),
    (ENCODER, ("e/config.json is not valid JSON",), changed({"config.json": ""})),
    (ENCODER, ("e/config.json is not valid JSON",), changed({"config.json": b"\xff\xfe{"})),
    (ENCODER, ("holds a list instead",), changed({"config.json": "[]"})),
    (ENCODER, ("e/config.json is no JSON",), changed({"config.json": "[" * 100_000})),
    (ENCODER, ("has no vocab_size",), changed({"config.json": '{"model_type": "bert"}'})),
    (ENCODER, ("model_type='t5'",), encoder(model_type="t5")),
    (ENCODER, ("model_type=['bert']",), encoder(model_type=["bert"])),
    (ENCODER, ("num_heads must divide dim=9",), encoder(hidden_size=9)),
    (ENCODER, ("hidden_size",), encoder(hidden_size=-8)),
    (ENCODER, ("hidden_size='8'; it must be an integer",), encoder(hidden_size="8")),
    (ENCODER, ("hidden_size=8.5",), encoder(hidden_size=8.5)),
    (ENCODER, ("num_heads must be at least 1",), encoder(num_attention_heads=0)),
    (ENCODER, ("num_heads must divide dim=8",), encoder(num_attention_heads=3)),
    (ENCODER, ("1 layer(s) beyond",), encoder(num_hidden_layers=1)),
    (ENCODER, ("num_layers=1000000000, but 41 tensors",), encoder(num_hidden_layers=10**9)),
    (ENCODER, ("(19, 8)",), encoder(vocab_size=19)),
    (ENCODER, ("vocab_size=1000000000000; it must be an integer below",), encoder(vocab_size=10**12)),
    (ENCODER, ("of another shape",), encoder(intermediate_size=10**9)),
    (ENCODER, ("(2, 8)",), encoder(max_position_embeddings=2)),
    (ENCODER, ("norm_epsilon must be in [0, 1), got nan",), encoder(layer_norm_eps=float("nan"))),
    (ENCODER, ("norm_epsilon must be in [0, 1)",), encoder(layer_norm_eps=-1.0)),
    (ENCODER, ("hidden_act='snake'",), encoder(hidden_act="snake")),
    (ENCODER, ("pad_token_id=7",), encoder(pad_token_id=7)),
    (ENCODER, ("padding_token must be in",), encoder(pad_token_id=99)),
    (ENCODER, ("not finite in bert.embeddings",), encoder({f"bert.{LARGE}": np.full((20, 8), np.nan, np.float32)})),
    (
        ENCODER,
        ("e/model.safetensors does not fit config.json: 1 not of F16,",),
        encoder({f"bert.{LARGE}": np.zeros((20, 8), np.int32)}),
    ),
    (ENCODER, ("(20, 7), not (20, 8)",), encoder({f"bert.{LARGE}": np.zeros((20, 7), np.float32)})),
    (ENCODER + " --max-length 12", ("noise would be 0",), encoder({f"bert.{LARGE}": np.zeros((20, 8), np.float32)})),
    (ENCODER, ("Missing [UNK] token",), encoder(words=[f"w{n}" for n in range(30)])),
    (ENCODER, ("e/tokenizer.json cannot be used as a tokenizer",), encoder(words=[])),
    (ENCODER, ("has no config.json",), without("config.json")),
    (ENCODER, ("has no tokenizer.json",), without("tokenizer.json")),
    (ENCODER, ("has no model.safetensors",), without("model.safetensors")),
    (
        ENCODER,
        ("e has no model.safetensors but pytorch_model.bin, and",),
        both(without("model.safetensors"), files({"e/pytorch_model.bin": PICKLE})),
    ),
    (
        ENCODER,
        ("e/model.safetensors.index.json has no weight_map of tensors",),
        both(without("model.safetensors"), files({"e/model.safetensors.index.json": "{}"})),
    ),
    (ENCODER, ("cannot be read as safetensors",), changed({"model.safetensors": PICKLE})),
    (ENCODER, ("cannot be read as safetensors",), changed({"model.safetensors": b""})),
    (ENCODER, ("cannot be read as safetensors",), changed({"model.safetensors": b"\xff" * 16})),
    (ENCODER, ("cannot be read as safetensors",), both(encoder(), cut("e/model.safetensors", 0.5))),
    (ENCODER, ("cannot be used as a tokenizer",), changed({"tokenizer.json": ""})),
    (ENCODER, ("cannot be used as a tokenizer",), changed({"tokenizer.json": "{}"})),
    (ENCODER, ("cannot be used as a tokenizer",), both(encoder(), cut("e/tokenizer.json", 0.5))),
    (ENCODER, ("--max-length 32 does not fit the tokenizer",), encoder()),
    (ENCODER + " --max-length 2", ("--max-length must be a whole number from 3 to",), encoder()),
    (
        ENCODER + " --max-length 12 --model.revision main",
        ("--model.revision main is for a repository of the hub, but e",),
        encoder(),
    ),
    (ENCODER + " --max-length 12 --batch-size 33", ("at most the 32 texts of the train split, got 33",), encoder()),
    (ENCODER + " --max-length 12 --batch-size 100000000", ("got 100000000",), encoder()),
    (ENCODER + " --max-length 12 --model.dim 8", ("--model.dim 8 has no effect",), encoder()),
]
COMMANDS = [Command(line, words, given, gone=("runs", "owned")) for line, words, given in REFUSED]
