"""Flax modules: they own parameters and call the pure functions of the floors below.

Classifiers and segmenters of images are called as
``(logits, info) = module.apply(variables, x)``: ``info`` is an `EquilibriumInfo` where
features are an equilibrium, and None where they are not. `Classifier` and
`UnrolledClassifier`, of text, return the logits of every layer. `Decoder`, of language,
the hidden states.

Example:
  >>> SCALINGS, NO_TOKEN  # of `RotaryScaling`, after the ends of answers
  (('linear', 'llama3'), -1)
"""

from unroll_jax.models.baselines.feedforward_network import FeedForwardNetwork
from unroll_jax.models.baselines.fully_convolutional_network import (
    FullyConvolutionalNetwork,
)
from unroll_jax.models.baselines.monotone_network import MonotoneOperatorNetwork
from unroll_jax.models.baselines.neural_ode import NeuralODE
from unroll_jax.models.classifier import Classifier
from unroll_jax.models.deep_opteq import DeepOptEq
from unroll_jax.models.dust import DUST, dictionary_bases
from unroll_jax.models.encoder import Encoder
from unroll_jax.models.encoder_parts import EncoderConfig
from unroll_jax.models.initializers import dct, scaled_identity
from unroll_jax.models.language.decoder import Decoder, decoder_logits, decoder_readout
from unroll_jax.models.language.decoder_parts import DecoderConfig, rms_norm
from unroll_jax.models.language.decoding import KeyValueCache, decode, empty_cache
from unroll_jax.models.language.generation import Generated, generate
from unroll_jax.models.language.low_rank import (
    low_rank_changes,
    merged_changes,
    with_changes,
)
from unroll_jax.models.language.rotary import SCALINGS, RotaryScaling
from unroll_jax.models.language.sampling import NO_TOKEN, Sampling
from unroll_jax.models.language.speculative import speculate
from unroll_jax.models.lista import LISTA
from unroll_jax.models.parts import BehindStem
from unroll_jax.models.segmenters import DeepOptEqSegmenter
from unroll_jax.models.unrolled_classifier import UnrolledClassifier
from unroll_jax.models.unrolled_transformer import UnrolledTransformer, cosine_bases
from unroll_jax.models.vit import ViT
from unroll_jax.models.vit_parts import ViTConfig

__all__ = [
    "DUST",
    "LISTA",
    "NO_TOKEN",
    "SCALINGS",
    "BehindStem",
    "Classifier",
    "Decoder",
    "DecoderConfig",
    "DeepOptEq",
    "DeepOptEqSegmenter",
    "Encoder",
    "EncoderConfig",
    "FeedForwardNetwork",
    "FullyConvolutionalNetwork",
    "Generated",
    "KeyValueCache",
    "MonotoneOperatorNetwork",
    "NeuralODE",
    "RotaryScaling",
    "Sampling",
    "UnrolledClassifier",
    "UnrolledTransformer",
    "ViT",
    "ViTConfig",
    "cosine_bases",
    "dct",
    "decode",
    "decoder_logits",
    "decoder_readout",
    "dictionary_bases",
    "empty_cache",
    "generate",
    "low_rank_changes",
    "merged_changes",
    "rms_norm",
    "scaled_identity",
    "speculate",
    "with_changes",
]
