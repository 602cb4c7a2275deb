"""Costs of drafting tokens and of verifying them, and the speedup to expect of it."""

import math
from typing import NamedTuple

import jax

from unroll_jax.models.language.decoder_parts import DecoderConfig, layer_shapes
from unroll_jax.models.language.exit_adapters import ExitAdapter
from unroll_jax.models.language.speculative import check_draft

__all__ = ["Costs", "expected_speedup", "expected_tokens", "weight_costs"]


class Costs(NamedTuple):
    """Costs of calls, in seconds or any other unit.

    Attributes:
      layer: one layer on one token of each row.
      head: norm and head on one token of each row.
      further: cost of each further token in the same call, as a share of the first: 0 where reading the weights is
        all that counts, 1 where computing is.

    Example: see `expected_speedup`.
    """

    layer: float
    head: float
    further: float = 0.0


def expected_tokens(rate: float, draft_length: int) -> float:
    r"""Tokens of a verification, :math:`(1 - \alpha^{d + 1}) / (1 - \alpha)`, where drafts are accepted independently.

    Args:
      rate: probability alpha that a drafted token is accepted, in [0, 1].
      draft_length: d, at least 1.

    Returns:
      Tokens, in [1, draft_length + 1].

    Source: Leviathan, Kalman, Matias (2023), equation 1.

    Example:
      >>> expected_tokens(0.5, draft_length=2)  # 1 + 1 / 2 + 1 / 4
      1.75
    """
    return sum(rate**place for place in range(draft_length + 1))


def weight_costs(config: DecoderConfig) -> Costs:
    """Costs where reading the weights is all that counts, in weights: about so on a GPU with a few rows.

    Args:
      config: of the decoder.

    Returns:
      `Costs`, of which ``further`` is 0.

    Example:
      >>> weight_costs(DecoderConfig(50, dim=8, num_heads=2, num_key_value_heads=2)).head  # 50 times 8
      400
    """
    layer = sum(math.prod(shape) for part in layer_shapes(config).values() for shape in part.values())
    return Costs(layer, config.vocabulary_size * config.dim)


def expected_speedup(
    config: DecoderConfig,
    exit_layer: int,
    draft_length: int,
    tokens: float,
    costs: Costs | None = None,
    *,
    adapter: ExitAdapter | None = None,
) -> float:
    """Time of plain generation over that of drafts, by the costs of their calls.

    Args:
      config: of the decoder.
      exit_layer: number of layers that draft.
      draft_length: tokens before each verification.
      tokens: that a verification yields, of `tokens_a_call` or `expected_tokens`.
      costs: measured ones; None takes `weight_costs`.
      adapter: of the exit layer. It costs as much of a layer as it has of its weights, and its draft vocabulary as much
        of the head as it has of its tokens.

    Returns:
      The ratio; below 1 drafts do not pay.

    Raises:
      ValueError: if the decoder has no such exit layer, or draft_length is below 1.

    Example:
      >>> config, costs = DecoderConfig(100, num_layers=4), Costs(layer=1.0, head=0.0)
      >>> expected_speedup(config, 1, 2, tokens=3.0, costs=costs)  # 3 tokens of 4 layers; drafts cost 3, verification 3
      2.0
    """
    check_draft(config, exit_layer, draft_length)
    layer, head, further = weight_costs(config) if costs is None else costs
    plain = config.num_layers * layer + head
    block, words = 0.0, 1.0
    if adapter is not None:
        block = sum(leaf.size for leaf in jax.tree.leaves(adapter.weights)) / weight_costs(config).layer
        words = 1.0 if adapter.words is None else adapter.words.size / config.vocabulary_size
    draft = ((draft_length + 1) * exit_layer + draft_length * block) * layer + draft_length * words * head
    verification = (1.0 + draft_length * further) * ((config.num_layers - exit_layer) * layer + head)
    return tokens * plain / (draft + verification)
