"""Tokenizers of language models with their chat templates: from folders, or of
bytes."""

import functools
import json
import math
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jinja2
import numpy as np
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ...config.errors import UserError, one_line
from ...system.files import to_bytes
from ..rows import read_text
from .architectures import LARGEST
from .folders import make_tokenizer, read_json, read_tokenizer

# How byte-level tokenizers split texts.
PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
MOST_WORK, MOST_SECONDS = 1_000_000, 10.0  # of one rendering of a template
Message = Mapping[str, str]  # "role" and "content"

# Special tokens of the tokenizer of bytes, and its template.
SIDES = ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
BYTE_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content']"
    " + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class ChatTokenizer:
    """A tokenizer of the package ``tokenizers``, and the chat template that came with
    it, in Jinja. Templates know tokens by name (``named``), as ``bos_token``; ``stops``
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
        self.template, self.named, self.stops, self.where = (
            template,
            dict(named),
            tuple(stops),
            where,
        )
        self._tokenizer, self._rendered = (
            tokenizer,
            None if template is None else _compiled(template, where),
        )
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
        """Encodes texts; ``special`` adds the tokens at the ends, which chat
        templates already contain."""
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=special)
        return [np.array(each.ids, np.int32) for each in encoded]

    def decode(
        self, tokens: Sequence[int] | np.ndarray, *, special: bool = True
    ) -> str:
        """Decodes tokens; ``special`` keeps special ones."""
        return self._tokenizer.decode(
            [int(token) for token in tokens], skip_special_tokens=not special
        )

    def chat(self, messages: Sequence[Message], *, answer: bool = False) -> str:
        """Returns the text of a conversation; with ``answer`` it ends where an
        answer of the assistant starts."""
        if self._rendered is None:
            raise UserError(
                f"{self.where} has no chat template; use an instruction-tuned model or"
                " plain texts"
            )
        given = [dict(message) for message in messages]
        environment: Any = self._rendered.environment
        environment.left, environment.until = MOST_WORK, time.monotonic() + MOST_SECONDS
        try:
            return self._rendered.render(
                messages=given, add_generation_prompt=answer, **self.named
            )
        except Exception as error:  # a template can raise anything
            raise UserError(
                f"the chat template of {self.where} cannot be used ({one_line(error)})"
            ) from error

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
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": ["input_ids", "attention_mask"],
        }
        settings |= {"eos_token": self._tokenizer.id_to_token(self.stops[0])}
        files = {
            "tokenizer.json": self.to_json().encode(),
            "tokenizer_config.json": to_bytes(settings),
        }
        return {"bos_token_id": None, "eos_token_id": self.stops[0]}, files

    @classmethod
    def from_spec(cls, values: Mapping[str, Any]) -> Self:
        """Reads what `to_spec` wrote; unknown fields are a TypeError."""
        others = {name: value for name, value in values.items() if name != "json"}
        return cls(make_tokenizer(values["json"]), **others)

    def to_json(self) -> str:
        """Returns the tokenizer as JSON, for `tokenizers.Tokenizer.from_str`."""
        return self._tokenizer.to_str()


def folder_tokenizer(folder: Path) -> ChatTokenizer:
    """Reads the tokenizer of a folder, and the template of its tokenizer_config.json
    or chat_template.jinja."""
    tokenizer = read_tokenizer(folder)
    names = ("config.json", "generation_config.json", "tokenizer_config.json")
    values = {
        name: read_json(folder / name) if (folder / name).is_file() else {}
        for name in names
    }
    settings, template = values["tokenizer_config.json"], folder / "chat_template.jinja"
    text = (
        read_text(template, where=str(template))
        if template.is_file()
        else settings.get("chat_template")
    )
    named = {
        name: token
        for name in ("bos_token", "eos_token")
        if (token := _text(settings.get(name))) is not None
    }
    stops = values["generation_config.json"].get(
        "eos_token_id", values["config.json"].get("eos_token_id")
    )
    if stops is None:
        stops = tokenizer.token_to_id(named.get("eos_token", ""))
    stops = [] if stops is None else stops if isinstance(stops, list) else [stops]
    if not all(type(stop) is int and 0 <= stop < LARGEST for stop in stops):
        raise UserError(
            f"{folder} has eos_token_id={stops!r}; it must be the number of a token, or"
            " a list of them"
        )
    return ChatTokenizer(
        tokenizer,
        text if isinstance(text, str) else None,
        named,
        stops,
        where=str(folder),
    )


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


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with a bound on the work of one rendering: weights may come
    from anywhere."""

    intercepted_binops = frozenset(["*", "**"])
    left, until = MOST_WORK, math.inf

    def spend(self, work: int, item: Any = None) -> Any:
        """Counts work, and returns the item that it is for."""
        self.left -= work
        if self.left < 0:
            raise jinja2.TemplateError(
                f"it needs more than {MOST_WORK:,} iterations and calls"
            )
        if time.monotonic() > self.until:
            raise jinja2.TemplateError(f"it takes more than {MOST_SECONDS:g} seconds")
        return item

    def call(
        self, context: Any, called: Any, /, *arguments: Any, **options: Any
    ) -> Any:
        """Counts a call, as of a macro that calls itself, as ten iterations."""
        return super().call(context, self.spend(10, called), *arguments, **options)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Multiplies unless the result is large; every power is an error."""
        sizes = [
            abs(one) if isinstance(one, int | float) else len(one)
            for one in (left, right)
        ]
        if operator == "**" or sizes[0] * sizes[1] > MOST_WORK:
            raise jinja2.TemplateError(f"{operator} of large values")
        return super().call_binop(context, operator, left, right)


def _compiled(template: str, where: str) -> jinja2.Template:
    """Compiles a template whose loops count their iterations."""
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    environment.filters["each"] = jinja2.pass_context(
        lambda _, items: (environment.spend(1, item) for item in items)
    )
    environment.globals["raise_exception"] = _raise
    try:
        tree = environment.parse(template)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(
                loop.iter, "each", [], [], None, None, lineno=loop.lineno
            )
        return environment.from_string(tree)
    except Exception as error:  # of Jinja, or of the compilers of Python
        raise UserError(
            f"the chat template of {where} is not valid Jinja ({one_line(error)});"
            " mend it"
        ) from error


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _text(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token
