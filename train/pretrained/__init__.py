"""Pretrained encoders: weights and tokenizer from a folder as Hugging Face lays it out, or from its hub."""

from train.pretrained.architectures import ARCHITECTURES
from train.pretrained.checkpoint import Pretrained, keeps_logits, load_pretrained, start_from
from train.pretrained.folders import FILES, find_folder, may_be_repository
from train.pretrained.tokenizer import EncoderTokenizer, load_tokenizer

__all__ = [
    "ARCHITECTURES",
    "FILES",
    "EncoderTokenizer",
    "Pretrained",
    "find_folder",
    "keeps_logits",
    "load_pretrained",
    "load_tokenizer",
    "may_be_repository",
    "start_from",
]
