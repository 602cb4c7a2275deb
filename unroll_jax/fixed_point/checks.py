"""What `equilibrium` asks of its arguments."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from unroll_jax.descent import Descent
from unroll_jax.fixed_point.backward import Probe
from unroll_jax.fixed_point.failure import ON_FAILURE

__all__ = ["check_options", "check_probe", "check_start", "resolve_batch_ndim"]


def check_options(
    tol: float, max_steps: int, on_failure: str, adjoint_tol: float | None, adjoint_max_steps: int | None
) -> None:
    """Checks the numbers.

    Raises:
      ValueError: naming the argument, its value and what is allowed.
    """
    for name, value in (("tol", tol), ("adjoint_tol", adjoint_tol)):
        if value is not None and not 0.0 < value < 1.0:
            raise ValueError(f"{name} must be in (0, 1), got {value}")
    for name, value in (("max_steps", max_steps), ("adjoint_max_steps", adjoint_max_steps)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if on_failure not in ON_FAILURE:
        raise ValueError(f"on_failure must be one of {list(ON_FAILURE)}, got {on_failure!r}")


def check_start(y: Any) -> None:
    """Checks that the initial state holds floating arrays, finite where their values are known.

    Raises:
      TypeError: if a leaf is not floating.
      ValueError: if a known value is not finite.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(y):
        name = f"y0{jax.tree_util.keystr(path)}"
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(f"{name} must have a floating dtype, got {leaf.dtype}; cast it first")
        known = not isinstance(leaf, Tracer) and leaf.is_fully_addressable
        if known and not bool(jnp.isfinite(leaf).all()):
            raise ValueError(f"{name} must be finite, but holds NaN or infinity")


def check_probe(probe: Any, batch: tuple[int, ...]) -> None:
    """Checks that a probe, if there is one, has an entry for every example.

    Raises:
      TypeError: if it is no `Probe`.
      ValueError: if its shape is another.
    """
    if probe is None:
        return
    if not isinstance(probe, Probe):
        raise TypeError(f"probe must be zeros of zero_probe(*batch), got {probe!r}")
    if any(jnp.shape(leaf) != batch for leaf in probe):
        raise ValueError(f"probe must have shape {batch}, one entry an example, got {jnp.shape(probe.residual)}")


def resolve_batch_ndim(
    descent: Descent | Callable[..., Any], params: Any, y: Any, x: Any, batch_ndim: int | None
) -> int:
    """How many leading axes of the state are batch axes: as told, or the rank of the energy of a `Descent`, or 0.

    Raises:
      ValueError: if a leaf has fewer axes, or the leaves differ in them.
    """
    lowest = min(int(leaf.ndim) for leaf in jax.tree.leaves(y))
    if batch_ndim is None:
        batch_ndim = len(jax.eval_shape(descent.energy, params, y, x).shape) if isinstance(descent, Descent) else 0
    if not 0 <= batch_ndim <= lowest:
        raise ValueError(f"batch_ndim must be between 0 and {lowest}, the least rank of the state, got {batch_ndim}")
    if len({leaf.shape[:batch_ndim] for leaf in jax.tree.leaves(y)}) > 1:
        raise ValueError(f"the leaves of y0 must share their first batch_ndim={batch_ndim} axes")
    return batch_ndim
