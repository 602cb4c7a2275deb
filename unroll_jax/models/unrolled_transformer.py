"""The unrolled transformer (UT): attention, symmetric mixing and ReLU.

Each layer has its weights.
"""

from typing import Any

import flax.linen as nn
import jax
from jax.nn.initializers import Initializer

from unroll_jax.arguments import at_least, check, require
from unroll_jax.arrays import check_dtype
from unroll_jax.coordinates import Sides
from unroll_jax.energies.cosine import cosine_dictionary
from unroll_jax.energies.unrolled_layer import UnrolledLayerParams, unrolled_layer
from unroll_jax.models.initializers import dct, scaled_identity
from unroll_jax.models.layered import LayeredModel, Record, record_in
from unroll_jax.models.parts import check_mask
from unroll_jax.numerics import compute_dtype
from unroll_jax.perturbations import Perturbation

__all__ = ["UnrolledTransformer", "cosine_bases"]


class UnrolledTransformer(LayeredModel):
    """UT with per-layer V, W and U, whose every layer can be read out.

    Layer l maps Y to relu(softmax(Y V^T V Y^T) Y (W + W^T)/2 + Y U), see
    `unroll_jax.energies.unrolled_layer`. The parameters are ``layers.V`` (L, rank,
    dim), ``layers.W`` and ``layers.U`` (L, dim, dim).

    Attributes:
      dim, num_layers: width d of the tokens, and depth L.
      rank: rows of V. None means ``dim``.
      dtype: dtype the layers compute in. None computes in the input's. Parameters stay
        in ``param_dtype``.
      param_dtype: dtype of the parameters.
      remat: recompute layers in the backward pass, or a policy of
        `jax.checkpoint_policies` for the values stored.
      unroll: layers in one iteration of the scan, see `unroll_jax.unroll`.
      self_loops: whether tokens attend to themselves, see
        `unroll_jax.energies.unrolled_layer`.
      V_init: initialiser of V, the cosine transform by default (Porras-Valenzuela et
        al., Appendix B.2).
      W_init: initialiser of W.
      U_init: initialiser of U. With the default W the first pass averages similar
        tokens a little.

    Source: Porras-Valenzuela, Hadou, Ribeiro, eqs. 47 and 48.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> model, x = UnrolledTransformer(dim=4, num_layers=2), jnp.ones((5, 3, 4))
      >>> variables = jax.eval_shape(model.init, jax.random.key(0), x)  # only shapes
      >>> jax.eval_shape(model.apply, variables, x).shape  # layers 0 to 2
      (3, 5, 3, 4)
    """

    dim: int
    num_layers: int
    rank: int | None = None
    dtype: Any = None
    self_loops: bool = True
    V_init: Initializer = dct()
    W_init: Initializer = scaled_identity(0.1)
    U_init: Initializer = scaled_identity(0.9)

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None = None,
        *,
        record: Record | None = None,
        perturb: Perturbation | None = None,
    ) -> Any:
        """Runs all layers.

        Args:
          x: tokens (*batch, n, dim), the output of layer 0.
          mask: True for real tokens, (*batch, n). None marks all as real. Masked tokens
            do not change other outputs. Outputs at masked positions are
            undefined.
          record: ``y -> pytree``, inside the scan, of every layer's output in float32
            or wider. None keeps outputs.
          perturb: replaces each layer's output, see `unroll_jax.unroll`.

        Returns:
          The outputs of layers 0..L, (L + 1, *batch, n, dim), or what ``record``
          returned, stacked likewise.
        """
        check_dtype("x", x)
        fits = x.ndim >= 2 and x.shape[-1] == self.dim
        require(fits, "x", f"be (*batch, n, dim={self.dim})", f"shape {x.shape}")
        check_mask(mask, x)
        params = self._layers()
        compute = x.dtype if self.dtype is None else self.dtype

        def step(
            layer: UnrolledLayerParams, y: jax.Array, mask: jax.Array | None
        ) -> jax.Array:
            cast = jax.tree.map(lambda leaf: leaf.astype(compute), layer)
            return unrolled_layer(cast, y, mask, self_loops=self.self_loops)

        return self.run_layers(
            step,
            params,
            x.astype(compute),
            mask,
            num_layers=self.num_layers,
            record=record_in(compute_dtype(x), record),
            perturb=perturb,
        )

    def _layers(self) -> UnrolledLayerParams:
        check("num_layers", self.num_layers, at_least(1))
        rank = self.dim if self.rank is None else self.rank
        check("rank", rank, at_least(1))

        def init(key: jax.Array) -> UnrolledLayerParams:
            low_rank = (self.num_layers, rank, self.dim)
            square = (self.num_layers, self.dim, self.dim)
            keys = jax.random.split(key, 3)
            return UnrolledLayerParams(
                V=self.V_init(keys[0], low_rank, self.param_dtype),
                W=self.W_init(keys[1], square, self.param_dtype),
                U=self.U_init(keys[2], square, self.param_dtype),
            )

        return self.param("layers", init)


def cosine_bases(dim: int) -> dict[str, Any]:
    """Bases for `unroll_jax.in_coordinates`, like the parameters.

    Pixels become coefficients of the cosine transform.

    V has pixels as columns, W and U on both sides. Where ``dim`` is a square, it is the
    transform of a square patch.

    Args:
      dim: width of the tokens, in pixels.

    Example:
      >>> import jax, jax.numpy as jnp, optax, unroll_jax
      >>> model, bases = UnrolledTransformer(16, 2), cosine_bases(16)
      >>> optimizer = unroll_jax.in_coordinates(optax.adam(2e-3), bases)
      >>> state = optimizer.init(model.init(jax.random.key(0), jnp.zeros((1, 3, 16))))
    """
    cosine = cosine_dictionary(dim, dim)
    both: Any = Sides(cosine, cosine)
    columns: Any = Sides(right=cosine)
    return {"params": {"layers": UnrolledLayerParams(V=columns, W=both, U=both)}}
