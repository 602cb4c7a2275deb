"""Every reader of outside bytes, and changes of a valid file: of values of its JSON,
or of bytes anywhere."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from safetensors.numpy import save_file

from tests.data.decoders import conftest as llama
from tests.data.pretrained import conftest as bert
from tests.hostile.given import files
from tests.report.conftest import write_run
from unroll_jax.train.core.folder import identity, read_config
from unroll_jax.train.core.metrics import read_metrics
from unroll_jax.train.data.pretrained.architectures import (
    read_config as read_encoder_config,
)
from unroll_jax.train.data.pretrained.chat import folder_tokenizer
from unroll_jax.train.data.pretrained.decoders import read_decoder_config
from unroll_jax.train.data.pretrained.folders import open_folder, read_json
from unroll_jax.train.data.rows import read_rows
from unroll_jax.train.registry import EXPERIMENTS
from unroll_jax.train.report import layered_report
from unroll_jax.train.report.records import read_runs
from unroll_jax.train.tasks.language.instructions import read_prompts

__all__ = ["READERS", "changed"]
CONFIG = EXPERIMENTS["video-ut"].config
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
ODD = (
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    10**30,
    10**400,
    1e308,
    -0.5,
    "",
    "x",
    "\x1b[31m\u202e",
    [],
    [[]],
    {},
    {"x": 1},
)
TEXTS = (
    b"1e999",
    b"NaN",
    b"1" + b"0" * 5000,
    b"null",
    b"[" * 2000,
    b"\0",
    b"\xff",
    b"\x1b[2J",
    b'"',
    b",",
    b"\n",
)
COUNTS = tuple(
    number.to_bytes(8, "little")
    for number in (0, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1)
)


class Reader(NamedTuple):
    """``prepare`` fills a folder with valid files, of which ``name`` is changed.
    ``read`` is the application's."""

    name: str
    prepare: Callable[[Path], Any]
    read: Callable[[Path], Any]


def _llama(folder: Path) -> None:
    llama.byte_tokenizer().save(str(folder / "tokenizer.json"))
    chat = {
        "chat_template": llama.TEMPLATE,
        "bos_token": {"content": "<s>"},
        "eos_token": "<e>",
    }
    scaling = {
        "rope_type": "llama3",
        "factor": 2.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    config = llama.CONFIG | {"rope_scaling": scaling}
    files(
        {"config.json": json.dumps(config), "tokenizer_config.json": json.dumps(chat)}
    )(folder)


def _read_safetensors(folder: Path) -> None:
    with open_folder(folder) as tensors:
        for name in tensors.names:
            if tensors.dtype(name) is not None:
                tensors.read(name, (slice(None),) * len(tensors.shape(name)))


def _read_decoder(folder: Path) -> None:
    read_decoder_config(read_json(folder / "config.json"), where="config.json")
    folder_tokenizer(folder)


def _safetensors(folder: Path) -> None:
    save_file(
        {"a": np.ones((2, 3), np.float32), "b": np.ones(4, np.float16)},
        folder / "model.safetensors",
    )


def _table(suffix: str, content: str) -> Reader:
    def read(folder: Path) -> None:
        list(read_rows(folder / f"t.{suffix}", ("text", "label")))

    return Reader(f"t.{suffix}", files({f"t.{suffix}": content}), read)


def _run(folder: Path) -> None:
    write_run(folder / "run", "constrained", 3, 0, 6)


def _read_run(folder: Path) -> None:
    layered_report(read_runs([folder / "run"]))


STATUS = {"status.json": '{"state": "finished", "steps": 6, "messages": []}'}
MESSAGES = [{"role": "user", "content": "a"}]
RECORDED = {
    "config.json": json.dumps(identity("video-ut", CONFIG, {"pixel_std": 0.25}))
}
READERS = {
    "run": Reader("config.json", files(RECORDED | STATUS), read_config),
    "metrics": Reader(
        "run/metrics.jsonl",
        _run,
        lambda folder: read_metrics(folder / "run/metrics.jsonl"),
    ),
    "curves": Reader("run/metrics.jsonl", _run, _read_run),
    "evaluation": Reader("run/evaluation.json", _run, _read_run),
    "status": Reader("run/status.json", _run, _read_run),
    "encoder": Reader(
        "config.json",
        files({"config.json": json.dumps(bert.CONFIG)}),
        lambda folder: read_encoder_config(
            read_json(folder / "config.json"), where="config.json"
        ),
    ),
    "decoder": Reader("config.json", _llama, _read_decoder),
    "chat": Reader(
        "tokenizer_config.json",
        _llama,
        lambda folder: folder_tokenizer(folder).chat(MESSAGES),
    ),
    "tokenizer": Reader(
        "tokenizer.json",
        _llama,
        lambda folder: folder_tokenizer(folder).encode(["a b"]),
    ),
    "safetensors": Reader("model.safetensors", _safetensors, _read_safetensors),
    "csv": _table("csv", 'text,label\n"a, b",1\nc,2\n'),
    "tsv": _table("tsv", "text\tlabel\na b\t1\nc\t2\n"),
    "jsonl": _table("jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": 2}\n'),
    "prompts": Reader(
        "p.json",
        files({"p.json": '[{"instruction": "a"}]'}),
        lambda folder: read_prompts(folder / "p.json"),
    ),
}


@st.composite
def changed(draw: st.DrawFn, content: bytes) -> bytes:
    for _ in range(draw(st.integers(1, 3))):
        content = draw(st.sampled_from([_value, _bytes]))(draw, content)
    return content


def _value(draw: st.DrawFn, content: bytes) -> bytes:
    try:
        root = json.loads(content)
        places = list(_places(root))
        if places:
            parent, key = draw(st.sampled_from(places))
            if isinstance(parent, dict) and draw(st.booleans()):
                parent["unknown"] = parent.pop(key)
            else:
                parent[key] = draw(st.sampled_from(ODD))
            return json.dumps(root).encode()
    except (ValueError, RecursionError):
        pass  # no JSON, or a second change of one that is nested as deep as allowed
    return _bytes(draw, content)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, part in items:
        yield value, key
        yield from _places(part)


def _bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Puts bytes or an odd text in the place of a number or of any others."""
    numbers = [match.span() for match in NUMBER.finditer(content)]
    if numbers and draw(st.booleans()):
        start, end = draw(st.sampled_from(numbers))
    else:
        start = draw(st.integers(0, len(content)))
        end = start + draw(st.sampled_from([0, 1, 4, 8, 64, len(content)]))
    new = draw(st.one_of(st.binary(max_size=8), st.sampled_from(TEXTS + COUNTS)))
    return content[:start] + new + content[end:]
