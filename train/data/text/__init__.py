"""Text classification: readers of the published files, words and their vectors."""

from train.data.text.embeddings import Embeddings, glove_embeddings, hashed_embeddings
from train.data.text.sources import TEXTS
from train.data.text.texts import TextBatch, TextData, load_text
from train.data.text.tokens import tokenise

__all__ = [
    "TEXTS",
    "Embeddings",
    "TextBatch",
    "TextData",
    "glove_embeddings",
    "hashed_embeddings",
    "load_text",
    "tokenise",
]
