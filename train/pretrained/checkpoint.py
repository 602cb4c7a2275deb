"""A pretrained encoder, and a classifier that starts from it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from train.errors import UserError
from train.pretrained.architectures import class_names, read_architecture, read_config, unnamed_classes
from train.pretrained.folders import find_folder, read_json, weights_file
from train.pretrained.tokenizer import EncoderTokenizer, load_tokenizer
from train.pretrained.weights import Tensors, read_weights
from unroll_jax.models import Classifier, EncoderConfig

__all__ = ["Pretrained", "keeps_logits", "load_pretrained", "start_from"]


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
    tokenizer: EncoderTokenizer


def load_pretrained(
    source: str, *, revision: str | None = None, option: str = "pretrained", log: Callable[[str], None] = print
) -> Pretrained:
    """Reads encoder, head and tokenizer of a BERT, DistilBERT, RoBERTa or MiniLM.

    Args:
      source: a folder with config.json, model.safetensors and tokenizer.json, or a repository of the Hugging Face hub.
      revision: of the repository.
      option: what errors call the source.
      log: takes lines of progress.

    Raises:
      UserError: if a file is missing, damaged, a pickle or of an architecture that is not known, or does not fit the
        others: all tensors that do not are named at once.
    """
    folder = find_folder(source, revision=revision, option=option, log=log)
    values, where = read_json(folder / "config.json"), str(folder / "config.json")
    architecture, config = read_architecture(values, where=where), read_config(values, where=where)
    tokenizer = load_tokenizer(folder, config, log=log)
    with Tensors(weights_file(folder)) as tensors:
        params, head = read_weights(tensors, config, architecture)
    if "hidden" not in head:
        head = {}  # logits without the layer before them are those of another task, as of single tokens
    classes = class_names(values, len(head["logits"]["bias"]), where=where) if "logits" in head else ()
    log(
        f"{values['model_type']} of {config.num_layers} layers, {config.dim} wide, {config.vocabulary_size} tokens; "
        f"of a head it brings {' and '.join(head) or 'nothing'}"
    )
    return Pretrained(config, params, head, architecture.hidden[1], classes, tokenizer)


def start_from(pretrained: Pretrained, model: Classifier, key: jax.Array, *, class_names: Sequence[str]) -> Any:
    """The variables of a classifier: the encoder's are the pretrained ones, the head's where they fit, else new.

    A pretrained hidden layer is taken where the classifier has the same activation, pretrained logits where
    `keeps_logits` says so, each to the class of its name.

    Args:
      pretrained: what to start from.
      model: the classifier.
      key: draws what is new.
      class_names: of the classifier's classes, in the order of their numbers.

    Raises:
      UserError: if the classifier's encoder is of another shape.
      ValueError: if class_names are not as many as the classifier's classes.
    """
    if model.encoder.config != pretrained.config:
        raise UserError(f"the classifier's encoder is {model.encoder.config}, the pretrained one {pretrained.config}")
    if len(class_names) != model.num_classes:
        raise ValueError(f"class_names must be as many as classes, {model.num_classes}, got {len(class_names)}")
    tokens = jnp.zeros((1, 1), jnp.int32)
    head = dict(jax.jit(lambda key: model.init(key, tokens)["params"]["head"])(key))
    if model.hidden == pretrained.hidden and "hidden" in pretrained.head:
        head["hidden"] = pretrained.head["hidden"]
    if keeps_logits(pretrained, model, class_names):
        order = _order_of_classes(pretrained, class_names)
        head["logits"] = {name: leaf[..., order] for name, leaf in pretrained.head["logits"].items()}
    narrow = lambda leaf: jnp.asarray(leaf, model.encoder.param_dtype)  # noqa: E731
    return {"params": jax.tree.map(narrow, {"encoder": pretrained.params, "head": head})}


def keeps_logits(pretrained: Pretrained, model: Classifier, class_names: Sequence[str]) -> bool:
    """Whether there are pretrained logits that a classifier can take.

    They are of the first token behind the pretrained hidden layer, and the classes must have the same names but for
    capitals, in any order; classes that the checkpoint calls LABEL_0, LABEL_1 and so on are known by number.
    """
    if "logits" not in pretrained.head or model.hidden != pretrained.hidden or model.pooling != "first":
        return False
    return _order_of_classes(pretrained, class_names) is not None


def _order_of_classes(pretrained: Pretrained, class_names: Sequence[str]) -> list[int] | None:
    """Which pretrained class each of the classes is; None where they are others."""
    theirs, ours = ([name.casefold() for name in names] for names in (pretrained.classes, class_names))
    count = len(ours)
    if len(theirs) != count:
        return None
    if theirs == [name.casefold() for name in unnamed_classes(count)]:
        return list(range(count))
    if set(theirs) != set(ours) or len(set(ours)) < count:
        return None
    return [theirs.index(name) for name in ours]
