"""The vision transformer (ViT), whose every layer is read as a reconstruction.

Its tokens are the patches of a frame.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from unroll_jax.models.dropout import dropout, layer_keys
from unroll_jax.models.encoder_layer import EncoderLayer, stacked_layers
from unroll_jax.models.layered import LayeredModel, Record
from unroll_jax.models.vit_parts import (
    PatchEmbeddings,
    PatchReadout,
    ViTConfig,
    check_patches,
)
from unroll_jax.numerics import compute_dtype
from unroll_jax.perturbations import Perturbation

__all__ = ["ViT"]


class ViT(LayeredModel):
    """ViT by its `ViTConfig`: patches in, their reconstructions by every layer out.

    The parameters are ``embeddings`` of `PatchEmbeddings`, ``layers`` of `EncoderLayer`
    with its norms first and a leading axis of length L, and ``readout`` of
    `PatchReadout`, which all layers share.

    Attributes:
      config: the transformer's shape, and how layers are read.
      dropout: as in `Encoder`.
      dtype, param_dtype, remat, unroll: as in `UnrolledTransformer`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> sizes = {"dim": 18, "num_layers": 2, "num_heads": 2, "hidden_dim": 16}
      >>> model = ViT(ViTConfig(num_patches=4, pixels=9, **sizes))
      >>> frames = jnp.ones((5, 4, 9))
      >>> params = jax.jit(model.init)(jax.random.key(0), frames)
      >>> jax.jit(model.apply)(params, frames).shape
      (3, 5, 4, 9)
    """

    config: ViTConfig
    dtype: Any = None
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None = None,
        *,
        record: Record | None = None,
        perturb: Perturbation | None = None,
        dropout_key: jax.Array | None = None,
    ) -> Any:
        """Runs all layers, as `UnrolledTransformer` does.

        Outputs are reconstructions of the patches.

        Args:
          x: the patches of frames, row by row, with pixels in [0, 1]: (*batch,
            num_patches, pixels).
          mask: which of them are real, bool (*batch, num_patches). None takes all for
            real.
          record: of reconstructions.
          perturb: replaces each layer's output (states, not reconstructions), see
            `unroll_jax.unroll`.
          dropout_key: as in `Encoder`.

        Returns:
          The reconstructions of layers 0..L, (L + 1, *batch, num_patches, pixels), or
          what ``record`` returned, stacked likewise. Layer 0 is read from the
          embeddings.
        """
        config = self.config
        check_patches(x, mask, config)
        compute = x.dtype if self.dtype is None else self.dtype
        dtypes = compute, self.param_dtype
        wide = x.astype(compute_dtype(x))
        start = PatchEmbeddings(config, *dtypes, name="embeddings")(wide)

        layer = EncoderLayer(config, *dtypes, norm_first=True, parent=None)
        init = stacked_layers(layer, config.num_layers)
        layers = self.param("layers", init, start[..., :1, :], None)

        readout = PatchReadout(config, *dtypes, parent=None)
        reading: Any = self.param(
            "readout", lambda key: readout.init(key, start, wide).get("params", {})
        )
        if mask is not None and config.class_token:
            mask = jnp.concatenate([jnp.ones_like(mask[..., :1]), mask], axis=-1)

        keys = layer_keys(
            dropout_key, self.dropout, config.num_layers, start.shape[:-2]
        )

        def step(each: Any, h: jax.Array, mask: jax.Array | None) -> jax.Array:
            params, key = each
            drop = dropout(key, self.dropout, h.shape)
            return jnp.asarray(layer.apply({"params": params}, h, mask, drop))

        def measure(h: jax.Array) -> Any:
            y = jnp.asarray(readout.apply({"params": reading}, h, wide))
            return y if record is None else record(y)

        return self.run_layers(
            step,
            (layers, keys),
            start,
            mask,
            num_layers=config.num_layers,
            record=measure,
            perturb=perturb,
        )
