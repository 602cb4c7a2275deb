"""A convolutional network that applies one block again and again, as "deep thinking"
networks do."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.looped import run_loops

__all__ = ["LoopedNetwork"]

KERNEL = 3  # side of all kernels


class LoopedNetwork(nn.Module):
    r"""A prelude, one residual block with recall for every loop, and one readout for
    all, of convolutions without bias.

    .. math:: h_0 = \sigma(P x) , \quad r = R [h_l, x] , \quad h_{l+1} = \sigma(r + B \sigma(A r)) , \quad z_l = Q h_l ,

    with :math:`\sigma` the ReLU, kernels of side 3 and zero padding: the size of the
    input may differ from training, and so may the number of loops.

    Attributes:
      width: channels of the state h.
      num_outputs: channels of the readout z, such as the classes of every position.
      ndim: spatial axes: 1 for strings, 2 for images.
      param_dtype: dtype of the parameters.

    Source: Bansal et al., "End-to-end algorithm synthesis with recurrent networks"
    (2022), Section 3, with one residual block of two convolutions a loop where theirs
    has two, and a readout of one layer where theirs has three.
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
          loops: how many, see `run_loops`.
          state: h before the first loop, (batch, n, width); None is the prelude's.
          record: ``(logits, h) -> pytree``, evaluated inside the scan on every loop's
            readout, (batch, n, num_outputs), and state; None keeps the logits.
          **options: ``free`` and ``most`` of `run_loops`.

        Returns:
          ``(state, records)``, the records of the readout before the first loop and
          after each.
        """
        kernels = self._kernels(x.shape[-1])
        if state is None:
            state = jax.nn.relu(_convolved(x, kernels["prelude"]))

        def block(kernels: Any, h: jax.Array, x: jax.Array) -> jax.Array:
            recalled = _convolved(jnp.concatenate([h, x], -1), kernels["recall"])
            inner = jax.nn.relu(_convolved(recalled, kernels["inner"]))
            return jax.nn.relu(recalled + _convolved(inner, kernels["outer"]))

        def measure(h: jax.Array) -> Any:
            logits = _convolved(h, kernels["readout"])
            return logits if record is None else record(logits, h)

        return run_loops(
            block, kernels, state, x, loops=loops, record=measure, **options
        )

    def _kernels(self, channels: int) -> dict[str, jax.Array]:
        width = self.width
        # Gains at which the size of the state is about constant over the loops of an
        # untrained network.
        shapes = {
            "prelude": (channels, width, 1.0),
            "recall": (width + channels, width, 1.0),
            "inner": (width, width, math.sqrt(2.0)),
            "outer": (width, width, 1.0),
            "readout": (width, self.num_outputs, 1.0),
        }

        def kernel(key: jax.Array, before: int, after: int, gain: float) -> jax.Array:
            scale = gain / math.sqrt(KERNEL**self.ndim * before)
            return scale * jax.random.normal(
                key, (*[KERNEL] * self.ndim, before, after), self.param_dtype
            )

        return {
            name: self.param(name, kernel, *shape) for name, shape in shapes.items()
        }


def _convolved(
    x: Float[Array, "batch ..."], kernel: Float[Array, "..."]
) -> Float[Array, "batch ..."]:
    """Cross-correlation with zero padding, as one product: XLA's convolutions in
    loops run on one core of a CPU."""
    spatial = x.shape[1:-1]
    padded = jnp.pad(x, ((0, 0), *[(KERNEL // 2, KERNEL // 2)] * len(spatial), (0, 0)))

    def shifted(offsets: tuple[int, ...]) -> jax.Array:
        places = (
            slice(begin, begin + size)
            for begin, size in zip(offsets, spatial, strict=True)
        )
        return padded[(slice(None), *places)]

    windows = jnp.concatenate(
        [shifted(at) for at in itertools.product(range(KERNEL), repeat=len(spatial))],
        axis=-1,
    )
    return windows @ kernel.reshape(-1, kernel.shape[-1])
