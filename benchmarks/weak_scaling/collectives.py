"""Bytes that a collective of a compiled program sends."""

from unroll_jax.train.sharding.collectives import Collective

__all__ = ["bytes_sent"]


def bytes_sent(collective: Collective) -> float:
    """Bytes that each device sends in all runs of a collective, by the ring algorithms, which send the fewest.

    With a result of R bytes and groups of g: all-gather and all-to-all R (g - 1) / g, reduce-scatter R (g - 1),
    all-reduce twice R (g - 1) / g, a permutation R.

    Raises:
      ValueError: if a loop around it does not tell its trip count, so that nothing is known of all runs.
    """
    if not collective.bounded:
        raise ValueError(
            f"collective must be in loops whose trip counts the program tells, got {collective}: count with "
            "jax.lax.scan or jax.lax.fori_loop, from 0 to a constant"
        )
    others = (collective.group - 1) / collective.group
    factor = {"all-reduce": 2.0 * others, "reduce-scatter": collective.group - 1.0, "collective-permute": 1.0}
    return collective.times * collective.bytes * factor.get(collective.kind, others)
