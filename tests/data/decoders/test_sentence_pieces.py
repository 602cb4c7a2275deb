"""SentencePiece's BPE out of GGUF files: the tokens of its algorithm, written out, and of `transformers`."""

import functools
import itertools

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, trainers

from tests.errors import assert_fails
from unroll_jax.train.data.answers import ALPACA, AnswerTokenizer, tell
from unroll_jax.train.data.conversations import single_turn
from unroll_jax.train.data.pretrained.chat import ChatTokenizer, byte_tokenizer, gguf_tokenizer
from unroll_jax.train.data.pretrained.gguf import open_gguf

gguf = pytest.importorskip("gguf", reason="gguf, which reads quantised weights, is not installed")

CORPUS = [
    "the cat and the other cats sat on that mat",
    "a mat, the hat; an aaaa in the banana",
    "dé où été",
    "that that",
]
SPECIAL = ["<unk>", "<s>", "</s>"]
LETTERS = st.sampled_from(list("thecat nbadé\n,<>▁/s0x1"))
TEXTS = st.lists(LETTERS | st.characters(codec="utf-8")).map("".join)


@functools.cache
def vocabulary():
    """Tokens, their scores and kinds, as SentencePiece numbers them: special ones, bytes, pieces as they were trained,
    and the letters."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=90, show_progress=False))
    words = [token for token, _ in sorted(trained.get_vocab().items(), key=lambda item: item[1])]
    pieces = [word for word in words if len(word) > 1] + [word for word in words if len(word) == 1]
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    scores = [0.0] * (len(SPECIAL) + 256) + [-float(place) for place in range(len(pieces))]
    return tokens, scores, [2, 3, 3] + [6] * 256 + [1] * len(pieces)


def sentence_piece(text, *, prefix=True):
    """Numbers of tokens by the algorithm of SentencePiece's BPE: of all neighbours that make a piece, the pair with the
    best score is merged, the leftmost first; what is left without a token is its bytes."""
    tokens, scores, kinds = vocabulary()
    pieces = {token: score for token, score, kind in zip(tokens, scores, kinds, strict=True) if kind == 1}
    symbols = list((" " * prefix + text if text else "").replace(" ", "▁"))
    while True:
        made = ("".join(pair) for pair in itertools.pairwise(symbols))
        pairs = [(-pieces[piece], place) for place, piece in enumerate(made) if piece in pieces]
        if not pairs:
            break
        _, place = min(pairs)
        symbols[place : place + 2] = ["".join(symbols[place : place + 2])]
    numbers = {token: number for number, token in enumerate(tokens)}
    return [
        number
        for symbol in symbols
        for number in ([numbers[symbol]] if symbol in pieces else [3 + byte for byte in symbol.encode()])
    ]


@pytest.fixture(scope="module")
def write_file(tmp_path_factory):
    """Writes a GGUF file that holds a tokenizer alone; changes are methods of the writer and what they are given."""

    def write(*, scored=True, **changes):
        file = tmp_path_factory.mktemp("gguf") / "model.gguf"
        writer = gguf.GGUFWriter(file, "llama")
        tokens, scores, kinds = vocabulary()
        usual = {"model": "llama", "pre": "default"}
        for name, value in {**usual, **changes}.items():
            getattr(writer, f"add_{name}" if name.startswith(("add_", "remove_")) else f"add_tokenizer_{name}")(value)
        writer.add_token_list(tokens)
        if scored:
            writer.add_token_scores(scores)
        writer.add_token_types(kinds)
        writer.add_eos_token_id(2)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return file

    return write


def read(file) -> ChatTokenizer:
    with open_gguf(file) as files:
        return gguf_tokenizer(files)


@pytest.fixture(scope="module")
def tokenizer(write_file):
    return read(write_file())


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_tokens_are_those_of_the_algorithm_and_come_back_as_the_text(tokenizer, text):
    if any(token in text for token in SPECIAL):
        return  # texts are not split into these, which is tested on its own
    (tokens,) = tokenizer.encode([text])
    assert tokens.tolist() == sentence_piece(text)
    assert tokenizer.decode(tokens) == text.replace("▁", " ")


@pytest.mark.oracle("transformers")
@pytest.mark.xdist_group("torch")
def test_tokens_are_those_of_transformers(tokenizer):
    import transformers
    from transformers.tokenization_utils_base import generate_merges

    tokens, scores, kinds = vocabulary()
    numbers = {token: place for place, token in enumerate(tokens)}
    of_pieces = {token: score for token, score, kind in zip(tokens, scores, kinds, strict=True) if kind == 1}
    merges = generate_merges(numbers, of_pieces)
    theirs = transformers.LlamaTokenizerFast(vocab=numbers, merges=merges)
    generator, letters = np.random.default_rng(0), np.array(list("thecat nbadé\n,☃中"))
    # It puts no space before texts that start with one, unlike SentencePiece.
    texts = ["t" + "".join(generator.choice(letters, size)) for size in generator.integers(1, 40, 200)]
    for text, ours in zip(texts, tokenizer.encode(texts, special=True), strict=True):
        assert ours.tolist() == [1, *theirs.encode(text, add_special_tokens=False)], text


def test_special_tokens_stand_alone_and_texts_behind_them_start_with_a_space(tokenizer):
    (tokens,) = tokenizer.encode(["<s>the cat</s>that"])
    assert tokens.tolist() == [1, *sentence_piece("the cat"), 2, *sentence_piece("that")]
    assert tokenizer.decode(tokens, special=False).split() == ["the", "cat", "that"]
    assert (tokenizer.stops, tokenizer.named) == ((2,), {"bos_token": "<s>", "eos_token": "</s>"})


def test_a_file_says_whether_texts_start_with_a_space_and_with_the_first_token(write_file):
    tokenizer = read(write_file(add_space_prefix=False, add_bos_token=False))
    (tokens,) = tokenizer.encode([" the cat"], special=True)
    assert tokens.tolist() == sentence_piece(" the cat", prefix=False)
    assert tokenizer.decode(tokens) == " the cat"


def test_answers_go_on_from_their_prompts_without_a_space_of_their_own(tokenizer):
    assert (tokenizer.prefixes, byte_tokenizer().prefixes) == (True, False)
    (text,) = AnswerTokenizer(tokenizer, "alpaca").encode([single_turn("cat", "the cat")])
    prompt = ALPACA.format("cat")
    assert text.tokens.tolist() == [1, *sentence_piece(f"{prompt}the cat"), 2]
    assert text.first == 1 + len(sentence_piece(prompt))
    assert tokenizer.decode(text.tokens[text.first :], special=False) == "the cat"


class Merging:
    """A tokenizer of characters, but for a line break and an x behind it, which are one token."""

    prefixes, template, stops, named, where = True, None, (0,), {}, "merging"

    def encode(self, texts):
        return [np.array([ord(letter) for letter in text.replace("\nx", "\v")], np.int32) for text in texts]


def test_answers_that_share_a_token_with_their_prompt_stand_alone_and_are_counted():
    pairs, lines = [single_turn("a", "xyz"), single_turn("a", "yz")], []
    tokens = AnswerTokenizer(Merging(), "alpaca").fitting(pairs, 1000)
    assert [text.tokens[text.first :].tolist() for text in tokens.texts] == [[*b"xyz", 0], [*b"yz", 0]]
    assert (tokens.cut, tokens.left_out, tokens.apart) == (0, 0, 1)
    tell(tokens, "train", 1000, lines.append)
    assert lines == [
        "  train: 1 of 2 answers are tokenised apart from their prompts: one token would span the end of one and the "
        "start of the other"
    ]


def test_a_tokenizer_without_scores_or_that_drops_spaces_is_refused_in_one_line(write_file):
    assert_fails(read, write_file(remove_extra_whitespaces=True), "remove_extra_whitespaces", "tokenizer.json")
    count = len(vocabulary()[0])
    assert_fails(read, write_file(scored=False), f"has no usable tokenizer (0 scores of {count} tokens)")
