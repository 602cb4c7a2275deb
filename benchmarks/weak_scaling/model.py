"""Bytes, operations and seconds of a training step by formula."""

from typing import NamedTuple

import jax.numpy as jnp

from benchmarks.language_model import LanguageModel, matmul_flops_a_token
from benchmarks.weak_scaling.setting import DecoderSizes, Setting

__all__ = ["ACCELERATORS", "Accelerator", "StepTime", "flops_a_device", "formula_bytes", "num_params", "step_time"]

GRADIENT_PASSES = 4  # forward, forward again in the backward pass (remat), and two products backward for each


class Accelerator(NamedTuple):
    """Published figures of one device.

    Attributes:
      name: of the accelerator.
      peak: operations a second, bfloat16, dense.
      near: how many devices the faster links join; None is all of them.
      near_bandwidth: bytes a second that a device sends over the faster links.
      far_bandwidth: the same where a ring joins several groups of ``near``.
      published: these figures in words.
    """

    name: str
    peak: float
    near: int | None
    near_bandwidth: float
    far_bandwidth: float
    published: str


ACCELERATORS = (
    Accelerator("TPU v5p", 459e12, None, 600e9, 600e9, "459 TFLOP/s, 4,800 Gbit/s of links a chip, all in use"),
    Accelerator(
        "H100 SXM",
        989e12,
        8,
        450e9,
        400e9,
        "989 TFLOP/s, NVLink 450 GB/s each way in a node of 8; beyond it 8 rings at once, each over another of the "
        "node's 8 InfiniBand cards of 400 Gbit/s: 400 GB/s",
    ),
)


class StepTime(NamedTuple):
    """Seconds of a step.

    Attributes:
      compute: at the published peak.
      network: at the published bandwidth.
      overlapped: the longer of the two.
      apart: their sum.
    """

    compute: float
    network: float
    overlapped: float
    apart: float


def num_params(sizes: DecoderSizes) -> tuple[int, int]:
    """Weights of the matrices: ``(of all layers, of the embedding and the readout)``. Scales of norms are left out."""
    narrow = sizes.dim * sizes.kv_heads // sizes.heads
    layer = 2 * sizes.dim * (sizes.dim + narrow) + 3 * sizes.dim * sizes.hidden
    return sizes.num_layers * layer, 2 * sizes.vocabulary * sizes.dim


def formula_bytes(setting: Setting) -> dict[str, float]:
    """Kind -> bytes that a device sends in a step, matrices alone, by ring algorithms.

    Layers are gathered twice, as they run forward twice, embedding and readout once; every gradient is scattered once.
    Constraints add nothing: the readout is gathered once, whatever it reads.
    """
    layers, ends = num_params(setting.sizes)
    others = (setting.num_devices - 1) / setting.num_devices * jnp.dtype(setting.dtype).itemsize
    return {"all-gather": (2 * layers + ends) * others, "reduce-scatter": (layers + ends) * others}


def flops_a_device(setting: Setting) -> float:
    """Operations of the matrix products of a step on one device, recomputation included."""
    sizes = setting.sizes
    model = LanguageModel(**sizes._asdict(), classes=sizes.vocabulary)
    layers, readout = matmul_flops_a_token(model, setting.tokens)
    tokens = setting.sequences * setting.tokens
    read = tokens if setting.share is None else tokens * (1 + (sizes.num_layers + 1) / setting.share)
    return GRADIENT_PASSES * (layers * tokens + readout * read)


def step_time(setting: Setting, sent: float, accelerator: Accelerator) -> StepTime:
    """Seconds of a step of which each device sends ``sent`` bytes.

    Beyond ``near`` devices rings cross the slower links, and run at their pace.
    """
    within = accelerator.near is None or setting.num_devices <= accelerator.near
    bandwidth = accelerator.near_bandwidth if within else accelerator.far_bandwidth
    compute, network = flops_a_device(setting) / accelerator.peak, sent / bandwidth
    return StepTime(compute, network, max(compute, network), compute + network)
