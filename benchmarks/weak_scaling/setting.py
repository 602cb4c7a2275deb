"""The setting that the benchmark of many devices compiles, and the compiler's figures for it."""

from typing import NamedTuple

__all__ = ["EIGHT_BILLION", "TOPOLOGIES", "Compiled", "DecoderSizes", "Setting"]

# Chips of a v5p slice -> the sides of its torus.
TOPOLOGIES = {8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8", 512: "8x8x8"}


class DecoderSizes(NamedTuple):
    """Sizes of a decoder; see `LanguageModel`."""

    vocabulary: int
    dim: int
    num_layers: int
    heads: int
    kv_heads: int
    hidden: int


EIGHT_BILLION = DecoderSizes(128_256, 4096, 32, 32, 8, 14_336)  # those of Llama 3 8B


class Setting(NamedTuple):
    """A program to compile.

    Attributes:
      platform: "abstract" (lowered alone, for devices that are nowhere), "tpu" (v5p, through libtpu's compiler) or
        "cpu" (devices that XLA makes up).
      num_devices: all of them hold a shard of everything, and their own sequences.
      sizes: of the decoder.
      sequences: on each device.
      tokens: of a sequence.
      chunk: positions that are read at a time.
      share: one position in so many is read at every layer; None trains by plain risk.
      dtype: what layers compute in, and weights and gradients travel in.
    """

    platform: str
    num_devices: int
    sizes: DecoderSizes
    sequences: int
    tokens: int
    chunk: int
    share: int | None
    dtype: str


class Compiled(NamedTuple):
    """Figures of the compiler.

    Attributes:
      sent: kind -> bytes that a device sends in a step.
      counts: kind -> how many collectives a step runs.
      argument_bytes: of the state and the batch, on a device.
      temporary_bytes: on a device.
      seconds: of compilation.
    """

    sent: dict[str, float]
    counts: dict[str, int]
    argument_bytes: int
    temporary_bytes: int
    seconds: float
