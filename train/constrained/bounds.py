"""The bounds of a run: as they are stated to the user, and as training tightens them."""

from typing import NamedTuple

from train.constrained.config import ConstraintConfig
from unroll_jax.constrained import Constraints, descent_constraints

__all__ = ["Bounds", "descent_bounds"]


class Bounds(NamedTuple):
    """Descent constraints of a depth.

    Attributes:
      stated: ``layer_losses -> violations``, as stated to the user: validation and reports judge by these.
      tightened: the same with every descent bound lowered by the margin: what training enforces.
      number: how many violations there are.
    """

    stated: Constraints
    tightened: Constraints
    number: int


def descent_bounds(settings: ConstraintConfig, num_layers: int) -> Bounds:
    """The bounds that a configuration states for this many layers; ``alpha`` has one number, or one for each."""
    alphas = settings.alpha if len(settings.alpha) == num_layers else settings.alpha * num_layers
    margins = (settings.first_margin, *[settings.margin] * (num_layers - 1))
    tight = [1.0 - (1.0 - alpha) * (1.0 - margin) for alpha, margin in zip(alphas, margins, strict=True)]
    return Bounds(
        stated=descent_constraints(alphas, reference=settings.reference),
        tightened=descent_constraints(tight, reference=settings.reference),
        number=num_layers + (settings.reference is not None),
    )
