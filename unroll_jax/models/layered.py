"""The common part of models whose every layer can be read out."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from unroll_jax.perturbations import Perturbation
from unroll_jax.unrolling import unroll

__all__ = ["LayeredModel", "Record", "record_in"]

#: Makes a pytree of a layer's output.
Record = Callable[[jax.Array], Any]


class LayeredModel(nn.Module, kw_only=True):
    """Layers that run in one scan over their parameters.

    Attributes:
      param_dtype, remat, unroll: as in `UnrolledTransformer`.
    """

    param_dtype: Any = jnp.float32
    remat: bool | Callable[..., Any] = False
    unroll: int | None = None

    def run_layers(
        self,
        step: Callable[..., Any],
        params: Any,
        start: Any,
        x: Any,
        *,
        num_layers: int,
        record: Callable[[Any], Any],
        perturb: Perturbation | None = None,
        tied: bool = False,
    ) -> Any:
        """Returns ``record(y)`` of layers 0..L, stacked, for y' = step(params, y, x).

        Layer 0 is ``start``. See `unroll_jax.unroll`.
        """
        trace = unroll(
            step,
            params,
            start,
            x,
            num_layers=num_layers,
            tied=tied,
            record=lambda _, y, __: record(y),
            perturb=perturb,
            remat=self.remat,
            unroll=self.unroll,
        )[1]
        return trace


def record_in(dtype: Any, record: Record | None) -> Record:
    """Returns ``record`` of outputs in a dtype, or for None the outputs."""

    def read(y: jax.Array) -> Any:
        wide = y.astype(dtype)
        return wide if record is None else record(wide)

    return read
