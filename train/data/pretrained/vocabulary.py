"""Byte-level BPE tokenizers of the package ``tokenizers`` out of lists of tokens."""

from collections.abc import Sequence
from typing import Any

# How byte-level tokenizers split texts (llama.cpp, src/llama-vocab.cpp).
PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPLITS = {"gpt-2": False, "smollm": True}  # by GGUF's name: whether digits are separated
CONTROL, USER_DEFINED = 3, 4  # GGUF's kinds of token that are added to the vocabulary


def byte_level(
    tokens: Sequence[str], kinds: Sequence[int], merges: Sequence[tuple[str, str]], split: str, *, starts: int | None
) -> Any:
    """Makes the byte-level BPE tokenizer of GPT-2 and SmolLM2.

    Args:
      tokens: by their number.
      kinds: of the tokens, as GGUF numbers them; missing ones are normal.
      merges: pairs of tokens, by rank.
      split: a name of `SPLITS`.
      starts: number of the token that ``add_special_tokens`` puts before texts; None for none.

    Returns:
      A ``tokenizers.Tokenizer``.
    """
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
