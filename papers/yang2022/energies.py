"""The transformer of Figs. 5 and 6: energies by component and layer, and training."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

from papers.yang2022.sentences import Sentence, bucket, pad
from unroll_jax import Descent, transformer, unroll
from unroll_jax.descent import Anchor
from unroll_jax.energies import TransformerParams, clip_spectrum
from unroll_jax.energies.transformer import transformer_parts
from unroll_jax.train.config.errors import UserError

# Parts of the energies of a text. `paper` is the term of the paper's E_1 that the
# step's energy lacks.
COMPONENTS = ("pairs", "residual", "features", "paper")
SPECTRUM = (0.0, 0.95)  # of W_f, as in the paper's experiments


class Stack(NamedTuple):
    """One layer, repeated.

    Attributes:
      dim: width of the tokens.
      num_layers: number of repetitions of the layer.
      residual: True if the attention energy is anchored at the text itself by
        r/2 |(Y - X) W_a|^2 with r = 1.
      rho: a name of `RHOS`.
      attention_step_size: see `transformer`.
      step_size: a2 of the feed-forward step. Up to 1 / 1.95 = 1 / L this step descends
        for every W_f of `SPECTRUM`. The paper's code takes 1, which is too long.
    """

    dim: int
    num_layers: int = 12
    residual: bool = False
    rho: str = "softmax"
    attention_step_size: float = 1.0
    step_size: float = 0.5

    def options(self) -> dict[str, Any]:
        """The keywords of `transformer` that all parts of the energy share."""
        return {
            "rho": self.rho,
            "anchor": "row",
            "attention_step_size": self.attention_step_size,
            "step_size": self.step_size,
        }

    def layer(self) -> Descent:
        """The layer, with the text as the anchor of its attention.

        A learnable row anchors its feed-forward energy.
        """
        return transformer(self.dim, **self.options(), ridge=float(self.residual))


class Classifier(NamedTuple):
    """Mean-pooled tokens @ weights + bias are the logits."""

    weights: Float[Array, "d classes"]
    bias: Float[Array, " classes"]


class Network(NamedTuple):
    """One tied layer, the classifier that it is trained under, and word vectors.

    Vectors have the shape (vocabulary, d).
    """

    layer: TransformerParams
    classifier: Classifier
    words: Array | np.ndarray


class LayerEnergies(NamedTuple):
    """Energies of texts after every layer. Entry 0 is the text itself.

    Attributes:
      components: name of `COMPONENTS` to (texts, layers + 1).
      infinite: (texts, layers + 1), True if the penalty of ReLU is infinite, because
        an entry of Y is negative.
      cosine: (texts, layers + 1), the mean cosine of two words.
      lengths: (texts,), numbers of words.
      logits: (texts, classes).
      labels: (texts,).
    """

    components: dict[str, np.ndarray]
    infinite: np.ndarray
    cosine: np.ndarray
    lengths: np.ndarray
    logits: np.ndarray
    labels: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """The smooth part of the layer's energy, (texts, layers + 1)."""
        parts = self.components
        return parts["pairs"] + parts["residual"] + parts["features"]


def init_network(
    stack: Stack, num_classes: int, words: Array | np.ndarray, *, seed: int
) -> Network:
    """Xavier-normal W_a, W_f, B and classifier.

    W_f becomes W_f W_f^T with its eigenvalues clipped to `SPECTRUM`.
    """
    key_layer, key_f, key_classifier = jax.random.split(jax.random.key(seed), 3)
    xavier = jax.nn.initializers.xavier_normal()
    W_f = xavier(key_f, (stack.dim, stack.dim))
    layer = stack.layer().init(key_layer)
    layer = layer._replace(W_f=clip_spectrum(W_f @ W_f.T, *SPECTRUM))
    weights = xavier(key_classifier, (stack.dim, num_classes))
    classifier = Classifier(weights, jnp.zeros(num_classes))
    return Network(layer, classifier, jnp.asarray(words))


def layer_energies(
    stack: Stack, network: Network, sentences: Sequence[Sentence]
) -> LayerEnergies:
    """Runs every text through the layers, one at a time, at its full length.

    In float64, because after a few layers an energy falls by less than float32's
    resolution.
    """
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), network)
        forward = _forward(stack)
        results = [forward(exact, *_pad([text], one=True)) for text in sentences]
        results = jax.device_get(results)
    traces, logits = jax.tree.map(lambda *leaves: np.stack(leaves), *results)
    infinite = traces.pop("infinite")
    cosine = traces.pop("cosine")
    lengths = np.array([len(text.words) for text in sentences])
    labels = np.array([text.label for text in sentences])
    return LayerEnergies(traces, infinite, cosine, lengths, logits, labels)


def train_network(
    stack: Stack,
    network: Network,
    batches: Iterable[Sequence[Sentence]],
    *,
    learning_rate: float,
    optimizer: str = "sgd",
    train_words: bool = False,
) -> tuple[Network, np.ndarray]:
    """Trains on the mean cross-entropy of one batch of texts after another.

    Word vectors are trained if ``train_words`` is set. After each step sym(W_f) is
    projected on the matrices with spectrum in `SPECTRUM`, so that the feed-forward step
    descends.

    Returns:
      The trained network and the loss at each step.

    Raises:
      UserError: if a loss is not finite.
    """
    primal = _optimizer(optimizer, learning_rate, train_words)
    step = _training_step(stack, primal)
    tree: Any = network  # a pytree to optax
    state = primal.init(tree)
    losses = []
    for texts in batches:
        labels = np.array([text.label for text in texts])
        network, state, value = step(network, state, *_pad(texts), labels)
        losses.append(value)
    values = np.array(jax.device_get(losses))
    if not np.isfinite(values).all():
        number = int(np.argmin(np.isfinite(values)))
        raise UserError(
            f"the loss was not finite at training step {number}; lower --learning-rate"
            f" {learning_rate}"
        )
    return network, values


@functools.cache
def _optimizer(
    name: str, learning_rate: float, train_words: bool
) -> optax.GradientTransformation:
    optimizer = getattr(optax, name)(learning_rate)
    rules: Any = {"trained": optimizer, "frozen": optax.set_to_zero()}
    words = "trained" if train_words else "frozen"
    return optax.partition(rules, Network._make(["trained", "trained", words]))


# Cached: two data sets share the program of a length.
@functools.cache
def _forward(stack: Stack) -> Callable[..., tuple[Any, Array]]:
    layer = stack.layer()
    options = {"num_layers": stack.num_layers, "record": _record(stack)}

    def forward(network: Network, words: Array, present: Array) -> tuple[Any, Array]:
        tokens = _vectors(network, words, present)
        x = Anchor(tokens, present)
        y, trace = unroll(layer, network.layer, tokens, x, **options)
        return trace, _logits(network.classifier, y, present)

    return jax.jit(forward)


def _training_step(
    stack: Stack, optimizer: optax.GradientTransformation
) -> Callable[..., tuple[Network, Any, Array]]:
    layer = stack.layer()
    options = {"num_layers": stack.num_layers, "record": None, "remat": True}

    def loss(network: Network, words: Array, present: Array, labels: Array) -> Array:
        tokens = _vectors(network, words, present)
        x = Anchor(tokens, present)
        y, _ = unroll(layer, network.layer, tokens, x, **options)
        logits = _logits(network.classifier, y, present)
        chances = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return jnp.mean(chances)

    def step(
        network: Any, state: Any, words: Array, present: Array, labels: Array
    ) -> tuple[Network, Any, Array]:
        value, slope = jax.value_and_grad(loss)(network, words, present, labels)
        updates, state = optimizer.update(slope, state, network)
        moved: Any = optax.apply_updates(network, updates)
        W_f = clip_spectrum(moved.layer.W_f, *SPECTRUM)
        return moved._replace(layer=moved.layer._replace(W_f=W_f)), state, value

    return jax.jit(step)


def _record(
    stack: Stack,
) -> Callable[[TransformerParams, Array, Anchor], dict[str, Array]]:
    """Records the energies of `COMPONENTS`, and if ReLU's penalty is infinite."""
    parts = transformer_parts(stack.dim, **stack.options())

    def record(params: TransformerParams, y: Array, x: Anchor) -> dict[str, Array]:
        assert x.value is not None
        present = jnp.expand_dims(jnp.asarray(x.present), -1)
        # The distance from the text is the residual term, from 0 the paper's.
        moved = y - x.value if stack.residual else y
        pull = 0.5 * jnp.sum((jnp.where(present, moved, 0.0) @ params.W_a) ** 2)
        none = jnp.zeros_like(pull)
        return {
            "pairs": parts.attention.energy(params, y, x),
            "residual": pull if stack.residual else none,
            "features": parts.feedforward.energy(params, y, x),
            "paper": none if stack.residual else pull,
            "infinite": jnp.any((y < 0.0) & present),
            "cosine": mean_cosine(y, jnp.asarray(x.present)),
        }

    return record


def mean_cosine(
    y: Float[Array, "*batch n d"], present: Bool[Array, "*batch n"]
) -> Float[Array, "*batch"]:
    """Returns the mean cosine of two different tokens; NaN for fewer than two.

    A token of 0 has the cosine 0 with all others.
    """
    norm = jnp.linalg.norm(y, axis=-1, keepdims=True)
    unit = jnp.where(present[..., None], y / jnp.where(norm == 0.0, 1.0, norm), 0.0)
    total = jnp.sum(jnp.sum(unit, axis=-2) ** 2, axis=-1)
    squares = jnp.sum(unit**2, axis=(-2, -1))
    count = jnp.sum(present, axis=-1)
    return (total - squares) / (count * (count - 1))


def _pad(
    texts: Sequence[Sentence], *, one: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Pads texts to one length. The result has no batch axis if ``one`` is set."""
    length = bucket(max(len(text.words) for text in texts))
    padded = [pad(text.words, length) for text in texts]
    words, present = map(np.stack, zip(*padded, strict=True))
    return (words[0], present[0]) if one else (words, present)


def _vectors(network: Network, words: Array, present: Array) -> Float[Array, "*b n d"]:
    vectors = jnp.asarray(network.words)[words]
    return jnp.where(present[..., None], vectors, 0.0)


def _logits(
    classifier: Classifier, y: Float[Array, "*b n d"], present: Bool[Array, "*b n"]
) -> Float[Array, "*b classes"]:
    rows = present[..., None]
    total = jnp.sum(jnp.where(rows, y, 0.0), axis=-2)
    pooled = total / jnp.sum(rows, axis=-2)
    return pooled @ classifier.weights + classifier.bias
