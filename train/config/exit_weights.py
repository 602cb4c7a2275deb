"""Fixed weights of the losses of layers, as LayerSkip and torchtune have them, and curricula that skip some of them."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any


def exit_weights(layers: Sequence[int], *, scale: float, source: str = "layerskip") -> tuple[float, ...]:
    r"""Weights of the losses of layers, quadratically larger towards the end; they add up to 1.

    With layers counted by their outputs, 1 to L, before all are divided by their sum:

    - "layerskip": layer :math:`l < L` weighs :math:`s \sum_{i<l} i`, layer L :math:`L - 1 + s \sum_{i<L-1} i`.
    - "torchtune": layer l weighs the sum of the numbers of the layers read up to l, times s where :math:`l < L`.

    The last layer's share is much larger by torchtune's: .577 against .333 for 12 layers at scale .2.

    Args:
      layers: numbers of the layers read, rising; 0, the embedded input, weighs nothing.
      scale: s >= 0, the weight of early layers.
      source: "layerskip" or "torchtune".

    Source: Elhoushi et al., "LayerSkip" (2024), section 4.1.2, whose layers count from 0; ``sum_l_loss_scale`` of
    torchtune's ``early_exit_loss``.

    Example:
      >>> exit_weights(range(4), scale=1.0)
      (0.0, 0.0, 0.25, 0.75)
      >>> exit_weights(range(4), scale=1.0, source="torchtune")
      (0.0, 0.1, 0.3, 0.6)
    """
    depth = layers[-1]
    if source == "layerskip":
        early = [layer * (layer - 1) / 2 for layer in layers[:-1]]
        last = depth - 1 + scale * (depth - 1) * (depth - 2) / 2
    else:
        *early, last = itertools.accumulate(layers)
    before = [scale * weight for weight in early]
    total = sum(before) + last
    return (*(weight / total for weight in before), last / total) if total > 0.0 else (*before, 1.0)


def exit_curriculum(
    weights: Sequence[float], *, kind: str, interval: int = 1, num_steps: int = 1
) -> Callable[[Any], Any]:
    r"""Weights of the losses of layers by step: some early losses do not count, and their share goes to the others.

    - "rotational": of the losses before the last, one in ``interval`` counts, the next ones at each step.
    - "gradual": the losses before the last join one by one, the last ones first, evenly over half of the steps.

    The last loss always counts, and the sum of weights stays that of all.

    Args:
      weights: of the losses that are read, the last one positive, such as `exit_weights`.
      kind: "rotational" or "gradual".
      interval: R of "rotational"; LayerSkip's models have 2 to 15.
      num_steps: T, the steps of training, of "gradual".

    Returns:
      ``step -> weights``, which can be traced.

    Source: Elhoushi et al., "LayerSkip" (2024), section 4.1.2.

    Example:
      >>> rotate = exit_curriculum((0.2, 0.2, 0.6), kind="rotational", interval=2)
      >>> [[round(weight, 2) for weight in rotate(step).tolist()] for step in (0, 1)]
      [[0.25, 0.0, 0.75], [0.0, 0.25, 0.75]]
    """
    import jax.numpy as jnp  # takes a second to import, for which options need not wait

    early = len(weights) - 1
    all_weights, places = jnp.asarray(weights, jnp.float32), jnp.arange(early)

    def at(step: Any) -> Any:
        if kind == "rotational":
            counts = (places - step) % interval == 0
        else:
            counts = step * 2 * early >= (early - places) * num_steps
        kept = jnp.where(jnp.append(counts, True), all_weights, 0.0)
        return kept * (jnp.sum(all_weights) / jnp.sum(kept))

    return at
