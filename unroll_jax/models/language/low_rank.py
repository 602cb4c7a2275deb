"""Low-rank changes of a decoder's kernels (LoRA)."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from unroll_jax.arguments import at_least, check
from unroll_jax.models.language.decoder_parts import DecoderConfig, layer_shapes

__all__ = ["low_rank_changes", "merged_changes", "with_changes"]


def low_rank_changes(
    key: jax.Array, config: DecoderConfig, *, rank: int, dtype: Any = jnp.float32
) -> Any:
    r"""Changes :math:`A B` of every kernel :math:`W`, none at first: :math:`B = 0`.

    Args:
      key: of the uniform numbers in :math:`[-1/\sqrt{d}, 1/\sqrt{d}]` that A starts
        with, d the width that comes in.
      config: of the decoder.
      rank, dtype: columns of A and rows of B, and dtype of both.

    Returns:
      For each part of a layer with a kernel ``compress``, A, (L, in, rank), and
      ``expand``, B, (L, rank, out).

    Source: Hu et al., "LoRA: low-rank adaptation of large language models" (2022).

    Example:
      >>> import jax
      >>> sizes = {"dim": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 16}
      >>> config = DecoderConfig(100, num_key_value_heads=2, **sizes)
      >>> changes = low_rank_changes(jax.random.key(0), config, rank=3)
      >>> changes["gate"]["compress"].shape, changes["gate"]["expand"].shape
      ((2, 8, 3), (2, 3, 16))
    """
    check("rank", rank, at_least(1))
    shapes = layer_shapes(config)
    parts = [part for part, of_part in shapes.items() if "kernel" in of_part]

    layers = config.num_layers
    changes = {}
    for part, part_key in zip(parts, jax.random.split(key, len(parts)), strict=True):
        width, out = shapes[part]["kernel"]
        bound = 1.0 / math.sqrt(width)
        A_shape = (layers, width, rank)
        compress = jax.random.uniform(part_key, A_shape, dtype, -bound, bound)
        expand = jnp.zeros((layers, rank, out), dtype)
        changes[part] = {"compress": compress, "expand": expand}
    return changes


def with_changes(layers: Any, changes: Any) -> Any:
    """Returns the layers' parameters with ``compress`` and ``expand`` next to kernels.

    Layers and `decode` take them.

    Args:
      layers: of a `Decoder`, stacked.
      changes: of `low_rank_changes`. Multiply ``expand`` by the paper's alpha / rank
        before.

    Source: Hu et al. (2022), Section 4.1.

    Example:
      >>> import jax.numpy as jnp
      >>> layers = {"gate": {"kernel": jnp.eye(2)[None]}}  # of one layer
      >>> changes = {
      ...     "gate": {"compress": jnp.ones((1, 2, 1)), "expand": jnp.zeros((1, 1, 2))}
      ... }
      >>> sorted(with_changes(layers, changes)["gate"])
      ['compress', 'expand', 'kernel']
    """
    return {
        part: {**weights, **changes.get(part, {})} for part, weights in layers.items()
    }


def merged_changes(layers: Any, changes: Any) -> Any:
    """Returns the layers' parameters with their changes added to the kernels.

    They have the dtype of the kernels. Outputs equal those of `with_changes` up to
    round-off. Decoding reads every weight for each token, so it is quicker with only
    the kernels.

    Args:
      layers, changes: as in `with_changes`.

    Source: Hu et al. (2022), Section 4.1.

    Example:
      >>> import jax.numpy as jnp
      >>> layers = {"gate": {"kernel": jnp.eye(2)[None]}}  # of one layer
      >>> changes = {
      ...     "gate": {"compress": jnp.ones((1, 2, 1)), "expand": jnp.ones((1, 1, 2))}
      ... }
      >>> merged_changes(layers, changes)["gate"]["kernel"].tolist()
      [[[2.0, 1.0], [1.0, 2.0]]]
    """

    merged = dict(layers)
    for part, weights in layers.items():
        if part in changes:
            kernel = weights["kernel"]
            change = changes[part]
            total = kernel + jnp.matmul(change["compress"], change["expand"])
            merged[part] = {**weights, "kernel": total.astype(kernel.dtype)}
    return merged
