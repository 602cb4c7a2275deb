"""Text classification with perturbed embeddings: encoders and unrolled transformers, plain and under constraints."""

from train.text.config import TextEncoderConfig, TextUnrolledConfig
from train.text.experiments import TEXT
from train.text.kind import TEXT_ENCODER, TEXT_UNROLLED

__all__ = ["TEXT", "TEXT_ENCODER", "TEXT_UNROLLED", "TextEncoderConfig", "TextUnrolledConfig"]
