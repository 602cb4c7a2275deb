"""Tokenizers of language models with their chat templates: from folders, from GGUF files, or of bytes."""

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

# How byte-level tokenizers split texts (llama.cpp, src/llama-vocab.cpp).
PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPLITS = {"gpt-2": False, "smollm": True}  # by GGUF's name: whether digits are separated
CONTROL, USER_DEFINED = 3, 4  # GGUF's kinds of token that are added to the vocabulary
MOST_WORK, MOST_SECONDS = 1_000_000, 10.0  # of one rendering of a template
Message = Mapping[str, str]  # "role" and "content"

# Special tokens of the tokenizer of bytes, and its template.
SIDES = ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
BYTE_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class ChatTokenizer:
    """A tokenizer of the package ``tokenizers``, and the chat template that came with it, in Jinja. Templates know
    tokens by name (``named``), as ``bos_token``; ``stops`` are the numbers of those that end an answer."""

    def __init__(
        self, tokenizer: Any, template: str | None, named: Mapping[str, str], stops: Sequence[int], *, where: str
    ) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self.template, self.named, self.stops, self.where = template, dict(named), tuple(stops), where
        self._tokenizer, self._rendered = tokenizer, None if template is None else _compiled(template, where)
        self.checksum = zlib.crc32(f"{tokenizer.to_str()}{template}".encode())

    @property
    def size(self) -> int:
        """One more than the largest number of a token."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @functools.cached_property
    def prefixes(self) -> bool:
        """True if texts start with tokens that they lack after another text: SentencePiece puts a space there."""
        line, text, both = self.encode(["a\n", "a", "a\na"])
        return not np.array_equal(np.concatenate([line, text]), both)

    def encode(self, texts: Sequence[str], *, special: bool = False) -> list[np.ndarray]:
        """Encodes texts; ``special`` adds the tokens at the ends, which chat templates already contain."""
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=special)
        return [np.array(each.ids, np.int32) for each in encoded]

    def decode(self, tokens: Sequence[int] | np.ndarray, *, special: bool = True) -> str:
        """Decodes tokens; ``special`` keeps special ones."""
        return self._tokenizer.decode([int(token) for token in tokens], skip_special_tokens=not special)

    def chat(self, messages: Sequence[Message], *, answer: bool = False) -> str:
        """Returns the text of a conversation; with ``answer`` it ends where an answer of the assistant starts."""
        if self._rendered is None:
            raise UserError(f"{self.where} has no chat template; use an instruction-tuned model or plain texts")
        given = [dict(message) for message in messages]
        environment: Any = self._rendered.environment
        environment.left, environment.until = MOST_WORK, time.monotonic() + MOST_SECONDS
        try:
            return self._rendered.render(messages=given, add_generation_prompt=answer, **self.named)
        except Exception as error:  # a template can raise anything
            raise UserError(f"the chat template of {self.where} cannot be used ({one_line(error)})") from error

    def to_spec(self) -> dict[str, Any]:
        """Returns the tokenizer, its template and its tokens as JSON values, for `from_spec`."""
        return {
            "json": self.to_json(),
            "template": self.template,
            "named": self.named,
            "stops": list(self.stops),
            "where": self.where,
        }

    def to_transformers(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Returns the numbers of special tokens, for config.json, and the other files but for the chat template."""
        first, stop = self.named.get("bos_token", ""), self._tokenizer.id_to_token(self.stops[0])
        stops = self.stops[0] if len(self.stops) == 1 else self.stops
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "attention_mask"]}
        settings |= {"eos_token": stop, **self.named}
        files = {"tokenizer.json": self.to_json().encode(), "tokenizer_config.json": to_bytes(settings)}
        return {"bos_token_id": self._tokenizer.token_to_id(first), "eos_token_id": stops}, files

    @classmethod
    def from_spec(cls, values: Mapping[str, Any]) -> Self:
        """Reads what `to_spec` wrote; unknown fields are a TypeError."""
        others = {name: value for name, value in values.items() if name != "json"}
        return cls(make_tokenizer(values["json"]), **others)

    def to_json(self) -> str:
        """Returns the tokenizer as JSON, for `tokenizers.Tokenizer.from_str`."""
        return self._tokenizer.to_str()


def folder_tokenizer(folder: Path) -> ChatTokenizer:
    """Reads the tokenizer of a folder, and the template of its tokenizer_config.json or chat_template.jinja."""
    tokenizer = read_tokenizer(folder)
    names = ("config.json", "generation_config.json", "tokenizer_config.json")
    values = {name: read_json(folder / name) if (folder / name).is_file() else {} for name in names}
    settings, template = values["tokenizer_config.json"], folder / "chat_template.jinja"
    text = read_text(template, where=str(template)) if template.is_file() else settings.get("chat_template")
    named = {name: token for name in ("bos_token", "eos_token") if (token := _text(settings.get(name))) is not None}
    stops = values["generation_config.json"].get("eos_token_id", values["config.json"].get("eos_token_id"))
    if stops is None:
        stops = tokenizer.token_to_id(named.get("eos_token", ""))
    stops = [] if stops is None else stops if isinstance(stops, list) else [stops]
    if not all(type(stop) is int and 0 <= stop < LARGEST for stop in stops):
        raise UserError(f"{folder} has eos_token_id={stops!r}; it must be the number of a token, or a list of them")
    return ChatTokenizer(tokenizer, text if isinstance(text, str) else None, named, stops, where=str(folder))


def gguf_tokenizer(files: Any) -> ChatTokenizer:
    """Returns the tokenizer of a GGUF file: byte-level BPE with one of `SPLITS`."""
    kind, split = files.value("tokenizer.ggml.model"), files.value("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or split not in SPLITS:
        raise UserError(
            f"{files.where} has a tokenizer of model {kind!r} split as {split!r}; 'gpt2' split as {', '.join(SPLITS)} "
            "is supported; use the folder of the original weights"
        )
    tokens, kinds = files.value("tokenizer.ggml.tokens"), files.value("tokenizer.ggml.token_type")
    numbers = {name: files.value(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot")}
    try:
        starts = numbers["bos"] if files.value("tokenizer.ggml.add_bos_token", False) else None
        merges: Any = [tuple(pair.split(" ")) for pair in files.value("tokenizer.ggml.merges", [])]
        tokenizer = byte_level(tokens, kinds or [], merges, split, starts=starts)
        named = {f"{name}_token": tokens[place] for name in ("bos", "eos") if (place := numbers[name]) is not None}
    except Exception as error:  # tokenizers has no error class
        raise UserError(f"{files.where} has no usable tokenizer ({one_line(error)}); copy it again") from error
    stops = dict.fromkeys(place for name in ("eos", "eot") if (place := numbers[name]) is not None)
    return ChatTokenizer(tokenizer, files.value("tokenizer.chat_template"), named, list(stops), where=files.where)


def byte_tokenizer() -> ChatTokenizer:
    """Returns a tokenizer without a file: a token a byte, one a role of a conversation, and one for its end."""
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = [*sorted(ByteLevel.alphabet()), *SIDES]
    kinds = [0] * (len(tokens) - len(SIDES)) + [CONTROL] * len(SIDES)
    made = byte_level(tokens, kinds, [], "gpt-2", starts=None)
    return ChatTokenizer(made, BYTE_TEMPLATE, {}, [len(tokens) - 1], where="the tokenizer of bytes")


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with a bound on the work of one rendering: weights may come from anywhere."""

    intercepted_binops = frozenset(["*", "**"])
    left, until = MOST_WORK, math.inf

    def spend(self, work: int, item: Any = None) -> Any:
        """Counts work, and returns the item that it is for."""
        self.left -= work
        if self.left < 0:
            raise jinja2.TemplateError(f"it needs more than {MOST_WORK:,} iterations and calls")
        if time.monotonic() > self.until:
            raise jinja2.TemplateError(f"it takes more than {MOST_SECONDS:g} seconds")
        return item

    def call(self, context: Any, called: Any, /, *arguments: Any, **options: Any) -> Any:
        """Counts a call, as of a macro that calls itself, as ten iterations."""
        return super().call(context, self.spend(10, called), *arguments, **options)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Multiplies unless the result is large; every power is an error."""
        sizes = [abs(one) if isinstance(one, int | float) else len(one) for one in (left, right)]
        if operator == "**" or sizes[0] * sizes[1] > MOST_WORK:
            raise jinja2.TemplateError(f"{operator} of large values")
        return super().call_binop(context, operator, left, right)


def _compiled(template: str, where: str) -> jinja2.Template:
    """Compiles a template whose loops count their iterations."""
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.filters["each"] = jinja2.pass_context(lambda _, items: (environment.spend(1, item) for item in items))
    environment.globals["raise_exception"] = _raise
    try:
        tree = environment.parse(template)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "each", [], [], None, None, lineno=loop.lineno)
        return environment.from_string(tree)
    except Exception as error:  # of Jinja, or of the compilers of Python
        raise UserError(f"the chat template of {where} is not valid Jinja ({one_line(error)}); mend it") from error


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _text(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def byte_level(
    tokens: Sequence[str], kinds: Sequence[int], merges: Sequence[tuple[str, str]], split: str, *, starts: int | None
) -> Any:
    """Makes the byte-level BPE tokenizer of GPT-2 and SmolLM2, a ``tokenizers.Tokenizer``. Tokens are by number, with
    GGUF's ``kinds`` (missing ones are normal); merges are pairs by rank; ``split`` is a name of `SPLITS`; ``starts`` is
    the number of the token that ``add_special_tokens`` puts before texts."""
    import tokenizers
    from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

    vocabulary = {token: place for place, token in enumerate(tokens)}
    tokenizer: Any = tokenizers.Tokenizer(models.BPE(vocabulary, list(merges)))
    digits = [pre_tokenizers.Digits(individual_digits=True)] if SPLITS[split] else []
    words = pre_tokenizers.Split(tokenizers.Regex(PATTERN), "isolated")
    by_byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, words, by_byte])
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, kinds, strict=False):
        if kind == CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])
    if starts is not None:
        first = tokens[starts]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A {first} $B:1", special_tokens=[(first, starts)]
        )
    return tokenizer
