"""Tokenizers of language models with their chat templates: from folders, or of
bytes."""

import functools
import json
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from ...config.errors import UserError
from ...system.files import to_bytes
from ..rows import read_text
from .architectures import LARGEST
from .folders import (
    TEMPLATE,
    make_tokenizer,
    read_json,
    read_tokenizer,
    usable_tokenizer,
)

# How byte-level tokenizers split texts.
PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# of the process that renders templates: processor time, and chats of each second more
MOST_SECONDS, CHATS_A_SECOND = 10, 100
MOST_BYTES = 1 << 30
RENDER = Path(__file__).with_name("render.py")
Message = Mapping[str, str]  # "role" and "content"

# Special tokens that templates know by name.
NAMED = (
    *("bos_token", "eos_token", "unk_token", "sep_token"),
    *("pad_token", "cls_token", "mask_token"),
)
# Special tokens of the tokenizer of bytes, and its template.
SIDES = ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
BYTE_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content']"
    " + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class ChatTokenizer:
    """A tokenizer of the package ``tokenizers``, and the chat template that came with
    it, in Jinja. Templates know tokens by name (``named``), as ``bos_token``. ``stops``
    are the numbers of those that end an answer.
    """

    def __init__(
        self,
        tokenizer: Any,
        template: str | None,
        named: Mapping[str, str],
        stops: Sequence[int],
        *,
        where: str,
    ) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self.template = template
        self.named = dict(named)
        self.stops = tuple(stops)
        self.where = where
        self._tokenizer = tokenizer
        self.checksum = zlib.crc32(f"{tokenizer.to_str()}{template}".encode())

    @property
    def size(self) -> int:
        """One more than the largest number of a token."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @functools.cached_property
    def prefixes(self) -> bool:
        """True if texts start with tokens that they lack after another text:
        SentencePiece puts a space there."""
        line, text, both = self.encode(["a\n", "a", "a\na"])
        return not np.array_equal(np.concatenate([line, text]), both)

    def encode(
        self, texts: Sequence[str], *, special: bool = False
    ) -> list[np.ndarray]:
        """Encodes texts. ``special`` adds the tokens at the ends, which chat
        templates already contain."""
        with usable_tokenizer(self.where):
            encoded = self._tokenizer.encode_batch(
                list(texts), add_special_tokens=special
            )
        return [np.array(each.ids, np.int32) for each in encoded]

    def decode(
        self, tokens: Sequence[int] | np.ndarray, *, special: bool = True
    ) -> str:
        """Decodes tokens. ``special`` keeps special ones."""
        with usable_tokenizer(self.where):
            return self._tokenizer.decode(
                [int(token) for token in tokens], skip_special_tokens=not special
            )

    def chat(self, messages: Sequence[Message], *, answer: bool = False) -> str:
        """Returns the text of a conversation. With ``answer`` it ends where an
        answer of the assistant starts."""
        return self.chats([messages], answer=answer)[0]

    def chats(
        self, conversations: Iterable[Sequence[Message]], *, answer: bool = False
    ) -> list[str]:
        """Returns the texts of conversations, see `chat`, all in one process."""
        if self.template is None:
            raise UserError(
                f"{self.where} has no chat template; use an instruction-tuned model or"
                " plain texts"
            )
        # templates ask `tools is none`, as `transformers` has it
        common = {"tools": None, "documents": None, "add_generation_prompt": answer}
        common |= self.named
        chats = [{"messages": messages, **common} for messages in conversations]
        given = {
            "template": self.template,
            "chats": chats,
            "seconds": MOST_SECONDS + len(chats) // CHATS_A_SECOND,
            "most_bytes": MOST_BYTES,
        }
        done = subprocess.run(
            [sys.executable, "-P", str(RENDER)],
            input=json.dumps(given),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            late = done.returncode == -signal.SIGXCPU
            reason = f"it takes more than {given['seconds']} s" if late else done.stderr
            raise UserError(
                f"the chat template of {self.where} cannot be used ({reason.strip()})"
            )
        return json.loads(done.stdout)

    def to_spec(self) -> dict[str, Any]:
        """Returns the tokenizer, its template and its tokens as JSON values, for
        `from_spec`."""
        return {
            "json": self.to_json(),
            "template": self.template,
            "named": self.named,
            "stops": list(self.stops),
            "where": self.where,
        }

    def to_transformers(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Returns the numbers of special tokens, for config.json, and the other files
        but for the chat template; of a tokenizer of bytes.
        """
        stop = self.stops[0]
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": ["input_ids", "attention_mask"],
            "eos_token": self._tokenizer.id_to_token(stop),
        }
        files = {
            "tokenizer.json": self.to_json().encode(),
            "tokenizer_config.json": to_bytes(settings),
        }
        return {"bos_token_id": None, "eos_token_id": stop}, files

    @classmethod
    def from_spec(cls, values: Mapping[str, Any]) -> Self:
        """Reads what `to_spec` wrote. Unknown fields are a TypeError."""
        others = dict(values)
        return cls(make_tokenizer(others.pop("json")), **others)

    def to_json(self) -> str:
        """Returns the tokenizer as JSON, for `tokenizers.Tokenizer.from_str`."""
        return self._tokenizer.to_str()


def folder_tokenizer(folder: Path) -> ChatTokenizer:
    """Reads the tokenizer of a folder, and the template of its tokenizer_config.json
    or chat_template.jinja."""
    tokenizer = read_tokenizer(folder)
    settings = _read(folder, "tokenizer_config.json")
    named = _special_tokens(folder, settings)
    ending = _read(folder, "config.json") | _read(folder, "generation_config.json")
    stops = ending.get("eos_token_id")
    if stops is None:
        stops = tokenizer.token_to_id(named.get("eos_token", ""))
    if not isinstance(stops, list):
        stops = [] if stops is None else [stops]
    for stop in stops:
        if type(stop) is not int or not 0 <= stop < LARGEST:
            raise UserError(
                f"{folder} has eos_token_id={stops!r}; it must be the number of a"
                " token, or a list of them"
            )
    template = _template(folder, settings)
    return ChatTokenizer(tokenizer, template, named, stops, where=str(folder))


def _read(folder: Path, name: str) -> dict[str, Any]:
    """Returns the values of a file, if there is one."""
    return read_json(folder / name) if (folder / name).is_file() else {}


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Returns the chat template of a folder, of several the one called "default"."""
    path = folder / TEMPLATE
    if path.is_file():
        return read_text(path, where=str(path))
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict)]
        by_name = {str(entry.get("name")): entry.get("template") for entry in named}
        template = by_name.get("default")
    return template if isinstance(template, str) else None


def _special_tokens(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns special tokens by name. As in `transformers`, those of
    special_tokens_map.json come first where tokenizer_config.json is of the older kind
    that lists no tokens.
    """
    given = dict(settings)
    if "added_tokens_decoder" not in settings:
        given |= _read(folder, "special_tokens_map.json")
    named: dict[str, str] = {}
    for name in NAMED:
        token = given.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            named[name] = token
    return named


def byte_tokenizer() -> ChatTokenizer:
    """Returns a tokenizer without a file: a token a byte, one a role of a
    conversation, and one for its end."""
    import tokenizers
    from tokenizers import AddedToken, decoders, models, pre_tokenizers

    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *SIDES]
    made: Any = tokenizers.Tokenizer(
        models.BPE({token: place for place, token in enumerate(tokens)}, [])
    )
    words = pre_tokenizers.Split(tokenizers.Regex(PATTERN), "isolated")
    by_byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer, made.decoder = (
        pre_tokenizers.Sequence([words, by_byte]),
        decoders.ByteLevel(),
    )
    made.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SIDES]
    )
    return ChatTokenizer(
        made, BYTE_TEMPLATE, {}, [len(tokens) - 1], where="the tokenizer of bytes"
    )
