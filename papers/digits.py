"""Constraints on the layers of a small transformer of digits, against other training.

The others are plain training, and fixed weights on the losses of layers.
"""

import argparse
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

import unroll_jax as uj
from unroll_jax.constrained import (
    Constraint,
    batch_violations,
    level_constraints,
    suggest_alpha,
)

__all__ = ["Setting", "main"]

CHANCE = math.log(10.0)  # loss of equal probabilities for ten classes
ALPHA = 0.3
FLOOR = 0.08  # loss: bounds fall no further


@dataclasses.dataclass(frozen=True)
class Setting:
    """Sizes of the network and of its training."""

    layers: int = 5
    width: int = 32
    heads: int = 4
    batch: int = 32
    steps: int = 600
    seeds: int = 5
    rate: float = 3e-3


FULL, QUICK = Setting(), Setting(width=16, steps=60, seeds=2)
Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to train.

    Attributes:
      constraints: on the mean losses of layers; None trains without.
      dual: the optimiser of the multipliers.
      weights: of the losses f_0..f_L, or only the last if empty.
    """

    constraints: Mapping[str, Constraint] | None = None
    dual: optax.GradientTransformation | None = None
    weights: tuple[float, ...] = ()


def digits() -> tuple[Any, ...]:
    """Images (n, 8, 8) in [0, 1] and labels of scikit-learn's digits.

    Returns:
      1,437 images of training, their labels, 360 images of the test, and their labels.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images = np.float32(images[order] / 16.0).reshape(-1, 8, 8)
    labels = labels[order]
    return images[:1437], labels[:1437], images[1437:], labels[1437:]


def init(key: Array, setting: Setting) -> Params:
    """Weights of the embedding of 8 rows, of stacked blocks, and of one readout."""
    keys = iter(jax.random.split(key, 8))
    d = setting.width
    n = setting.layers

    def draw(*shape: int) -> Array:
        return jax.random.normal(next(keys), shape) / math.sqrt(shape[-2])

    return {
        "embed": draw(8, d),
        "place": 0.1 * draw(8, d),
        "blocks": {
            "qkv": draw(n, d, 3 * d),
            "out": draw(n, d, d),
            "up": draw(n, d, 4 * d),
            "down": draw(n, 4 * d, d),
        },
        "readout": draw(d, 10),
    }


def layer_logits(
    params: Params, images: Float[Array, "n 8 8"], heads: int
) -> Float[Array, "layers_and_one n 10"]:
    """Logits of the embedding and after each block, all by the same readout."""

    def read(y: Array) -> Array:
        return jnp.mean(_norm(y), axis=1) @ params["readout"]

    def block(y: Array, weights: Params) -> tuple[Array, Array]:
        projected = (_norm(y) @ weights["qkv"]).reshape(*y.shape[:2], heads, -1)
        attended = jax.nn.dot_product_attention(*jnp.split(projected, 3, axis=-1))
        y = y + attended.reshape(y.shape) @ weights["out"]
        y = y + jax.nn.gelu(_norm(y) @ weights["up"]) @ weights["down"]
        return y, read(y)

    start = images @ params["embed"] + params["place"]
    _, logits = jax.lax.scan(block, start, params["blocks"])
    return jnp.concatenate([read(start)[None], logits])


def _norm(y: Array) -> Array:
    return jax.nn.standardize(y, axis=-1, epsilon=1e-6)


def layer_losses(
    params: Params, images: Array, labels: Array, heads: int
) -> Float[Array, "layers_and_one"]:
    """Mean cross-entropy of every layer, in nats."""
    logits = layer_logits(params, images, heads)
    cross_entropy = optax.softmax_cross_entropy_with_integer_labels
    return jnp.mean(cross_entropy(logits, labels[None]), axis=1)


def train(method: Method, setting: Setting, data: tuple[Any, ...]) -> tuple[Any, ...]:
    """Trains once per seed.

    Returns:
      Accuracies (seeds, L + 1) on the test, losses on both splits, the multipliers at
      the end, and their largest sum.
    """
    images, labels, test_images, test_labels = map(jnp.asarray, data)
    rate = optax.cosine_decay_schedule(setting.rate, setting.steps)
    primal = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))
    constraints = method.constraints or {}
    optimizer = optax.with_extra_args_support(primal)
    if constraints:
        dual = uj.dual_ascent(method.dual)
        like = dict.fromkeys(constraints, 0.0)
        optimizer = uj.primal_dual(primal, dual, violations=like)
    weights = jnp.asarray(method.weights or (0.0,) * setting.layers + (1.0,))

    def multipliers(opt_state: Any) -> Array:
        if not constraints:
            return jnp.zeros(1)
        prices = uj.multipliers_of(opt_state)
        return jnp.stack([prices[name] for name in constraints])

    def step(carry: Any, key: Array) -> tuple[Any, Array]:
        params, opt_state = carry
        rows = jax.random.randint(key, (setting.batch,), 0, len(labels))

        def loss(params: Params) -> tuple[Array, Any]:
            losses = layer_losses(params, images[rows], labels[rows], setting.heads)
            objective = weights @ losses
            if not constraints:
                return objective, {}
            smooth, strict = batch_violations(constraints, losses, None)
            value = uj.lagrangian(objective, smooth, uj.multipliers_of(opt_state))
            return value, {"violations": strict}

        gradient, extra = jax.grad(loss, has_aux=True)(params)
        updates, opt_state = optimizer.update(gradient, opt_state, params, **extra)
        params = optax.apply_updates(params, updates)
        return (params, opt_state), jnp.sum(multipliers(opt_state))

    def run(key: Array) -> tuple[Any, ...]:
        start, order = jax.random.split(key)
        params = init(start, setting)
        carry = params, optimizer.init(params)
        keys = jax.random.split(order, setting.steps)
        (params, opt_state), sums = jax.lax.scan(step, carry, keys)
        guesses = jnp.argmax(layer_logits(params, test_images, setting.heads), axis=-1)
        accuracies = jnp.mean(guesses == test_labels, axis=1)
        losses = layer_losses(params, images, labels, setting.heads)
        test_losses = layer_losses(params, test_images, test_labels, setting.heads)
        prices = multipliers(opt_state)
        return accuracies, losses, test_losses, prices, jnp.max(sums)

    one = jax.jit(run)  # seed by seed: products with an axis of seeds are slow on CPUs
    keys = jax.random.split(jax.random.key(0), setting.seeds)
    runs = [jax.device_get(one(key)) for key in keys]
    return tuple(map(np.stack, zip(*runs, strict=True)))


def supervised(layers: int, weight: float) -> Callable[[Any], Method]:
    """Deep supervision: ``weight`` on the losses of all blocks but the last."""
    return lambda plain: Method(weights=(0.0,) + (weight,) * (layers - 1) + (1.0,))


def methods(layers: int) -> dict[str, Callable[[Any], Method]]:
    """Methods by name, as functions of the held-out layer losses of the plain runs."""

    def bound(alpha: float, rate: float, **options: Any) -> Method:
        constraints = uj.descent_constraints(alpha, num_layers=layers, **options)
        return Method(constraints, optax.adam(rate))

    def cumulative(alpha: float, rate: float, floor: float = FLOOR) -> Method:
        options = {"reference": CHANCE, "bounds": "cumulative", "floor": floor}
        return bound(alpha, rate, **options)

    return {
        "plain": lambda plain: Method(),
        "stepwise difference, Adam .05": lambda plain: bound(ALPHA, 0.05),
        "stepwise ratio of means, Adam .05": lambda plain: bound(
            ALPHA, 0.05, form="ratio", floor=FLOOR
        ),
        "cumulative, Adam .01": lambda plain: cumulative(ALPHA, 0.01),
        "cumulative, Adam .05": lambda plain: cumulative(ALPHA, 0.05),
        "cumulative, Adam .2": lambda plain: cumulative(ALPHA, 0.2),
        "cumulative, suggest_alpha, Adam .01": lambda plain: cumulative(
            suggest_alpha(plain, reference=CHANCE), 0.01, floor=0.0
        ),
        "deep supervision, weight .1": supervised(layers, 0.1),
        "deep supervision, weight .3": supervised(layers, 0.3),
        "deep supervision, weight 1": supervised(layers, 1.0),
    }


def exits(layers: int) -> dict[str, Callable[[Any], Method]]:
    """Methods for early exits, as functions of the plain runs' training losses."""

    def within(epsilon: float) -> Callable[[Any], Method]:
        """Minimises the mean loss of the exits under a bound on the last loss."""
        early = (0.0,) + (1.0 / (layers - 1),) * (layers - 1) + (0.0,)

        def build(plain):
            last = [(1.0 + epsilon) * float(plain[-1])]
            constraints = level_constraints(last, num_layers=layers, form="log_ratio")
            return Method(constraints, optax.adam(0.05), early)

        return build

    built: dict[str, Callable[[Any], Method]] = {"plain": lambda plain: Method()}
    for weight in (0.01, 0.03, 0.06, 0.1, 0.3, 1):
        built[f"deep supervision, weight {weight:g}"] = supervised(layers, weight)
    for epsilon in (0.05, 0.1, 0.2):
        built[f"early exits, last loss at most +{epsilon:.0%}"] = within(epsilon)
    return built


def compare(setting: Setting, data: tuple[Any, ...]) -> str:
    """Test accuracies of some layers in percent over seeds, and sums of multipliers."""
    shown = (1, 2, 3, setting.layers)
    rows = []
    plain = np.ones(setting.layers + 1)
    for name, build in methods(setting.layers).items():
        accuracies, _, test_losses, multipliers, sums = train(
            build(plain), setting, data
        )
        if name == "plain":
            plain = test_losses.mean(axis=0)
        cells = [spread(accuracies[:, layer], 100) for layer in shown]
        last = multipliers.sum(axis=1).mean()
        rows.append([name, *cells, f"{sums.max():.2f}", f"{last:.2f}"])
    layers = [f"layer {layer}" for layer in shown]
    return table(["method", *layers, "largest sum", "sum at the end"], rows)


def compare_exits(setting: Setting, data: tuple[Any, ...]) -> str:
    """Accuracies of early exits in percent, and their cost for the last layer.

    The network is too narrow for both.
    """
    rows = []
    plain = np.ones(setting.layers + 1)
    for name, build in exits(setting.layers).items():
        accuracies, losses, _, multipliers, _ = train(build(plain), setting, data)
        if name == "plain":
            plain = losses.mean(axis=0)
        early = 100 * accuracies[:, 1:-1].mean(axis=1)
        last = 100 * accuracies[:, -1]
        cost = 100 * (losses[:, -1] / plain[-1] - 1.0)
        price = f"{multipliers.mean():.1f}" if name.startswith("early") else ""
        rows.append([name, *map(spread, (early, last, cost)), price])
    header = ["method", "layers 1 to L-1, mean", "last layer"]
    header += ["last loss over plain's (train), %", "multiplier"]
    return table(header, rows)


def spread(figures: np.ndarray, scale: float = 1.0) -> str:
    """Mean and deviation over seeds."""
    return f"{scale * figures.mean():.1f} +- {scale * figures.std():.1f}"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = (header, ["---"] * len(header), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main(arguments: list[str] | None = None) -> None:
    """Prints accuracies of layers under every method, then of early exits."""
    program = "python -m papers.digits"
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a smaller network, fewer steps and seeds"
    )
    setting = QUICK if parser.parse_args(arguments).quick else FULL
    data = digits()
    print(f"{setting}, cumulative bounds max({CHANCE:.2f} (1 - {ALPHA})^l, {FLOOR})")
    print(compare(setting, data), flush=True)
    narrow = dataclasses.replace(setting, width=8, heads=4)
    print(f"\nwidth {narrow.width}: early exits, and their cost for the last layer")
    print(compare_exits(narrow, data))


if __name__ == "__main__":
    main()
