"""Constraints on the layers of a small transformer of digits, against plain training
and fixed weights."""

import argparse
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

import unroll_jax as uj

__all__ = ["Setting", "main"]

CHANCE, ALPHA, FLOOR = math.log(10.0), 0.3, 0.08


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
    """A way to train: weights of the losses f_0..f_L (only the last if empty),
    constraints and their dual rule."""

    constraints: Any = None
    dual: optax.GradientTransformation | None = None
    weights: tuple[float, ...] = ()


def digits() -> tuple[Any, ...]:
    """Images (n, 8, 8) in [0, 1] and labels of scikit-learn's digits: 1,437 of
    training, 360 of the test."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = (
        (images[order] / 16.0).reshape(-1, 8, 8).astype(np.float32),
        labels[order],
    )
    return images[:1437], labels[:1437], images[1437:], labels[1437:]


def init(key: Array, setting: Setting) -> Params:
    """Weights of the embedding of 8 rows, of the blocks, stacked, and of one readout
    for all layers."""
    keys, d, n = iter(jax.random.split(key, 8)), setting.width, setting.layers

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
        q, k, v = jnp.split(
            (_norm(y) @ weights["qkv"]).reshape(*y.shape[:2], heads, -1), 3, axis=-1
        )
        y = y + jax.nn.dot_product_attention(q, k, v).reshape(y.shape) @ weights["out"]
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
    return jnp.mean(
        optax.softmax_cross_entropy_with_integer_labels(logits, labels[None]), axis=1
    )


def train(method: Method, setting: Setting, data: tuple[Any, ...]) -> tuple[Any, ...]:
    """Accuracies (seeds, L + 1), losses on both splits, the multipliers at the end
    and their largest sum."""
    images, labels, test_images, test_labels = map(jnp.asarray, data)
    primal = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adam(optax.cosine_decay_schedule(setting.rate, setting.steps)),
    )
    constrained = method.constraints is not None
    dual = uj.dual_ascent(optax.sgd(1.0) if method.dual is None else method.dual)
    count = method.constraints(jnp.ones(setting.layers + 1)).size if constrained else 1
    weights = jnp.asarray(method.weights or (0.0,) * setting.layers + (1.0,))

    def step(carry: Any, key: Array) -> tuple[Any, Array]:
        params, opt_state, duals = carry
        rows = jax.random.randint(key, (setting.batch,), 0, len(labels))

        def loss(params: Params) -> tuple[Array, Any]:
            losses = layer_losses(params, images[rows], labels[rows], setting.heads)
            if not constrained:
                return weights @ losses, jnp.zeros(1)
            violations = method.constraints(losses)
            return (
                uj.lagrangian(weights @ losses, violations, duals.multipliers),
                violations,
            )

        gradient, violations = jax.grad(loss, has_aux=True)(params)
        updates, opt_state = primal.update(gradient, opt_state, params)
        duals = dual.update(duals, violations) if constrained else duals
        return (optax.apply_updates(params, updates), opt_state, duals), jnp.sum(
            duals.multipliers
        )

    def run(key: Array) -> tuple[Any, ...]:
        start, order = jax.random.split(key)
        params = init(start, setting)
        carry = params, primal.init(params), dual.init(count)
        (params, _, duals), sums = jax.lax.scan(
            step, carry, jax.random.split(order, setting.steps)
        )
        guesses = jnp.argmax(layer_logits(params, test_images, setting.heads), axis=-1)
        sets = (images, labels), (test_images, test_labels)
        losses = [layer_losses(params, *one, setting.heads) for one in sets]
        return (
            jnp.mean(guesses == test_labels, axis=1),
            *losses,
            duals.multipliers,
            jnp.max(sums),
        )

    one = jax.jit(run)  # seed by seed: products with an axis of seeds are slow on CPUs
    runs = [
        jax.device_get(one(key))
        for key in jax.random.split(jax.random.key(0), setting.seeds)
    ]
    return tuple(map(np.stack, zip(*runs, strict=True)))


def supervised(layers: int, weight: float) -> Callable[[Any], Method]:
    """Deep supervision: the last loss, and those of the blocks before it by a
    weight."""
    return lambda plain: Method(weights=(0.0,) + (weight,) * (layers - 1) + (1.0,))


def methods(layers: int) -> dict[str, Callable[[Any], Method]]:
    """Methods by name, as functions of the mean layer losses of the plain runs, on
    held-out data."""

    def cumulative(alpha: float, rate: float, floor: float = FLOOR) -> Method:
        return Method(
            uj.descent_constraints(
                alpha, reference=CHANCE, bounds="cumulative", floor=floor
            ),
            optax.adam(rate),
        )

    return {
        "plain": lambda plain: Method(),
        "stepwise difference, Adam .05": lambda plain: Method(
            uj.descent_constraints(ALPHA), optax.adam(0.05)
        ),
        "stepwise ratio of means, Adam .05": lambda plain: Method(
            uj.descent_constraints(ALPHA, form="ratio", floor=FLOOR), optax.adam(0.05)
        ),
        "cumulative, Adam .01": lambda plain: cumulative(ALPHA, 0.01),
        "cumulative, Adam .05": lambda plain: cumulative(ALPHA, 0.05),
        "cumulative, Adam .2": lambda plain: cumulative(ALPHA, 0.2),
        "cumulative, suggest_alpha, Adam .01": lambda plain: cumulative(
            uj.constrained.suggest_alpha(plain, reference=CHANCE), 0.01, floor=0.0
        ),
        "deep supervision, weight .1": supervised(layers, 0.1),
        "deep supervision, weight .3": supervised(layers, 0.3),
        "deep supervision, weight 1": supervised(layers, 1.0),
    }


def exits(layers: int) -> dict[str, Callable[[Any], Method]]:
    """Ways to good early exits, as functions of the mean losses of the plain runs on
    their training data."""

    def within(epsilon: float) -> Callable[[Any], Method]:
        early = (0.0,) + (1.0 / (layers - 1),) * (layers - 1) + (0.0,)
        return lambda plain: Method(
            lambda losses: jnp.log(losses[-1:] / ((1.0 + epsilon) * plain[-1])),
            optax.adam(0.05),
            early,
        )

    shares = (0.01, 0.03, 0.06, 0.1, 0.3, 1)
    weights = {
        f"deep supervision, weight {weight:g}": supervised(layers, weight)
        for weight in shares
    }
    budgets = {
        f"early exits, last loss at most +{epsilon:.0%}": within(epsilon)
        for epsilon in (0.05, 0.1, 0.2)
    }
    return {"plain": lambda plain: Method(), **weights, **budgets}


def compare(setting: Setting, data: tuple[Any, ...]) -> str:
    """Test accuracies of some layers in percent, means and deviations over seeds,
    and sums of multipliers."""
    shown, rows, plain = (1, 2, 3, setting.layers), [], np.ones(setting.layers + 1)
    for name, build in methods(setting.layers).items():
        accuracies, _, test_losses, multipliers, sums = train(
            build(plain), setting, data
        )
        plain = test_losses.mean(axis=0) if name == "plain" else plain
        cells = [spread(accuracies[:, layer], 100) for layer in shown]
        rows.append(
            [name, *cells, f"{sums.max():.2f}", f"{multipliers.sum(axis=1).mean():.2f}"]
        )
    return table(
        [
            "method",
            *(f"layer {layer}" for layer in shown),
            "largest sum",
            "sum at the end",
        ],
        rows,
    )


def compare_exits(setting: Setting, data: tuple[Any, ...]) -> str:
    """Accuracies of early exits in percent, and their cost for the last layer of a
    network too narrow for both."""
    rows, plain = [], np.ones(setting.layers + 1)
    for name, build in exits(setting.layers).items():
        accuracies, losses, _, multipliers, _ = train(build(plain), setting, data)
        plain = losses.mean(axis=0) if name == "plain" else plain
        early, last = 100 * accuracies[:, 1:-1].mean(axis=1), 100 * accuracies[:, -1]
        cost = 100 * (losses[:, -1] / plain[-1] - 1.0)
        price = f"{multipliers.mean():.1f}" if name.startswith("early") else ""
        rows.append([name, *map(spread, (early, last, cost)), price])
    return table(
        [
            "method",
            "layers 1 to L-1, mean",
            "last layer",
            "last loss over plain's (train), %",
            "multiplier",
        ],
        rows,
    )


def spread(figures: np.ndarray, scale: float = 1.0) -> str:
    """Mean and deviation over seeds."""
    return f"{scale * figures.mean():.1f} +- {scale * figures.std():.1f}"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(
        f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)
    )


def main(arguments: list[str] | None = None) -> None:
    """Prints accuracies of layers under every method, then of early exits."""
    parser = argparse.ArgumentParser(
        prog="python -m papers.digits", description=__doc__
    )
    parser.add_argument(
        "--quick", action="store_true", help="a smaller network, fewer steps and seeds"
    )
    setting, data = QUICK if parser.parse_args(arguments).quick else FULL, digits()
    narrow = dataclasses.replace(setting, width=8, heads=4)
    print(
        f"{setting}, cumulative bounds max({CHANCE:.2f} (1 - {ALPHA})^l,"
        f" {FLOOR})\n{compare(setting, data)}",
        flush=True,
    )
    print(
        f"\nwidth {narrow.width}: early exits, and their cost for the last"
        f" layer\n{compare_exits(narrow, data)}"
    )


if __name__ == "__main__":
    main()
