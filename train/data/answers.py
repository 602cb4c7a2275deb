"""Conversations as tokens of a prompt and its answer, by a chat template or Alpaca's prompt."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from ..config.errors import UserError
from .conversations import Conversation, single_turn
from .files import Log
from .packing import Tokens
from .pretrained.chat import ChatTokenizer

Template = Literal["chat", "alpaca"]
Render = Callable[[Conversation], tuple[str, str]]  # a prompt, and the answer that follows it

# Taori et al., "Stanford Alpaca" (2023): the prompt without an input, which follows the instruction here.
ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{}\n\n### Response:\n"
)

PLACEHOLDER = "x"  # an answer, where a template is looked at


class Tokenised(NamedTuple):
    """Conversations as tokens.

    Attributes:
      texts: their tokens.
      cut: number of truncated answers.
      left_out: number of conversations whose prompt leaves no room for an answer.
      apart: number of answers that would share a token with the end of their prompt, and are encoded by themselves.
    """

    texts: list[Tokens]
    cut: int
    left_out: int
    apart: int = 0


class AnswerTokenizer:
    """Makes tokens of conversations.

    Args:
      tokenizer: with a chat template, or a token that ends an answer.
      template: chat, that of the tokenizer; alpaca; None takes the tokenizer's where it has one.
      mend: the advice if the tokenizer's template cannot be used.
    """

    def __init__(
        self, tokenizer: ChatTokenizer, template: Template | None, *, mend: str = "pass --template alpaca"
    ) -> None:
        chat = template == "chat" or (template is None and tokenizer.template is not None)
        self._mend = mend
        self.tokenizer, self._render = tokenizer, self._chat if chat else self._alpaca
        self.template: Template = "chat" if chat else "alpaca"
        if not tokenizer.stops:
            raise UserError(f"{tokenizer.where} names no token that ends an answer; give eos_token_id in config.json")
        self._stops = np.asarray(tokenizer.stops, np.int32)

    def encode(self, conversations: Sequence[Conversation]) -> list[Tokens]:
        """Encodes conversations of any length; an answer ends with the first token that stops it."""
        return self._encode(conversations)[0]

    def _encode(self, conversations: Sequence[Conversation]) -> tuple[list[Tokens], int]:
        pairs = [self._render(one) for one in conversations]
        prompts, answers = (self.tokenizer.encode([pair[place] for pair in pairs]) for place in range(2))
        apart = 0
        if self.tokenizer.prefixes:
            answers, apart = self._behind(pairs, prompts, answers)
        return [self._joined(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)], apart

    def questions(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encodes questions up to the start of an answer."""
        return self.tokenizer.encode([self._render(single_turn(text, PLACEHOLDER))[0] for text in texts])

    def fitting(self, conversations: Sequence[Conversation], max_length: int) -> Tokenised:
        """Tokenises conversations with room for a token of answer behind the prompt; longer answers lose their end."""
        texts, apart = self._encode(conversations)
        kept = [text for text in texts if text.first < max_length]
        cut = sum(len(text.tokens) > max_length for text in kept)
        tokens = [Tokens(text.tokens[:max_length], text.first) for text in kept]
        return Tokenised(tokens, cut, len(texts) - len(kept), apart)

    def _behind(self, pairs: Sequence[tuple[str, str]], prompts: Any, alone: Any) -> tuple[list[np.ndarray], int]:
        """The tokens of answers as they go on from prompts; those of answers alone where one token would be of both,
        and how many these are."""
        whole = self.tokenizer.encode(["".join(pair) for pair in pairs])
        goes_on = [np.array_equal(both[: len(prompt)], prompt) for both, prompt in zip(whole, prompts, strict=True)]
        answers = [
            both[len(prompt) :] if clean else answer
            for both, prompt, answer, clean in zip(whole, prompts, alone, goes_on, strict=True)
        ]
        return answers, goes_on.count(False)

    def _joined(self, prompt: np.ndarray, answer: np.ndarray) -> Tokens:
        ends = np.flatnonzero(np.isin(answer, self._stops)).tolist()
        answer = answer[: ends[0] + 1] if ends else np.append(answer, self._stops[0])
        return Tokens(np.concatenate([prompt, answer]).astype(np.int32), len(prompt))

    def _chat(self, conversation: Conversation) -> tuple[str, str]:
        messages = [message._asdict() for message in conversation.messages]
        prompt = self.tokenizer.chat(messages, answer=True)
        whole = self.tokenizer.chat([*messages, {"role": "assistant", "content": conversation.answer}])
        if not whole.startswith(prompt) or not whole[len(prompt) :].strip():
            raise UserError(
                f"the chat template of {self.tokenizer.where} does not put the answer behind the prompt; {self._mend}"
            )
        return prompt, whole[len(prompt) :]

    def _alpaca(self, conversation: Conversation) -> tuple[str, str]:
        first, *others = conversation.messages
        if others:
            roles = ", ".join(message.role for message in conversation.messages)
            raise UserError(
                f"--template alpaca is of one question and its answer, got {roles} before the answer; pass --template "
                "chat, of a tokenizer that has one"
            )
        prompt = ALPACA.format(first.content)
        return self.tokenizer.named.get("bos_token", "") + prompt, conversation.answer


def tell(tokenised: Tokenised, split: str, max_length: int, log: Log) -> None:
    """Logs the lost examples of a split; losing all is an error."""
    total = len(tokenised.texts) + tokenised.left_out
    if not tokenised.texts:
        raise UserError(
            f"--max-length {max_length} leaves no {split} instruction room for an answer: the prompts of all {total} "
            "are as long; raise it"
        )
    if tokenised.cut:
        log(f"  {split}: {tokenised.cut} of {total} answers end after {max_length} tokens of prompt and answer")
    if tokenised.apart:
        log(
            f"  {split}: {tokenised.apart} of {total} answers are tokenised apart from their prompts: one token would "
            "span the end of one and the start of the other"
        )
    if tokenised.left_out:
        log(
            f"  {split}: {tokenised.left_out} of {total} instructions are left out: "
            f"their prompts have {max_length} tokens"
        )
