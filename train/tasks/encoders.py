"""The classifiers of text experiments: what they start from, what of them is trained, and how they run by layers."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from unroll_jax import models
from unroll_jax.energies import UnrolledLayerParams, unrolled_layer
from unroll_jax.models import Classifier, Encoder, UnrolledClassifier, UnrolledTransformer, dct, scaled_identity

from ..config.errors import UserError
from ..config.text import EncoderOptions, TextRunConfig, UnrolledConfig
from ..data.pretrained.encoders import Pretrained, keeps_logits, start_from
from ..sharding.parts import POLICIES
from ..sharding.rules import path_name
from .material import TextMaterial

# What a drawn encoder's tables are multiplied by: they start with a standard deviation of 0.02, and noise is stated
# for one of 1.
UNIT_VARIANCE = 50.0


class Layerwise(NamedTuple):
    """A classifier taken apart: what stops early applies its layers one by one.

    Attributes:
      embed: ``(params, batch, perturbation) -> y``, the output of layer 0, in the dtype it is read in; perturbation
        may be None.
      layers: ``params -> [parameters of layer 1, of layer 2, ...]``.
      layer: ``(layer parameters, y, mask) -> y``.
      read: ``(params, y, mask) -> logits``.
    """

    embed: Callable[[Any, Any, jax.Array | None], jax.Array]
    layers: Callable[[Any], list[Any]]
    layer: Callable[[Any, jax.Array, jax.Array], jax.Array]
    read: Callable[[Any, jax.Array, jax.Array], jax.Array]


class TextModel(NamedTuple):
    """A classifier, whatever it is made of.

    Attributes:
      module: called as `unroll_jax.models.Classifier` is.
      num_layers: depth L.
      dim: width of the tokens.
      init: ``key -> params``, from what is given and the seed.
      trained: ``params -> bool`` for each of them, as word embeddings that are given may stay as they are; None where
        all are trained.
      layerwise: the same by layers.
      remarks: lines to log where training starts from ``init``.
    """

    module: Classifier | UnrolledClassifier
    num_layers: int
    dim: int
    init: Callable[[jax.Array], Any]
    trained: Callable[[Any], Any] | None
    layerwise: Layerwise
    remarks: tuple[str, ...] = ()


def build_model(config: TextRunConfig, material: TextMaterial) -> TextModel:
    """The classifier of a configuration."""
    loop = {"remat": POLICIES[config.remat] or False, "unroll": config.unroll}
    if isinstance(config.model, EncoderOptions):
        return _encoder(config.model, config.max_length, loop, material)
    return _unrolled(config.model, config.max_length, loop, material)


def _encoder(settings: EncoderOptions, max_length: int, loop: dict[str, Any], material: TextMaterial) -> TextModel:
    pretrained = material.pretrained
    shape = _shape(settings, max_length, material) if pretrained is None else pretrained.config
    encoder = Encoder(shape, dtype=jnp.dtype(settings.dtype), **loop)
    hidden = pretrained.hidden if pretrained is not None and settings.hidden else None
    module = Classifier(encoder, len(material.class_names), settings.pooling, hidden)

    def init(key: jax.Array) -> Any:
        if pretrained is not None and pretrained.params:
            return start_from(pretrained, module, key, class_names=material.class_names)
        params = module.init(key, jnp.zeros((1, 1), jnp.int32))
        if pretrained is not None:
            return params  # of which the shapes count
        wider = lambda path, leaf: leaf * UNIT_VARIANCE if path_name(path).endswith("embedding") else leaf  # noqa: E731
        return jax.tree.map_with_path(wider, params)

    trained = _all_but_words if settings.frozen and pretrained is not None else None
    remarks = () if pretrained is None else _remarks(pretrained, module, material.class_names)
    return TextModel(module, shape.num_layers, shape.dim, init, trained, _encoder_layerwise(module), remarks)


def _remarks(pretrained: Pretrained, module: Classifier, class_names: Sequence[str]) -> tuple[str, ...]:
    """That pretrained logits are not taken, and with which options they would be."""
    if "logits" not in pretrained.head or keeps_logits(pretrained, module, class_names):
        return ()
    needed = {
        "--model.hidden": module.hidden != pretrained.hidden,
        "--model.pooling first": module.pooling != "first",
    }
    options = " ".join(option for option, differs in needed.items() if differs)
    theirs = module.clone(hidden=pretrained.hidden, pooling="first")
    way_out = f"; {options} keeps them" if keeps_logits(pretrained, theirs, class_names) else ""
    readout = f"{', '.join(pretrained.classes)} behind a {pretrained.hidden} layer on the first token"
    return (f"the pretrained logits are of {readout}, which is not what is trained: new ones are drawn{way_out}",)


def _shape(settings: EncoderOptions, max_length: int, material: TextMaterial) -> models.EncoderConfig:
    return models.EncoderConfig(
        vocabulary_size=material.vocabulary_size,
        dim=settings.dim,
        num_layers=settings.num_layers,
        num_heads=settings.num_heads,
        hidden_dim=settings.hidden_dim,
        max_positions=max_length,
        padding_token=material.tokens.tokenizer.padding_token,
    )


def _encoder_layerwise(module: Classifier) -> Layerwise:
    encoder = module.encoder
    dtype = encoder.param_dtype if encoder.dtype is None else encoder.dtype
    embeddings = models.EncoderEmbeddings(encoder.config, encoder.param_dtype)
    layer = models.EncoderLayer(encoder.config, dtype, encoder.param_dtype)
    head = models.Head(module.num_classes, module.pooling, module.hidden, encoder.param_dtype)

    def embed(params: Any, batch: Any, perturbation: jax.Array | None) -> Any:
        variables = {"params": params["params"]["encoder"]["embeddings"]}
        return jnp.asarray(embeddings.apply(variables, batch.tokens, batch.mask, batch.token_types, perturbation))

    return Layerwise(
        embed=embed,
        layers=lambda params: _unstacked(params["params"]["encoder"]["layers"]),
        layer=lambda layer_params, y, mask: jnp.asarray(layer.apply({"params": layer_params}, y.astype(dtype), mask)),
        read=lambda params, y, mask: jnp.asarray(head.apply({"params": params["params"]["head"]}, y, mask)),
    )


def _unrolled(settings: UnrolledConfig, max_length: int, loop: dict[str, Any], material: TextMaterial) -> TextModel:
    table = material.table
    dim = settings.dim if table is None else table.shape[1]
    if settings.rank is not None and settings.rank > dim:
        raise UserError(f"--model.rank must be at most the width of the embeddings, {dim}, got {settings.rank}")
    transformer = UnrolledTransformer(
        dim=dim,
        num_layers=settings.num_layers,
        rank=settings.rank,
        dtype=jnp.dtype(settings.dtype),
        **loop,
        V_init=dct(settings.attention_scale),
        W_init=scaled_identity(settings.mixing),
        U_init=scaled_identity(1.0 - settings.mixing),
    )
    module = UnrolledClassifier(
        transformer,
        material.vocabulary_size,
        len(material.class_names),
        settings.pooling,
        max_positions=max_length if settings.positions else None,
    )

    def init(key: jax.Array) -> Any:
        params = module.init(key, jnp.zeros((1, 1), jnp.int32))
        if table is None:
            return params
        given = lambda path, leaf: jnp.asarray(table) if _is_word_table(path) else leaf  # noqa: E731
        return jax.tree.map_with_path(given, params)

    trained = _all_but_words if settings.frozen and table is not None else None
    return TextModel(module, settings.num_layers, dim, init, trained, _unrolled_layerwise(module))


def _unrolled_layerwise(module: UnrolledClassifier) -> Layerwise:
    transformer = module.transformer
    dtype = transformer.dtype
    embeddings = models.TokenEmbeddings(
        module.vocabulary_size, transformer.dim, module.max_positions, module.frozen, transformer.param_dtype
    )
    head = models.Head(module.num_classes, module.pooling, param_dtype=transformer.param_dtype)

    def embed(params: Any, batch: Any, perturbation: jax.Array | None) -> Any:
        variables = {"params": params["params"]["embeddings"]}
        return jnp.asarray(embeddings.apply(variables, batch.tokens, batch.mask, perturbation), dtype)

    def layer(layer_params: UnrolledLayerParams, y: jax.Array, mask: jax.Array) -> jax.Array:
        return unrolled_layer(jax.tree.map(lambda leaf: leaf.astype(dtype), layer_params), y, mask)

    return Layerwise(
        embed=embed,
        layers=lambda params: _unstacked(params["params"]["transformer"]["layers"]),
        layer=layer,
        read=lambda params, y, mask: jnp.asarray(head.apply({"params": params["params"]["head"]}, y, mask)),
    )


def _unstacked(layers: Any) -> list[Any]:
    count = len(jax.tree.leaves(layers)[0])
    return [jax.tree.map(lambda leaf, place=place: leaf[place], layers) for place in range(count)]


def _all_but_words(params: Any) -> Any:
    return jax.tree.map_with_path(lambda path, _: not _is_word_table(path), params)


def _is_word_table(path: Any) -> bool:
    return path_name(path).endswith("embeddings/word/embedding")
