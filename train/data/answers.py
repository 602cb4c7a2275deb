"""Conversations as tokens of a prompt and its answer, packed into rows. Only the
answers are learned."""

import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from ..config.errors import UserError
from .files import Log
from .instructions import Conversation
from .pretrained.chat import ChatTokenizer
from .reader import check_batches, in_order, read_ahead, shuffled

Template = Literal["chat", "alpaca"]

# Taori et al., "Stanford Alpaca" (2023): the prompt without an input, which follows the
# instruction here.
ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately"
    " completes the request.\n\n### Instruction:\n{}\n\n### Response:\n"
)

MULTIPLE = 8  # the number of positions is a multiple: splits seldom differ in it
PLACEHOLDER = "x"  # an answer, where a template is looked at


class Tokens(NamedTuple):
    """A conversation as tokens, int32 (length,); the tokens from ``first`` on are
    the answer."""

    tokens: np.ndarray
    first: int


class Tokenised(NamedTuple):
    """Conversations as tokens."""

    texts: list[Tokens]
    cut: int  # truncated answers
    left_out: int  # conversations whose prompt leaves no room for an answer


class AnswerTokenizer:
    """Makes tokens of conversations, by the chat template of the tokenizer or by
    Alpaca's. None takes the tokenizer's where it has one; ``mend`` is the advice if it
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
        roles = (
            "messages|map(attribute='role')|list not in [['user'], ['user',"
            " 'assistant']]"
        )
        one = (
            f"{{% if {roles} %}}{{{{ raise_exception('the template is of one question')"
            " }}{% endif %}"
        )
        answer = (
            "{% if messages|length > 1 %}{{ messages[1]['content'] }}{{ eos_token }}{%"
            " endif %}"
        )
        return (
            f"{one}{{{{ bos_token }}}}{{{{ {before} + messages[0]['content'] + {after}"
            f" }}}}{answer}"
        )

    def encode(self, conversations: Sequence[Conversation]) -> list[Tokens]:
        """Encodes conversations of any length; an answer ends with the first token
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
        """Tokenises conversations with room for a token of answer behind the prompt;
        longer answers lose their end."""
        texts = self.encode(conversations)
        kept = [text for text in texts if text.first < max_length]
        cut = sum(len(text.tokens) > max_length for text in kept)
        return Tokenised(
            [Tokens(text.tokens[:max_length], text.first) for text in kept],
            cut,
            len(texts) - len(kept),
        )

    def _joined(self, prompt: np.ndarray, answer: np.ndarray) -> Tokens:
        ends = np.flatnonzero(np.isin(answer, self._stops)).tolist()
        answer = answer[: ends[0] + 1] if ends else np.append(answer, self._stops[0])
        return Tokens(np.concatenate([prompt, answer]).astype(np.int32), len(prompt))

    def _render(
        self, conversations: Sequence[Conversation]
    ) -> tuple[list[str], list[str]]:
        """Returns the texts of the prompts and of the answers."""
        if self.template == "alpaca":
            start = self.tokenizer.named.get("bos_token", "") + ALPACA
            prompts = [start.format(one.prompt) for one in conversations]
            return prompts, [one.answer for one in conversations]
        chats = [
            [
                {"role": "user", "content": one.prompt},
                {"role": "assistant", "content": one.answer},
            ]
            for one in conversations
        ]
        prompts = self.tokenizer.chats([chat[:1] for chat in chats], answer=True)
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
    """Logs the lost examples of a split; losing all is an error."""
    total = len(tokenised.texts) + tokenised.left_out
    if not tokenised.texts:
        raise UserError(
            f"--max-length {max_length} leaves none of {total} {split} prompts room to"
            " answer; raise it"
        )
    lost = {
        f"answers end after {max_length} tokens of prompt and answer": tokenised.cut,
        f"instructions are left out: their prompts have {max_length} tokens": (
            tokenised.left_out
        ),
    }
    for words, count in lost.items():
        if count:
            log(f"  {split}: {count} of {total} {words}")


class PackedBatch(NamedTuple):
    """Rows of texts, and the positions whose next token belongs to an answer."""

    tokens: np.ndarray  # numbers of tokens, int32 (batch, n)
    # number of each token's text in the row, from 1 on, int32 (batch, n); 0 is padding
    segments: np.ndarray
    # positions that predict a token of an answer, int32 (batch, kept)
    places: np.ndarray
    labels: np.ndarray  # the token to predict there, int32 (batch, kept)
    # float32 (batch, kept), 1; or 0, where positions only fill up the row
    weights: np.ndarray
    # the number of the text in its split, int32 (batch, kept); -1 where it only fills
    # up
    owners: np.ndarray


class PackedData:
    """Splits of packed rows, held in memory; all batches of one size have one shape."""

    def __init__(
        self, splits: Mapping[str, Sequence[Tokens]], *, length: int, packing: bool
    ) -> None:
        lengths = {
            split: [len(text.tokens) for text in texts]
            for split, texts in splits.items()
        }
        rows = {
            split: pack(each, length if packing else 0)
            for split, each in lengths.items()
        }
        self.kept = max(
            kept_positions(texts, rows[split]) for split, texts in splits.items()
        )
        self._splits = {
            split: arrays(texts, rows[split], length, self.kept)
            for split, texts in splits.items()
        }
        self.texts = {split: len(texts) for split, texts in splits.items()}

    def num_rows(self, split: str) -> int:
        """Returns the number of rows that the texts of a split fill."""
        return len(self._splits[split].tokens)

    def whole(self, split: str) -> PackedBatch:
        """All rows of a split."""
        return self._splits[split]

    def batches(
        self,
        split: str,
        *,
        batch_size: int,
        seed: int,
        start_step: int = 0,
        rows: np.ndarray | None = None,
    ) -> Iterator[PackedBatch]:
        """Iterates over shuffled rows without end, from any step on; batch ``step``
        depends on (seed, step) only."""
        check_batches(batch_size, seed, start_step)
        read, count = self._reader(split), self.num_rows(split)
        return read_ahead(
            shuffled(count, read, batch_size=batch_size, seed=seed, rows=rows),
            start_step,
        )

    def examples(self, split: str, *, batch_size: int) -> Iterator[PackedBatch]:
        """Iterates over a whole split once, in order; the last batch is filled up
        with rows that do not count."""
        check_batches(batch_size)
        read = self._reader(split)
        for batch in read_ahead(
            in_order(self.num_rows(split), read, batch_size=batch_size)
        ):
            yield filled(batch, batch_size)

    def _reader(self, split: str) -> Callable[[np.ndarray], PackedBatch]:
        whole = self._splits[split]
        return lambda numbers: PackedBatch(
            *(part[np.asarray(numbers)] for part in whole)
        )


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
    count = len(rows)
    tokens, segments = (np.zeros((count, length), np.int32) for _ in range(2))
    places, labels = (np.zeros((count, kept), np.int32) for _ in range(2))
    weights, owners = (
        np.zeros((count, kept), np.float32),
        np.full((count, kept), -1, np.int32),
    )
    for index, row in enumerate(rows):
        begun = filled_up = 0
        for segment, number in enumerate(row, start=1):
            text_tokens, first = texts[number]
            tokens[index, begun : begun + len(text_tokens)] = text_tokens
            segments[index, begun : begun + len(text_tokens)] = segment
            answer = slice(filled_up, filled_up + len(text_tokens) - first)
            places[index, answer] = begun + np.arange(first - 1, len(text_tokens) - 1)
            labels[index, answer] = text_tokens[first:]
            weights[index, answer], owners[index, answer] = 1.0, number
            begun, filled_up = begun + len(text_tokens), answer.stop
    return PackedBatch(tokens, segments, places, labels, weights, owners)


def filled(batch: PackedBatch, size: int) -> PackedBatch:
    """A batch extended to ``size`` rows; the added rows do not count."""
    missing = size - len(batch.tokens)
    if missing == 0:
        return batch
    values = batch._asdict()
    added = {
        name: np.zeros((missing, *part.shape[1:]), part.dtype)
        for name, part in values.items()
    }
    added["owners"] -= 1
    return PackedBatch(
        *(np.concatenate([values[name], added[name]]) for name in PackedBatch._fields)
    )
