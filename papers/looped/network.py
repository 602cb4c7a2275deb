"""A convolutional network that repeats one block, like "deep thinking" networks."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.looped import run_loops

__all__ = ["LoopedNetwork"]

KERNEL = 3  # side of all kernels


class LoopedNetwork(nn.Module):
    r"""A prelude, one residual block with recall for every loop, and one readout.

    .. math::

       h_0 = \sigma(P x) , \quad r = R [h_l, x] , \quad
       h_{l+1} = \sigma(r + B \sigma(A r)) , \quad z_l = Q h_l ,

    with :math:`\sigma` the ReLU, and convolutions without bias, of kernels of side 3
    and zero padding. The size of the input and the number of loops may differ from
    training.

    Attributes:
      width: channels of the state h.
      num_outputs: channels of the readout z, such as the classes of every position.
      ndim: spatial axes: 1 for strings, 2 for images.
      param_dtype: dtype of the parameters.

    Source: Bansal et al., "End-to-end algorithm synthesis with recurrent networks"
    (2022), Section 3. Theirs has two residual blocks per loop, and a readout of three
    layers.
    """

    width: int
    num_outputs: int
    ndim: int = 1
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        *,
        loops: Any,
        state: jax.Array | None = None,
        record: Callable[[jax.Array, jax.Array], Any] | None = None,
        **options: Any,
    ) -> tuple[jax.Array, Any]:
        """Runs loops.

        Args:
          x: input, (batch, n, channels), or (batch, height, width, channels) if
            ``ndim`` is 2.
          loops: number of loops, see `run_loops`.
          state: h before the first loop, (batch, n, width); None takes the prelude's.
          record: ``(logits, h) -> pytree``, evaluated inside the scan on the readout
            of every loop, (batch, n, num_outputs), and its state; None keeps the
            logits.
          **options: ``free`` and ``most`` of `run_loops`.

        Returns:
          ``(state, records)``, the records of the readout before the first loop and
          after each.
        """
        kernels = self._kernels(x.shape[-1])
        if state is None:
            state = jax.nn.relu(_convolve(x, kernels["prelude"]))

        def block(kernels: Any, h: jax.Array, x: jax.Array) -> jax.Array:
            recalled = _convolve(jnp.concatenate([h, x], -1), kernels["recall"])
            inner = jax.nn.relu(_convolve(recalled, kernels["inner"]))
            return jax.nn.relu(recalled + _convolve(inner, kernels["outer"]))

        def measure(h: jax.Array) -> Any:
            logits = _convolve(h, kernels["readout"])
            return logits if record is None else record(logits, h)

        return run_loops(
            block, kernels, state, x, loops=loops, record=measure, **options
        )

    def _kernels(self, channels: int) -> dict[str, jax.Array]:
        width = self.width
        # Channels before and after, and a gain at which the size of the state is about
        # constant over the loops of an untrained network.
        shapes = {
            "prelude": (channels, width, 1.0),
            "recall": (width + channels, width, 1.0),
            "inner": (width, width, math.sqrt(2.0)),
            "outer": (width, width, 1.0),
            "readout": (width, self.num_outputs, 1.0),
        }

        def kernel(key: jax.Array, before: int, after: int, gain: float) -> jax.Array:
            scale = gain / math.sqrt(KERNEL**self.ndim * before)
            shape = (*[KERNEL] * self.ndim, before, after)
            return scale * jax.random.normal(key, shape, self.param_dtype)

        return {
            name: self.param(name, kernel, *shape) for name, shape in shapes.items()
        }


def _convolve(
    x: Float[Array, "batch ..."], kernel: Float[Array, "..."]
) -> Float[Array, "batch ..."]:
    """Cross-correlation with zero padding, as one product.

    XLA's convolutions in loops run on one core of a CPU.
    """
    spatial = x.shape[1:-1]
    side = (KERNEL // 2, KERNEL // 2)
    padded = jnp.pad(x, ((0, 0), *[side] * len(spatial), (0, 0)))
    windows = []
    for offsets in itertools.product(range(KERNEL), repeat=len(spatial)):
        places = map(slice, offsets, np.add(offsets, spatial).tolist())
        windows.append(padded[(slice(None), *places)])
    return jnp.concatenate(windows, axis=-1) @ kernel.reshape(-1, kernel.shape[-1])
