"""Tokenizers of the package ``tokenizers`` out of lists of tokens: byte-level BPE, and the BPE of SentencePiece."""

from collections.abc import Iterator, Sequence
from typing import Any

# How byte-level tokenizers split texts, by GGUF's name (llama.cpp, src/llama-vocab.cpp).
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
SPLITS: dict[str, tuple[bool, str]] = {  # whether to separate digits, and the pattern
    "gpt-2": (False, _GPT2),
    "smollm": (True, _GPT2),
    "llama-bpe": (False, _LLAMA3),
}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # GGUF's kinds of token
WORD = "\u2581"  # a space in the tokens of SentencePiece


def byte_level(
    tokens: Sequence[str], kinds: Sequence[int], merges: Sequence[tuple[str, str]], split: str, *, starts: int | None
) -> Any:
    """Makes the byte-level BPE tokenizer of GPT-2, SmolLM2 and Llama 3.

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
    from tokenizers import decoders, models, pre_tokenizers

    digits, pattern = SPLITS[split]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    tokenizer: Any = tokenizers.Tokenizer(models.BPE(vocabulary, list(merges), ignore_merges=split == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *([pre_tokenizers.Digits(individual_digits=True)] if digits else []),
            pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return _with_special(tokenizer, tokens, kinds, (CONTROL,), starts)


def sentence_pieces(
    tokens: Sequence[str],
    scores: Sequence[float],
    kinds: Sequence[int],
    *,
    unknown: int,
    prefix: bool,
    starts: int | None,
) -> Any:
    """Makes the BPE tokenizer of SentencePiece, as Llama 2 has it.

    Neighbours are merged by the score of the resulting token; characters without a token become bytes. A text between
    special tokens starts with a space, as in llama.cpp and in the tokenizer.json of these models.

    Args:
      tokens: by their number, `WORD` for a space.
      scores: of the tokens; higher ones merge first.
      kinds: see `byte_level`.
      unknown: number of the token for characters whose bytes have no tokens.
      prefix: whether texts get a leading space.
      starts: see `byte_level`.

    Returns:
      A ``tokenizers.Tokenizer``.

    Raises:
      ValueError: if the numbers of scores and tokens differ.
    """
    import tokenizers
    from tokenizers import decoders, models, normalizers

    if len(scores) != len(tokens):
        raise ValueError(f"{len(scores)} scores of {len(tokens)} tokens")
    vocabulary = {token: place for place, token in enumerate(tokens)}
    merges = list(_merges(tokens, scores, kinds))
    model = models.BPE(vocabulary, merges, unk_token=tokens[unknown], fuse_unk=True, byte_fallback=True)
    tokenizer: Any = tokenizers.Tokenizer(model)
    before, behind = ([normalizers.Prepend(WORD)], [decoders.Strip(" ", 1, 0)]) if prefix else ([], [])
    tokenizer.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", WORD)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(WORD, " "), decoders.ByteFallback(), decoders.Fuse(), *behind]
    )
    return _with_special(tokenizer, tokens, kinds, (CONTROL, UNKNOWN), starts)


def _merges(tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Yields every pair of tokens that makes a third, by the scores of the third and of both."""
    of_pieces = kinds or [NORMAL] * len(tokens)
    pieces = {token: score for token, score, kind in zip(tokens, scores, of_pieces, strict=True) if kind == NORMAL}
    pairs = [
        (-score, -pieces[left], -pieces[right], left, right)
        for piece, score in pieces.items()
        for left, right in ((piece[:place], piece[place:]) for place in range(1, len(piece)))
        if left in pieces and right in pieces
    ]
    for *_, left, right in sorted(pairs):
        yield left, right


def _with_special(
    tokenizer: Any, tokens: Sequence[str], kinds: Sequence[int], special: Sequence[int], starts: int | None
) -> Any:
    """Adds special and user-defined tokens, and the one that texts start with."""
    from tokenizers import AddedToken, processors

    for token, kind in zip(tokens, kinds, strict=False):
        if kind in (*special, USER_DEFINED):
            added = AddedToken(token, special=kind in special, normalized=False)
            (tokenizer.add_special_tokens if kind in special else tokenizer.add_tokens)([added])
    if starts is not None:
        first = tokens[starts]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A {first} $B:1", special_tokens=[(first, starts)]
        )
    return tokenizer
