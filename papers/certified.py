"""Certified accuracy of digits by gradient steps on convex potentials, beside a plain
network."""

import argparse
import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

import unroll_jax as uj
from papers.digits import table
from unroll_jax.certificates import (
    LipschitzBound,
    certified_radius,
    lipschitz,
    margin_loss,
    pad_channels,
    unit_columns,
)
from unroll_jax.constrained import batch_violations, rate

__all__ = ["Setting", "main"]

LAYERS, WIDTH, CLASSES = 6, 128, 10
STEPS, BATCH, ATTACK_STEPS = 3000, 64, 40
RADII, ATTACKS = (0.25, 0.5, 0.75, 1.0), (0.25, 0.5, 1.0)
# The radius of the bound on the share of uncertified samples.
BOUNDED = 0.5
LAYER = uj.convex_potential(WIDTH, WIDTH)

Params = dict[str, Any]
Data = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Setting:
    """A way to train.

    Attributes:
      name: its row of the table.
      rate, decay: of AdamW.
      offset, temperature: of the margin loss; 0 and 1 are cross-entropy.
      plain: True for a ReLU network, without bounds on its layers.
      at_most: a bound of the share of samples uncertified at the radius .5, or None.
    """

    name: str
    rate: float
    decay: float = 0.0
    offset: float = 0.0
    temperature: float = 1.0
    plain: bool = False
    at_most: float | None = None


# Chosen on the validation images, of the `trials`.
CHOSEN = (
    Setting("plain ReLU network", rate=3e-4, decay=1e-1, plain=True),
    Setting("offset .8, temperature .1", rate=1e-2, offset=0.8, temperature=0.1),
    Setting("offset 1, temperature .15", rate=1e-2, offset=1.0, temperature=0.15),
    Setting("at most 10% uncertified at .5", rate=1e-2, temperature=0.1, at_most=0.1),
)


def digits() -> tuple[Data, Data, Data]:
    """Images (n, 64) with pixels in [0, 1], and labels: 1,197 of training, 200 of
    validation, 400 of the test."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(images))
    images = (images[order] / 16.0).astype(np.float32)
    labels = labels[order].astype(np.int32)
    cuts = slice(0, 1197), slice(1197, 1397), slice(1397, None)
    train, validation, test = ((images[cut], labels[cut]) for cut in cuts)
    return train, validation, test


@functools.partial(jax.jit, static_argnames="setting")
def init(key: Array, setting: Setting) -> Params:
    """Weights of six square layers, stacked, and of a head with biases."""
    key_layers, key_head = jax.random.split(key)
    layers = jax.vmap(LAYER.init)(jax.random.split(key_layers, LAYERS))
    if setting.plain:
        layers = layers._replace(W=math.sqrt(2.0) * layers.W)
    head = jax.random.normal(key_head, (WIDTH, CLASSES)) / math.sqrt(WIDTH)
    return {"layers": layers, "head": head, "bias": jnp.zeros(CLASSES)}


def head_of(params: Params, setting: Setting) -> Float[Array, "width classes"]:
    """The head as it enters the product."""
    return params["head"] if setting.plain else unit_columns(params["head"])


def logits_of(params: Params, images: Array, setting: Setting) -> Float[Array, "n 10"]:
    """Logits of images (n, 64)."""
    z = pad_channels(images, WIDTH)
    if setting.plain:

        def hidden(z: Array, layer: Any) -> tuple[Array, None]:
            return jax.nn.relu(z @ layer.W.T + layer.b), None

        z, _ = jax.lax.scan(hidden, z, params["layers"])
    else:
        z, _ = uj.unroll(
            LAYER, params["layers"], z, num_layers=LAYERS, tied=False, record=None
        )
    return z @ head_of(params, setting) + params["bias"]


def train(setting: Setting, data: Data, seed: int) -> tuple[Params, Array]:
    """Parameters after training, and the multiplier of the bound."""
    images, labels = map(jnp.asarray, data)
    constraint = rate(
        at_most=setting.at_most or 0.0,
        of=lambda radius: (BOUNDED - radius) / setting.temperature,
    )
    primal = optax.adamw(
        optax.cosine_decay_schedule(setting.rate, STEPS), weight_decay=setting.decay
    )
    optimizer = uj.primal_dual(
        primal,
        uj.dual_ascent(optax.sgd(0.05)),
        violations={"uncertified": jnp.zeros(())},
    )

    def loss(params: Params, rows: Array, multipliers: Any) -> tuple[Array, Any]:
        logits = logits_of(params, images[rows], setting)
        head = None if setting.plain else head_of(params, setting)
        value = jnp.mean(
            margin_loss(
                logits,
                labels[rows],
                head,
                offset=setting.offset,
                temperature=setting.temperature,
            )
        )
        if setting.at_most is None:
            return value, {"uncertified": jnp.zeros(())}
        radius = certified_radius(logits, head, labels=labels[rows])
        smooth, exact = batch_violations({"uncertified": constraint}, radius, None)
        return uj.lagrangian(value, smooth, multipliers), exact

    def step(carry: tuple[Params, Any], key: Array) -> tuple[Any, None]:
        params, state = carry
        rows = jax.random.randint(key, (BATCH,), 0, len(labels))
        multipliers = uj.multipliers_of(state)
        gradient, exact = jax.grad(loss, has_aux=True)(params, rows, multipliers)
        updates, state = optimizer.update(gradient, state, params, violations=exact)
        return (optax.apply_updates(params, updates), state), None

    @jax.jit
    def run(key: Array) -> tuple[Params, Array]:
        start, order = jax.random.split(key)
        params = init(start, setting)
        carry = params, optimizer.init(params)
        keys = jax.random.split(order, STEPS)
        (params, state), _ = jax.lax.scan(step, carry, keys)
        return params, uj.multipliers_of(state)["uncertified"]

    return run(jax.random.key(seed))


def bound_of(
    params: Params, images: np.ndarray, setting: Setting, dtype: str
) -> LipschitzBound:
    """The bound of the features, in balls of more than the largest radius."""
    parts: list[Any] = [lambda images: pad_channels(images, WIDTH)]
    if not setting.plain:
        parts.append(params["layers"])
    else:
        for W, b in zip(*params["layers"][:2], strict=True):
            parts += [W.T, lambda z, b=b: jax.nn.relu(z + b)]
    return lipschitz(*parts, x=images, radius=1.1 * max(RADII), dtype=dtype)


def certified(
    params: Params, data: Data, setting: Setting, dtype: str = "float64"
) -> np.ndarray:
    """Accuracy and certified accuracies at the radii, of the network in a dtype."""
    images, labels = data
    bound = bound_of(params, images, setting, dtype)
    with jax.enable_x64(dtype == "float64"):
        wide, inputs = jax.tree.map(
            lambda leaf: jnp.asarray(leaf, dtype), (params, images)
        )
        logits = jax.jit(logits_of, static_argnums=2)(wide, inputs, setting)
        head = head_of(wide, setting)
        radius = certified_radius(logits, head, labels=labels, bound=bound)
        logits, radius = np.asarray(logits), np.asarray(radius)
    clean = np.mean(np.argmax(logits, axis=-1) == labels)
    return np.array([clean, *(np.mean(radius > limit) for limit in RADII)])


def attacked(params: Params, data: Data, setting: Setting) -> np.ndarray:
    """Accuracies under projected gradients on the margin, from the image and from a
    random start; of both the worse."""
    images, labels = map(jnp.asarray, data)
    chosen = labels[:, None] == jnp.arange(CLASSES)

    def margin(moved: Array) -> Array:
        logits = logits_of(params, images + moved, setting)
        others = jnp.max(jnp.where(chosen, -jnp.inf, logits), axis=-1)
        return jnp.sum(jnp.where(chosen, logits, 0.0), axis=-1) - others

    def project(moved: Array, budget: Array) -> Array:
        lengths = jnp.linalg.norm(moved, axis=-1, keepdims=True)
        return moved * jnp.minimum(1.0, budget / jnp.maximum(lengths, 1e-12))

    @jax.jit
    def survivors(budget: Array, start: Array) -> Array:
        def step(carry: tuple[Array, Array], _: None) -> tuple[Any, None]:
            moved, right = carry
            slope = jax.grad(lambda moved: jnp.sum(margin(moved)))(moved)
            lengths = jnp.linalg.norm(slope, axis=-1, keepdims=True)
            moved = moved - budget / 8.0 * slope / jnp.maximum(lengths, 1e-12)
            moved = project(moved, budget)
            return (moved, right & (margin(moved) > 0.0)), None

        start = project(start, budget)
        carry = start, margin(start) > 0.0
        return jax.lax.scan(step, carry, length=ATTACK_STEPS)[0][1]

    random = np.random.default_rng(0).normal(size=images.shape).astype(np.float32)
    shares = []
    for limit in ATTACKS:
        both = [survivors(limit, start) for start in (0.0 * random, random)]
        shares.append(np.mean(both[0] & both[1]))
    return np.array(shares)


def trials() -> list[Setting]:
    """The settings that the chosen ones are chosen of."""
    settings = []
    for step in (3e-4, 1e-3, 3e-3):
        for decay in (1e-4, 1e-2, 1e-1):
            name = f"plain, rate {step}, decay {decay}"
            settings.append(Setting(name, step, decay, plain=True))
    for offset in (0.6, 0.8, 1.0):
        for temperature in (0.1, 0.15):
            for step in (1e-2, 3e-3):
                name = f"offset {offset}, temperature {temperature}, rate {step}"
                settings.append(Setting(name, step, 0.0, offset, temperature))
    for at_most in (0.1, 0.2):
        name = f"at most {at_most:.0%} uncertified"
        settings.append(Setting(name, 1e-2, temperature=0.1, at_most=at_most))
    return settings


def compare(settings: Iterable[Setting], data: Data, test: Data, seeds: int) -> str:
    """Accuracies on the test images under each setting, in percent."""
    rows = []
    for setting in settings:
        runs, prices = [], []
        for seed in range(seeds):
            params, price = train(setting, data, seed)
            figures = certified(params, test, setting), attacked(params, test, setting)
            runs.append(np.concatenate(figures))
            prices.append(price)
        price = "" if setting.at_most is None else f"{np.mean(prices):.1f}"
        rows.append([setting.name, *spread(np.stack(runs)), price])
    header = ["%", "clean", *(f"certified {limit}" for limit in RADII)]
    return table([*header, *(f"attacked {limit}" for limit in ATTACKS), "price"], rows)


def spread(runs: Float[np.ndarray, "seeds figures"]) -> list[str]:
    """Means in percent, with the smallest and the largest seed."""
    means, least, most = (100.0 * f(axis=0) for f in (runs.mean, runs.min, runs.max))
    if len(runs) == 1:
        return [f"{mean:.1f}" for mean in means]
    figures = zip(means, least, most, strict=True)
    return [f"{mean:.1f} ({low:.1f} to {high:.1f})" for mean, low, high in figures]


def main(arguments: list[str] | None = None) -> None:
    """Prints the table of the chosen settings on the test images, trained on all
    others, or of all trials on the validation images."""
    parser = argparse.ArgumentParser(prog="papers.certified", description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--search", action="store_true", help="compare trials on validation images"
    )
    options = parser.parse_args(arguments)
    data, validation, test = digits()
    if options.search:
        print(compare(trials(), data, validation, options.seeds))
        return
    images, labels = map(np.concatenate, zip(data, validation, strict=True))
    print(compare(CHOSEN, (images, labels), test, options.seeds))


if __name__ == "__main__":
    main()
