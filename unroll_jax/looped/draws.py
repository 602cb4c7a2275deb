"""Random numbers of loops for training: of all, before a far start, of segments."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from unroll_jax.arguments import (
    POSITIVE,
    at_least,
    checked,
    in_interval,
    one_of,
    require,
)
from unroll_jax.keys import threefry_keys

__all__ = ["sample_far_start", "sample_loops", "sample_segment"]

DISTRIBUTIONS = ("uniform", "log_normal_poisson")
SPREAD = 0.5  # sigma of "log_normal_poisson", as Huginn has it


@checked(
    most=at_least(1),
    distribution=one_of(DISTRIBUTIONS),
    least=at_least(1),
    mean=POSITIVE,
)
def sample_loops(
    key: jax.Array,
    most: int,
    *,
    distribution: str = "uniform",
    least: int = 1,
    mean: float | None = None,
) -> Int[Array, ""]:
    r"""Draws the number of loops of a training step.

    Pass it to `run_loops` as ``loops`` with ``most``. "uniform" draws each number from
    ``least`` to ``most`` with equal probability. "log_normal_poisson" is Huginn's

    .. math:: \tau \sim N(\log \bar r - \tfrac12 \sigma^2, \sigma^2),
              \quad r \sim \text{Poisson}(e^\tau) + 1 ,

    with :math:`\sigma = \tfrac12`, cut to that range. Most draws are below the mean
    :math:`\bar r + 1`, with a heavy tail.

    Args:
      key: of the draw.
      most, least: largest number, and smallest, at most ``most``.
      distribution: "uniform" or "log_normal_poisson".
      mean: :math:`\bar r`, of the second one. None is ``most / 2``.

    Source: Geiping et al. (2025), Section 3.3.

    Example:
      >>> import jax
      >>> keys = jax.random.split(jax.random.key(0), 100)
      >>> draws = jax.vmap(lambda key: sample_loops(key, 4))(keys)
      >>> sorted(set(draws.tolist()))
      [1, 2, 3, 4]
    """
    require(least <= most, "least", f"be at most most={most}", least)
    key = threefry_keys(key)
    if distribution == "uniform":
        return jax.random.randint(key, (), least, most + 1)
    of_rate, of_count = jax.random.split(key)
    average = most / 2 if mean is None else float(mean)
    log_mean = math.log(average) - 0.5 * SPREAD**2
    rate = jnp.exp(log_mean + SPREAD * jax.random.normal(of_rate))
    return jnp.clip(jax.random.poisson(of_count, rate) + 1, least, most)


@checked(horizon=at_least(1), share=in_interval("[0, 1]"))
def sample_far_start(
    key: jax.Array, horizon: int, *, share: float = 0.5
) -> Int[Array, ""]:
    """Draws ``free`` of `run_loops`: 0, or from 1 to ``horizon``.

    These are the loops without gradient before the trained ones.

    Args:
      key: of the draw.
      horizon: largest number.
      share: fraction of the steps that begin from a far state, in [0, 1].

    Source: Anil et al., "Path independent equilibrium models can better exploit
    test-time computation" (2022), vary the start. Bansal et al. (2022) vary the number
    of loops. Both together are ours.

    Example:
      >>> import jax
      >>> key = jax.random.key(0)
      >>> [int(sample_far_start(key, 1, share=share)) for share in (0.0, 1.0)]
      [0, 1]
    """
    of_start, of_number = jax.random.split(threefry_keys(key))
    far = jax.random.bernoulli(of_start, share)
    return jnp.where(far, jax.random.randint(of_number, (), 1, horizon + 1), 0)


@checked(most=at_least(1))
def sample_segment(key: jax.Array, most: int) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Draws ``(free, loops)`` of `run_loops` for the progressive loss.

    They are in 0 to ``most - 1`` and 1 to ``most - free``.

    Args:
      key: of the draw.
      most: loops of training.

    Source: Bansal et al. (2022), Algorithm 1.

    Example:
      >>> import jax
      >>> [int(number) for number in sample_segment(jax.random.key(0), 1)]
      [0, 1]
    """
    of_free, of_loops = jax.random.split(threefry_keys(key))
    free = jax.random.randint(of_free, (), 0, most)
    return free, jax.random.randint(of_loops, (), 1, most - free + 1)
