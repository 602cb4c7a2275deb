"""Text classification: readers of the published files and of your own, words and their vectors, batches of tokens."""

from train.data.text.embeddings import Embeddings, glove_embeddings, hashed_embeddings
from train.data.text.sources import TEXTS, TextConfig
from train.data.text.texts import TextBatch, TextData, load, prepare
from train.data.text.token_batches import TokenBatch, TokenData, bucket_lengths, token_batch
from train.data.text.word_tokenizer import (
    Encoded,
    Tokenizer,
    WordTokenizer,
    check_texts,
    embedding_table,
    learn_words,
)
from train.data.text.words import tokenise

__all__ = [
    "TEXTS",
    "Embeddings",
    "Encoded",
    "TextBatch",
    "TextConfig",
    "TextData",
    "TokenBatch",
    "TokenData",
    "Tokenizer",
    "WordTokenizer",
    "bucket_lengths",
    "check_texts",
    "embedding_table",
    "glove_embeddings",
    "hashed_embeddings",
    "learn_words",
    "load",
    "prepare",
    "token_batch",
    "tokenise",
]
