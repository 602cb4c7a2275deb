"""Certified accuracy of digits by gradient steps on convex potentials, beside other
networks and other ways to train."""

import argparse
import dataclasses
import functools
import itertools
import math
import time
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
    attack,
    certified_radius,
    lipschitz,
    margin_loss,
    pad_channels,
    unit_columns,
)
from unroll_jax.constrained import batch_violations, rate
from unroll_jax.norm_bounds import matrix_norm_bound

__all__ = ["Setting", "main", "spread"]

LAYERS, WIDTH, CLASSES = 6, 128, 10
STEPS, BATCH, ATTACK_STEPS = 3000, 64, 40
RADII, ATTACKS = (0.25, 0.5, 0.75, 1.0), (0.25, 0.5, 1.0)
TOL = 1e-5
LAYER = uj.convex_potential(WIDTH, WIDTH)
EQUILIBRIUM = uj.convex_equilibrium(WIDTH, WIDTH)

Params = dict[str, Any]
Data = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Setting:
    """A network, and a way to train it.

    Attributes:
      name: its row of the table.
      rate, decay: of AdamW.
      offset, temperature: of the margin loss; 0 and 1 are cross-entropy.
      kind: of the layers. "steps" on convex potentials, "reflected" equilibria on them,
        "spectral" for ReLU layers with weights divided by their norms, or "plain" for
        ReLU layers without bounds.
      at_most: a bound of the share of samples uncertified at the radius, or None.
      radius: of the bound.
      steps: of training.
    """

    name: str
    rate: float
    decay: float = 0.0
    offset: float = 0.0
    temperature: float = 1.0
    kind: str = "steps"
    at_most: float | None = None
    radius: float = 0.5
    steps: int = STEPS


# Chosen on the validation images, of the `trials`.
CHOSEN = (
    Setting("plain ReLU network", rate=3e-4, decay=1e-1, kind="plain"),
    Setting("spectral normalisation", 3e-3, 0.0, 1.0, 0.1, kind="spectral"),
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


@functools.partial(jax.jit, static_argnames="kind")
def init(key: Array, kind: str) -> Params:
    """Weights of six square layers, stacked, and of a head with biases."""
    key_layers, key_head = jax.random.split(key)
    layers = jax.vmap(LAYER.init)(jax.random.split(key_layers, LAYERS))
    if kind == "plain":
        layers = layers._replace(W=math.sqrt(2.0) * layers.W)
    head = jax.random.normal(key_head, (WIDTH, CLASSES)) / math.sqrt(WIDTH)
    return {"layers": layers, "head": head, "bias": jnp.zeros(CLASSES)}


def head_of(params: Params, kind: str) -> Float[Array, "width classes"]:
    """The head as it enters the product."""
    return params["head"] if kind == "plain" else unit_columns(params["head"])


def layers_of(params: Params, kind: str) -> Any:
    """The layers as they enter the products."""
    layers = params["layers"]
    if kind != "spectral":
        return layers
    return layers._replace(W=layers.W / matrix_norm_bound(layers.W)[:, None, None])


def logits_of(params: Params, images: Array, kind: str) -> Float[Array, "n 10"]:
    """Logits of images (n, 64)."""

    def act(z: Array, layer: Any) -> tuple[Array, None]:
        if kind == "steps":
            return LAYER.step(layer, z, None), None
        if kind != "reflected":
            return jax.nn.relu(z @ layer.W.T + layer.b), None
        solved, _ = uj.equilibrium(
            EQUILIBRIUM,
            layer,
            jnp.zeros_like(z),
            z,
            batch_ndim=1,
            tol=TOL,
            on_failure="accept",
        )
        return z - 2.0 * solved, None

    z, _ = jax.lax.scan(act, pad_channels(images, WIDTH), layers_of(params, kind))
    return z @ head_of(params, kind) + params["bias"]


def train(setting: Setting, data: Data, seed: int) -> tuple[Params, Array]:
    """Parameters after training, and the multiplier of the bound."""
    images, labels = map(jnp.asarray, data)
    return _train(jax.random.key(seed), images, labels, setting)


@functools.partial(jax.jit, static_argnames="setting")
def _train(
    key: Array, images: Array, labels: Array, setting: Setting
) -> tuple[Params, Array]:
    constraint = rate(
        at_most=setting.at_most or 0.0,
        of=lambda radius: (setting.radius - radius) / setting.temperature,
    )
    schedule = optax.cosine_decay_schedule(setting.rate, setting.steps)
    optimizer = uj.primal_dual(
        optax.adamw(schedule, weight_decay=setting.decay),
        uj.dual_ascent(optax.sgd(0.05)),
        violations={"uncertified": jnp.zeros(())},
    )

    def loss(params: Params, rows: Array, multipliers: Any) -> tuple[Array, Any]:
        logits = logits_of(params, images[rows], setting.kind)
        head = None if setting.kind == "plain" else head_of(params, setting.kind)
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

    start, order = jax.random.split(key)
    params = init(start, setting.kind)
    carry = params, optimizer.init(params)
    keys = jax.random.split(order, setting.steps)
    (params, state), _ = jax.lax.scan(step, carry, keys)
    return params, uj.multipliers_of(state)["uncertified"]


def bound_of(
    params: Params, images: np.ndarray, kind: str, dtype: str
) -> LipschitzBound:
    """The bound of the features, in balls of more than the largest radius."""
    parts: list[Any] = [lambda images: pad_channels(images, WIDTH)]
    layers = layers_of(params, kind)
    if kind in ("steps", "reflected"):
        parts.append(layers)
    else:
        for W, b in zip(layers.W, layers.b, strict=True):
            parts += [W.T, lambda z, b=b: jax.nn.relu(z + b)]
    strength = 0.5 if kind == "reflected" else None
    return lipschitz(
        *parts,
        x=images,
        radius=1.1 * max(RADII),
        strength=strength,
        tol=TOL,
        dtype=dtype,
    )


def certified(
    params: Params, data: Data, kind: str, dtype: str = "float64"
) -> np.ndarray:
    """Accuracy and certified accuracies at the radii, of the network in a dtype."""
    images, labels = data
    with jax.enable_x64(dtype == "float64"):
        wide, inputs = jax.tree.map(
            lambda leaf: jnp.asarray(leaf, dtype), (params, images)
        )
        bound = bound_of(wide, images, kind, dtype)
        logits = jax.jit(logits_of, static_argnums=2)(wide, inputs, kind)
        head = head_of(wide, kind)
        radius = certified_radius(logits, head, labels=labels, bound=bound)
        logits, radius = np.asarray(logits), np.asarray(radius)
    clean = np.mean(np.argmax(logits, axis=-1) == labels)
    return np.array([clean, *(np.mean(radius > limit) for limit in RADII)])


@functools.partial(jax.jit, static_argnames="kind")
def attacked(params: Params, data: Data, kind: str) -> Array:
    """Accuracies under projected gradients, from the image and from a random start."""
    images, labels = map(jnp.asarray, data)

    def share(limit: float) -> Array:
        least = attack(
            lambda moved: logits_of(params, moved, kind),
            images,
            labels,
            limit,
            jax.random.key(0),
            num_steps=ATTACK_STEPS,
        )
        return jnp.mean(least > 0.0)

    return jnp.stack([share(limit) for limit in ATTACKS])


def trials() -> list[Setting]:
    """The settings that the chosen ones are chosen of."""
    settings = []
    for step, decay in itertools.product((3e-4, 1e-3, 3e-3), (1e-4, 1e-2, 1e-1)):
        name = f"plain, rate {step}, decay {decay}"
        settings.append(Setting(name, step, decay, kind="plain"))
    for kind, offsets in {
        "steps": (0.6, 0.8, 1.0),
        "spectral": (0.2, 0.5, 1.0),
    }.items():
        grid = itertools.product(offsets, (0.1, 0.15), (1e-2, 3e-3))
        for offset, temperature, step in grid:
            name = f"{kind}, offset {offset}, temperature {temperature}, rate {step}"
            settings.append(Setting(name, step, 0.0, offset, temperature, kind))
    for at_most in (0.1, 0.2):
        name = f"at most {at_most:.0%} uncertified"
        settings.append(Setting(name, 1e-2, temperature=0.1, at_most=at_most))
    return settings


def fronts() -> list[Setting]:
    """Eight offsets and temperatures, and eight bounds, all at one rate."""
    settings = []
    for temperature, offset in itertools.product((0.1, 0.15), (0.2, 0.5, 0.8, 1.2)):
        name = f"offset {offset}, temperature {temperature}"
        settings.append(Setting(name, 1e-2, 0.0, offset, temperature))
    for radius, at_most in itertools.product((0.5, 0.75), (0.02, 0.05, 0.1, 0.3)):
        name = f"at most {at_most:.0%} uncertified at {radius}"
        settings.append(
            Setting(name, 1e-2, temperature=0.1, at_most=at_most, radius=radius)
        )
    return settings


def kinds() -> list[Setting]:
    """Steps, and reflected equilibria with the same parameters: trained for as long as
    the steps in seconds, and for as many iterations."""
    steps = Setting("steps", 1e-2, offset=0.8, temperature=0.1)
    reflected = dataclasses.replace(steps, name="reflected", kind="reflected")
    # An iteration takes four to five times as long.
    short = dataclasses.replace(reflected, name="reflected, 600 steps", steps=600)
    return [steps, short, reflected]


def figures_of(
    setting: Setting, data: Data, test: Data, seed: int, extras: Iterable[str]
) -> dict[str, float]:
    """Figures of one run by name: shares of the test images in percent, and extras.

    Args:
      setting: the network and its training.
      data, test: images and labels.
      seed: of the run.
      extras: of "attacks", "training" (the share of training images that are not
        certified at the radius of the bound), "price" (the multiplier) and "seconds"
        (of CPU, for training).
    """
    start = time.process_time()
    params, price = jax.block_until_ready(train(setting, data, seed))
    seconds = time.process_time() - start

    shares = certified(params, test, setting.kind)
    names = ["clean", *(f"certified {limit}" for limit in RADII)]
    figures = dict(zip(names, 100.0 * shares, strict=True))
    if "attacks" in extras:
        shares = attacked(params, test, setting.kind)
        names = [f"attacked {limit}" for limit in ATTACKS]
        figures |= dict(zip(names, 100.0 * shares, strict=True))
    if "training" in extras:
        place = 1 + RADII.index(setting.radius)
        share = 1.0 - certified(params, data, setting.kind)[place]
        figures["uncertified in training"] = 100.0 * share
    if "price" in extras:
        figures["price"] = float(price)
    if "seconds" in extras:
        figures["seconds"] = seconds
    return figures


def compare(
    settings: Iterable[Setting],
    data: Data,
    test: Data,
    seeds: int,
    extras: Iterable[str] = ("attacks", "price"),
) -> str:
    """A table of the figures under each setting."""
    rows = []
    names: list[str] = []
    for setting in settings:
        runs = [figures_of(setting, data, test, seed, extras) for seed in range(seeds)]
        names = list(runs[0])
        cells = [spread([run[name] for run in runs]) for name in names]
        rows.append([setting.name, *cells])
    return table(["%", *names], rows)


def spread(figures: list[float]) -> str:
    """The mean, with the smallest and the largest."""
    if len(figures) == 1:
        return f"{figures[0]:.1f}"
    mean = sum(figures) / len(figures)
    return f"{mean:.1f} ({min(figures):.1f} to {max(figures):.1f})"


def main(arguments: list[str] | None = None) -> None:
    """Prints a table of certified digits: of the chosen settings on the test images,
    trained on all others, unless an option asks for another table."""
    parser = argparse.ArgumentParser(prog="papers.certified", description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    tables = parser.add_mutually_exclusive_group()
    tables.add_argument(
        "--search", action="store_true", help="all trials on the validation images"
    )
    tables.add_argument(
        "--bounds", action="store_true", help="bounds beside offsets, eight of each"
    )
    tables.add_argument(
        "--compare", action="store_true", help="steps beside reflected equilibria"
    )
    options = parser.parse_args(arguments)
    data, validation, test = digits()
    if options.search:
        print(compare(trials(), data, validation, options.seeds))
        return

    # Settings are chosen: validation images are for training now.
    images, labels = map(np.concatenate, zip(data, validation, strict=True))
    data = images, labels
    if options.bounds:
        print(compare(fronts(), data, test, options.seeds, ("training", "price")))
    elif options.compare:
        print(compare(kinds(), data, test, options.seeds, ("seconds",)))
    else:
        print(compare(CHOSEN, data, test, options.seeds))


if __name__ == "__main__":
    main()
