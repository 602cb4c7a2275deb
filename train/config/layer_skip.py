"""Weights of layers' losses that grow with depth, as LayerSkip has them."""

from collections.abc import Sequence


def rising_weights(numbers: Sequence[int], scale: float) -> tuple[float, ...]:
    r"""Returns the weights of the losses of layers, which add up to 1.

    Layer :math:`l < L` weighs :math:`e_l = s \sum_{i=0}^{l-1} i`, the last :math:`L - 1 + s \sum_{i=0}^{L-2} i`, each
    over the sum of these: quadratically more towards the end, where predicting is easier. The embedded input and layer
    1 weigh nothing.

    Args:
      numbers: of the layers that have a loss, rising; the last is the depth L, at least 1.
      scale: s, in (0, 1] in the paper.

    Source: Elhoushi et al., "LayerSkip" (2024), section 4.1.2, where layers are counted from 0; the sum runs over the
    layers that its curriculum has on, here those with a loss.
    """
    depth = numbers[-1]
    before = [scale * number * (number - 1) / 2 for number in numbers[:-1]]
    last = depth - 1 + scale * (depth - 1) * (depth - 2) / 2
    total = sum(before) + last
    return (*(weight / total for weight in before), last / total) if total > 0.0 else (*before, 1.0)
