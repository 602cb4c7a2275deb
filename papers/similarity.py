"""`python -m papers.similarity`: how alike tokens become under attention by each rho.

Yang, Huang, Wipf (2022), Section 7: a rho that grows more slowly on [0, 1] than
softmax's keeps tokens more dissimilar, one that grows faster makes them more similar.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.stats import spearmanr

from papers.yang2022.energies import Stack, init_network, mean_cosine
from unroll_jax import attention, unroll
from unroll_jax.energies import RHOS, AttentionParams, Rho
from unroll_jax.energies.attention.rho import log, resolve_rho

__all__ = ["LAYERS", "RULES", "growth", "main", "similarities"]

SETS, TOKENS, DIM, LAYERS = 64, 32, 16, 12
SHOWN = (1, 2, 4, LAYERS)
# The paper's slower function, and all of the library.
NAMES: dict[str, str | Rho] = {**{name: name for name in RHOS}, "log(z + 2)": log(2.0)}
# The step of a layer of "gradient", over the number of tokens: it halves differences
# where rho' = 1.
RATE = 0.5


def growth(rho: str | Rho) -> tuple[float, float]:
    """Returns rho(1) - rho(0), by which the paper compares functions.

    The second number is the same over rho'(0). Weights that sum to 1 do not depend on
    the scale of rho.
    """
    known = resolve_rho(rho)
    assert known.slope is not None
    zero = jnp.zeros(())
    rise = known.value(jnp.ones(())) - known.value(zero)
    return float(rise), float(rise / known.slope(zero))


def similarities(
    rule: str, rho: str | Rho, *, seed: int = 0
) -> Float[np.ndarray, "layers_and_one"]:
    """Returns the mean cosine of layers 0..L, over sets of random tokens in float64.

    Args:
      rule: a name of `RULES`.
      rho: a name of `RHOS`, or a `Rho`.
      seed: of tokens and weights, which all rho share.
    """
    with jax.enable_x64(True):
        draw = np.random.default_rng(seed)
        # a common direction brings the mean cosine to .5: z is in [0, 1] for most pairs
        common = draw.normal(size=(SETS, 1, DIM))
        tokens = _unit(jnp.asarray(common + draw.normal(size=(SETS, TOKENS, DIM))))
        return np.asarray(jax.jit(RULES[rule](rho, seed))(tokens)).mean(axis=-1)


def _normalised(rho: str | Rho, seed: int) -> Callable[[Array], Array]:
    """Attention whose weights sum to 1, on tokens of unit norm, as the paper has it."""
    layer = attention(rho=rho, form="softmax")

    def step(params: Any, y: Array, x: Any) -> Array:
        return _unit(layer.step(AttentionParams(None), y, None))

    return _layers(step, None)


def _gradient(rho: str | Rho, seed: int) -> Callable[[Array], Array]:
    """A gradient step on the energy, of one length for all rho, on unit tokens."""
    layer = attention(rho=rho)

    def total(y: Array) -> Array:
        return jnp.sum(layer.energy(AttentionParams(None), y, None))

    def step(params: Any, y: Array, x: Any) -> Array:
        return _unit(y - RATE / TOKENS * jax.grad(total)(y))

    return _layers(step, None)


def _transformer(rho: str | Rho, seed: int) -> Callable[[Array], Array]:
    """The layer of the paper's Fig. 5 with random weights, ReLU too."""
    stack = Stack(DIM)
    layer = stack._replace(rho=rho).layer()  # pyright: ignore[reportArgumentType]
    network = init_network(stack, 2, jnp.zeros((1, DIM)), seed=seed)
    return _layers(layer.step, network.layer)


#: Layers to compare rho in, by name.
RULES: dict[str, Callable[..., Callable[[Array], Array]]] = {
    "normalised attention": _normalised,
    "gradient step": _gradient,
    "transformer": _transformer,
}


def _layers(step: Callable[..., Array], params: Any) -> Callable[[Array], Array]:
    def run(tokens: Array) -> Array:
        present = jnp.ones(tokens.shape[:-1], bool)

        def record(_: Any, y: Array, __: Any) -> Array:
            return mean_cosine(y, present)

        options = {"num_layers": LAYERS, "record": record}
        exact = jax.tree.map(lambda leaf: leaf.astype(tokens.dtype), params)
        return unroll(step, exact, tokens, None, **options)[1]

    return run


def _unit(y: Float[Array, "*batch n d"]) -> Float[Array, "*batch n d"]:
    norm = jnp.linalg.norm(y, axis=-1, keepdims=True)
    return y / jnp.where(norm == 0.0, 1.0, norm)


def main() -> None:
    """Prints the mean distance 1 - cosine of two tokens by layer, in Markdown."""
    parser = argparse.ArgumentParser(
        prog="python -m papers.similarity", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=3, help="seeds of tokens, weights")
    seeds = range(parser.parse_args().seeds)
    names = sorted(NAMES, key=lambda name: growth(NAMES[name]))
    rises = np.array([growth(NAMES[name]) for name in names])
    for rule in RULES:
        print(f"\n{rule}: mean of 1 - cosine\n")
        layers = ", ".join(map(str, (0, *SHOWN)))
        print(f"| rho | rho(1) - rho(0) | over rho'(0) | layers {layers} |")
        print("|---|---|---|---|")
        distances = []
        for name, (rise, relative) in zip(names, rises, strict=True):
            runs = [similarities(rule, NAMES[name], seed=seed) for seed in seeds]
            distance = 1.0 - np.mean(runs, axis=0)
            distances.append(distance)
            shown = ", ".join(f"{distance[layer]:.2g}" for layer in (0, *SHOWN))
            print(f"| {name} | {rise:.3f} | {relative:.3f} | {shown} |", flush=True)
        # later layers may be at rounding
        first = [distance[1] for distance in distances]
        absolute, relative = (spearmanr(rise, first)[0] for rise in rises.T)
        print(
            f"\nrank correlation of growth and distance at layer 1: {absolute:.2f},"
            f" over rho'(0) {relative:.2f}"
        )


if __name__ == "__main__":
    main()
