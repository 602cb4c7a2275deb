"""Conversations as tokens of a prompt and its answer, packed into rows. Only the
answers are learned."""

import bisect
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from ...config.errors import UserError
from ...data.files import Log
from ...data.prepared import Splits
from ...data.pretrained.chat import ChatTokenizer
from .instructions import Conversation

Template = Literal["chat", "alpaca"]

# Taori et al., "Stanford Alpaca" (2023): the prompt without an input, which follows the
# instruction here.
ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately"
    " completes the request.\n\n### Instruction:\n{}\n\n### Response:\n"
)

# The same in Jinja, with the answer.
JINJA = (
    "{{% if messages|map(attribute='role')|list not in [['user'], ['user',"
    " 'assistant']] %}}{{{{ raise_exception('the template is of one question') }}}}{{%"
    " endif %}}{{{{ bos_token }}}}{{{{ {before} + messages[0]['content'] + {after} }}}}"
    "{{% if messages|length > 1 %}}{{{{ messages[1]['content'] }}}}{{{{ eos_token }}}}"
    "{{% endif %}}"
)

MULTIPLE = 8  # the number of positions is a multiple: splits seldom differ in it
PLACEHOLDER = "x"  # an answer, where a template is looked at


class Tokens(NamedTuple):
    """A conversation as tokens, int32 (length,). The tokens from ``first`` on are
    the answer."""

    tokens: np.ndarray
    first: int


@dataclasses.dataclass
class Tokenised:
    """Conversations as tokens."""

    texts: list[Tokens]
    cut: int  # truncated answers
    left_out: int  # conversations whose prompt leaves no room for an answer


class AnswerTokenizer:
    """Makes tokens of conversations, by the chat template of the tokenizer or by
    Alpaca's. None takes the tokenizer's where it has one. ``mend`` is the advice if it
    cannot be used.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        template: Template | None,
        *,
        mend: str = "pass --template alpaca",
    ) -> None:
        chat = template == "chat" or (
            template is None and tokenizer.template is not None
        )
        self.tokenizer, self._mend = tokenizer, mend
        self.template: Template = "chat" if chat else "alpaca"
        if not tokenizer.stops:
            raise UserError(
                f"{tokenizer.where} names no token that ends an answer; give"
                " eos_token_id in config.json"
            )
        self._stops = np.asarray(tokenizer.stops, np.int32)

    @property
    def jinja(self) -> str:
        """The template in Jinja, as `transformers` takes it."""
        if self.template == "chat":
            return str(self.tokenizer.template)
        before, after = map(repr, ALPACA.split("{}"))
        return JINJA.format(before=before, after=after)

    def encode(self, conversations: Sequence[Conversation]) -> list[Tokens]:
        """Encodes conversations of any length. An answer ends with the first token
        that stops it."""
        if self.tokenizer.prefixes:
            raise UserError(
                f"the tokenizer of {self.tokenizer.where} puts a space before texts, as"
                " SentencePiece does; give a decoder of byte-level tokens, as Llama 3"
                " or SmolLM2"
            )
        prompts, answers = map(self.tokenizer.encode, self._render(conversations))
        return list(map(self._joined, prompts, answers))

    def questions(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encodes questions up to the start of an answer."""
        conversations = [Conversation(text, PLACEHOLDER) for text in texts]
        return self.tokenizer.encode(self._render(conversations)[0])

    def fitting(
        self, conversations: Sequence[Conversation], max_length: int
    ) -> Tokenised:
        """Tokenises conversations with room for a token of answer behind the prompt.
        Longer answers lose their end."""
        tokenised = Tokenised([], 0, 0)
        for tokens, first in self.encode(conversations):
            if first < max_length:
                tokenised.texts.append(Tokens(tokens[:max_length], first))
                tokenised.cut += len(tokens) > max_length
            else:
                tokenised.left_out += 1
        return tokenised

    def _joined(self, prompt: np.ndarray, answer: np.ndarray) -> Tokens:
        answer = np.append(answer, self._stops[0])
        end = np.isin(answer, self._stops).argmax() + 1
        tokens = np.concatenate([prompt, answer[:end]])
        return Tokens(tokens.astype(np.int32), len(prompt))

    def _render(
        self, conversations: Sequence[Conversation]
    ) -> tuple[list[str], list[str]]:
        """Returns the texts of the prompts and of the answers."""
        if self.template == "alpaca":
            start = self.tokenizer.named.get("bos_token", "") + ALPACA
            prompts = [start.format(one.prompt) for one in conversations]
            return prompts, [one.answer for one in conversations]
        questions, chats = [], []
        for one in conversations:
            questions.append([{"role": "user", "content": one.prompt}])
            answer = {"role": "assistant", "content": one.answer}
            chats.append([*questions[-1], answer])
        prompts = self.tokenizer.chats(questions, answer=True)
        answers = []
        for prompt, whole in zip(prompts, self.tokenizer.chats(chats), strict=True):
            answers.append(whole.removeprefix(prompt))
            if not whole.startswith(prompt) or not answers[-1].strip():
                raise UserError(
                    f"the chat template of {self.tokenizer.where} does not put the"
                    f" answer behind the prompt; {self._mend}"
                )
        return prompts, answers


def tell(tokenised: Tokenised, split: str, max_length: int, log: Log) -> None:
    """Logs the lost examples of a split. Losing all is an error."""
    total = len(tokenised.texts) + tokenised.left_out
    if not tokenised.texts:
        raise UserError(
            f"--max-length {max_length} leaves none of {total} {split} prompts room to"
            " answer; raise it"
        )
    if tokenised.cut or tokenised.left_out:
        log(
            f"  {split}: of {total} instructions, {tokenised.left_out} are left out, as"
            f" their prompts have {max_length} tokens, and {tokenised.cut} answers end"
            " there"
        )


class PackedBatch(NamedTuple):
    """Rows of texts, and the positions whose next token belongs to an answer."""

    tokens: np.ndarray  # numbers of tokens, int32 (batch, n)
    # number of each token's text in the row, from 1 on, int32 (batch, n). 0 is padding
    segments: np.ndarray
    # positions that predict a token of an answer, int32 (batch, kept)
    places: np.ndarray
    labels: np.ndarray  # the token to predict there, int32 (batch, kept)
    # float32 (batch, kept), 1, or 0 where positions only fill up the row
    weights: np.ndarray
    # the number of the text in its split, int32 (batch, kept), -1 where it only fills
    # up
    owners: np.ndarray


class PackedData(Splits[PackedBatch]):
    """Splits of packed rows, held in memory. All batches of one size have one shape."""

    def __init__(
        self, splits: Mapping[str, Sequence[Tokens]], *, length: int, packing: bool
    ) -> None:
        capacity = length if packing else 0
        rows = {
            split: pack([len(text.tokens) for text in texts], capacity)
            for split, texts in splits.items()
        }
        self.kept = max(
            kept_positions(texts, rows[split]) for split, texts in splits.items()
        )
        self._splits = {
            split: arrays(texts, rows[split], length, self.kept)
            for split, texts in splits.items()
        }
        self.texts = {split: len(texts) for split, texts in splits.items()}

    def num_examples(self, split: str) -> int:
        """Returns the number of rows that the texts of a split fill."""
        return len(self._splits[split].tokens)

    def read(self, split: str, numbers: Sequence[int] | np.ndarray) -> PackedBatch:
        """Returns the rows of these numbers."""
        places = np.asarray(numbers)
        return PackedBatch(*(part[places] for part in self._splits[split]))

    def examples(self, split: str, *, batch_size: int) -> Iterator[PackedBatch]:
        """Iterates over a whole split once, in order. The last batch is filled up
        with rows that do not count."""
        for batch in super().examples(split, batch_size=batch_size):
            yield filled(batch, batch_size)


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Texts by number in rows of a capacity: long texts first, each into the fullest
    row that has room for it. A capacity of 0 gives each text one row, in order.
    """
    if not capacity:
        return [[number] for number in range(len(lengths))]
    rows: list[list[int]] = []
    # left in each row, and its number, in rising order
    room: list[tuple[int, int]] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        place = bisect.bisect_left(room, (lengths[number], -1))
        left, row = room.pop(place) if place < len(room) else (capacity, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(number)
        bisect.insort(room, (left - lengths[number], row))
    return rows


def kept_positions(texts: Sequence[Tokens], rows: Sequence[Sequence[int]]) -> int:
    """Positions that count in the row that has the most of them, and a few more: a
    multiple of `MULTIPLE`."""
    most = max(
        sum(len(texts[number].tokens) - texts[number].first for number in row)
        for row in rows
    )
    return -(-most // MULTIPLE) * MULTIPLE


def arrays(
    texts: Sequence[Tokens], rows: Sequence[Sequence[int]], length: int, kept: int
) -> PackedBatch:
    """Returns rows as arrays: texts one after another, padding at the end."""
    batch = _empty(len(rows), length, kept)
    for index, row in enumerate(rows):
        start = answered = 0
        for segment, number in enumerate(row, start=1):
            tokens, first = texts[number]
            stop = start + len(tokens)
            batch.tokens[index, start:stop] = tokens
            batch.segments[index, start:stop] = segment
            answer = slice(answered, answered + len(tokens) - first)
            batch.places[index, answer] = np.arange(start + first - 1, stop - 1)
            batch.labels[index, answer] = tokens[first:]
            batch.weights[index, answer] = 1.0
            batch.owners[index, answer] = number
            start = stop
            answered = answer.stop
    return batch


def filled(batch: PackedBatch, size: int) -> PackedBatch:
    """A batch extended to ``size`` rows. The added rows do not count."""
    added = _empty(
        size - len(batch.tokens), batch.tokens.shape[1], batch.places.shape[1]
    )
    return PackedBatch(*map(np.concatenate, zip(batch, added, strict=True)))


def _empty(count: int, length: int, kept: int) -> PackedBatch:
    whole = np.zeros((2, count, length), np.int32)
    answers = np.zeros((2, count, kept), np.int32)
    weights = np.zeros((count, kept), np.float32)
    parts = [*whole, *answers, weights, np.full((count, kept), -1, np.int32)]
    return PackedBatch(*parts)
