"""A pretrained encoder, and a classifier that starts from it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from train.errors import UserError
from train.pretrained.architectures import class_names, read_architecture, read_config
from train.pretrained.folders import find_folder, read_json, weights_file
from train.pretrained.tokenizer import Tokenizer, load_tokenizer
from train.pretrained.weights import Tensors, dense_weights, encoder_weights
from unroll_jax.models import Classifier, EncoderConfig

__all__ = ["Pretrained", "load_pretrained", "start_from"]


class Pretrained(NamedTuple):
    """What a folder holds.

    Attributes:
      config: The encoder's shape.
      params: Parameters of `unroll_jax.models.Encoder`, NumPy float32.
      head: Those of `unroll_jax.models.Head` that the file has: ``hidden``, ``logits``, both or none.
      hidden: Activation of the architecture's hidden layer, "tanh" or "relu".
      classes: Names of the classes, where there are ``logits``; else empty.
      tokenizer: Turns texts into tokens.
    """

    config: EncoderConfig
    params: dict[str, Any]
    head: dict[str, Any]
    hidden: str
    classes: tuple[str, ...]
    tokenizer: Tokenizer


def load_pretrained(source: str, *, revision: str | None = None, log: Callable[[str], None] = print) -> Pretrained:
    """Reads encoder, head and tokenizer of a BERT, DistilBERT, RoBERTa or MiniLM.

    Args:
      source: a folder with config.json, model.safetensors and tokenizer.json, or a repository of the Hugging Face hub.
      revision: of the repository.
      log: takes lines of progress.

    Raises:
      UserError: if a file is missing, damaged, a pickle or of an architecture that is not known, or does not fit the
        others: all tensors that do not are named at once.
    """
    folder = find_folder(source, revision=revision, log=log)
    values, where = read_json(folder / "config.json"), str(folder / "config.json")
    architecture, config = read_architecture(values, where=where), read_config(values, where=where)
    tokenizer = load_tokenizer(folder, config)
    name, hidden = architecture.hidden
    with Tensors(weights_file(folder)) as tensors:
        params = encoder_weights(tensors, config, architecture)
        # A bare BERT is written without the prefix, and with the pooler that heads are put on.
        names = (name, name.removeprefix(architecture.prefix))
        found = (dense_weights(tensors, name, (config.dim, config.dim)) for name in names)
        layers = {"hidden": next((layer for layer in found if layer), None)}
        if layers["hidden"]:
            layers["logits"] = dense_weights(tensors, architecture.logits, (None, config.dim))
    head = {name: layer for name, layer in layers.items() if layer}
    classes = class_names(values, len(head["logits"]["bias"])) if "logits" in head else ()
    log(
        f"{values['model_type']} of {config.num_layers} layers, {config.dim} wide, {config.vocabulary_size} tokens; "
        f"of a head it brings {' and '.join(head) or 'nothing'}"
    )
    return Pretrained(config, params, head, hidden, classes, tokenizer)


def start_from(pretrained: Pretrained, model: Classifier, key: jax.Array) -> Any:
    """The variables of a classifier: the encoder's are the pretrained ones, the head's where they fit, else new.

    A pretrained hidden layer is taken where the classifier has the same activation; pretrained logits are taken if they
    are of as many classes, and all before them is pretrained.

    Raises:
      UserError: if the classifier's encoder is of another shape.
    """
    if model.encoder.config != pretrained.config:
        raise UserError(f"the classifier's encoder is {model.encoder.config}, the pretrained one {pretrained.config}")
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    fresh = jax.jit(lambda key: model.init(key, jnp.zeros(tokens.shape, tokens.dtype))["params"]["head"])(key)
    head = dict(fresh)
    if model.hidden == pretrained.hidden and "hidden" in pretrained.head:
        head["hidden"] = pretrained.head["hidden"]
        if "logits" in pretrained.head and len(pretrained.classes) == model.num_classes:
            head["logits"] = pretrained.head["logits"]
    narrow = lambda leaf: jnp.asarray(leaf, model.encoder.param_dtype)  # noqa: E731
    return {"params": jax.tree.map(narrow, {"encoder": pretrained.params, "head": head})}
