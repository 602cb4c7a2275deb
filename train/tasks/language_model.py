"""The decoder of a language experiment: its trained parts, and the layers that are read out."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.models import Decoder, decoder_readout, low_rank_changes, merged_changes, rms_norm

from ..config.errors import OptionError, option_text
from ..config.language import DescentOptions, LanguageConfig
from ..data.answers import PackedBatch
from ..sharding.mesh import keep_rows
from ..sharding.parts import POLICIES
from ..task import Params
from .language_data import DecoderSource, stored_dtype

# Factor of a drawn table: it starts with a standard deviation of 0.02, and the unit of noise is 1.
UNIT_VARIANCE = 50.0


class LanguageModel:
    """A decoder whose layers are read out where answers are predicted.

    Attributes:
      source: The decoder that training starts from.
      layers: Numbers of the layers that are read out, from 0, the embedded input.
      dim: Width of the tokens.
    """

    def __init__(self, config: LanguageConfig, source: DecoderSource) -> None:
        options, shape = config.model, source.config
        self.source, self.dim, self._options = source, shape.dim, options
        self.layers = layers_read(config.descent, shape.num_layers)
        self.module = Decoder(
            shape, dtype=jnp.dtype(options.dtype), remat=POLICIES[config.remat] or False, unroll=config.unroll
        )

    def init(self, key: jax.Array) -> Params:
        """Draws parameters; with a rank, also low-rank changes, which start at 0."""
        of_decoder, of_changes = jax.random.split(key)
        drawn: Any = self.module.init(of_decoder, jnp.zeros((1, 1), jnp.int32))
        decoder = {**drawn["params"], "embedding": UNIT_VARIANCE * drawn["params"]["embedding"]}
        decoder = jax.tree.map(lambda leaf: leaf.astype(stored_dtype(self._options)), decoder)
        rank = self._options.lora_rank
        if rank is None:
            return {"decoder": decoder}
        return {"decoder": decoder, "changes": low_rank_changes(of_changes, self.source.config, rank=rank)}

    def trained(self, params: Params) -> Any:
        """Returns for each parameter whether it is trained; None where all are."""
        if "changes" not in params:
            return None
        return {
            name: jax.tree.map(lambda _, is_change=name == "changes": is_change, part) for name, part in params.items()
        }

    def states(self, params: Params, batch: PackedBatch, noise: Array | None) -> Float[Array, "layers batch kept dim"]:
        """Normalised states of the layers that are read, at the places of a batch, ready for the head."""
        tokens, segments, places = (keep_rows(jnp.asarray(part)) for part in batch[:3])
        decoder, changes = self._parts(params)
        scale, _ = decoder_readout(decoder)

        def record(y: Array) -> Array:
            return jnp.take_along_axis(keep_rows(y), places[..., None], axis=1)

        recorded = self.module.apply(
            {"params": decoder}, tokens, segments=segments, perturbation=noise, record=record, changes=changes
        )
        read: Any = recorded[jnp.array(self.layers)]  # pyright: ignore (Flax tells no type)
        return rms_norm(read, scale, self.source.config.norm_epsilon)

    def head(self, params: Params) -> Float[Array, "vocabulary dim"]:
        """Returns the matrix that states are read out by."""
        return decoder_readout(self._parts(params)[0])[1]

    def decoder(self, params: Params) -> Any:
        """The decoder alone, its kernels with their changes added, as `unroll_jax.models.generate` takes it."""
        decoder, changes = self._parts(params)
        return decoder if changes is None else {**decoder, "layers": merged_changes(decoder["layers"], changes)}

    def _parts(self, params: Params) -> tuple[Any, Any]:
        """The decoder, and the changes as layers take them; frozen parameters have no gradient."""
        if "changes" not in params:
            return params["decoder"], None
        rank = self._options.lora_rank
        assert rank is not None
        scale = self._options.lora_alpha / rank
        changes = {part: {**change, "expand": scale * change["expand"]} for part, change in params["changes"].items()}
        return jax.lax.stop_gradient(params["decoder"]), changes


def layers_read(options: DescentOptions, num_layers: int) -> tuple[int, ...]:
    """Numbers of the layers that are read out, rising, 0 among them."""
    if options.every > num_layers:
        raise OptionError("descent.every", f"at most the {num_layers} layers there are", options.every)
    layers = range(num_layers, 0, -options.every)
    if options.last is not None and options.last > len(layers):
        every = option_text("descent.every", options.every)
        allowed = f"at most {len(layers)}, the layers of {num_layers} that {every} reads"
        raise OptionError("descent.last", allowed, options.last)
    return (0, *reversed(layers[: options.last]))
