"""`python -m papers.theorems`: the theorems of the constrained paper in numbers.

Unrolled transformers are trained to denoise atoms of a known set, for which the best
possible denoiser is known. Losses are squared errors over the noisy tokens' errors:
f_0 = 1 at the noise of training. A bound of f_0 or more is vacuous.
"""

import argparse
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from unroll_jax import (
    descent_constraints,
    dual_ascent,
    lagrangian,
    multipliers_of,
    primal_dual,
)
from unroll_jax.constrained import (
    batch_violations,
    column_means,
    column_sums,
    violations,
)
from unroll_jax.models import UnrolledTransformer

__all__ = [
    "ALPHA",
    "Trained",
    "bayes_loss",
    "draw_sets",
    "estimate_gap",
    "main",
    "measure",
    "shift",
    "train",
]

DEPTH, TOKENS, DIM, ATOMS, NOISE = 5, 8, 16, 12, 0.7
ALPHA = 0.3  # of the constraints
DELTA = 0.05  # probability that a bound of the theorems fails
SETS, HELD_OUT = 1024, 16_384
SHIFTS = (0.75, 1.0)  # sizes of the noise
ATOM = jax.nn.relu(jax.random.normal(jax.random.key(7), (ATOMS, DIM)))
MODEL = UnrolledTransformer(dim=DIM, num_layers=DEPTH)
CONSTRAINTS = descent_constraints(ALPHA, num_layers=DEPTH)


class Trained(NamedTuple):
    """The result of training."""

    params: Any
    multipliers: dict[str, jax.Array]  # means over the last tenth of the steps


def draw_sets(
    key: jax.Array, count: int, noise: float | jax.Array = NOISE
) -> tuple[jax.Array, jax.Array]:
    """Noisy and clean sets of tokens, (count, TOKENS, DIM).

    Sets of one key differ only in the size of the noise.
    """
    key_atom, key_noise = jax.random.split(key)
    clean = ATOM[jax.random.randint(key_atom, (count, TOKENS), 0, ATOMS)]
    return clean + noise * jax.random.normal(key_noise, clean.shape), clean


def sample_losses(params: Any, noisy: jax.Array, clean: jax.Array) -> jax.Array:
    """Losses of layers 0..L of each set, (L + 1, sets)."""
    outputs: Any = MODEL.apply(params, noisy)
    return jnp.mean((outputs - clean) ** 2, axis=(-2, -1)) / NOISE**2


def layer_losses(params: Any, noisy: jax.Array, clean: jax.Array) -> jax.Array:
    """Mean losses of layers 0..L, (L + 1,)."""
    return jnp.mean(sample_losses(params, noisy, clean), axis=-1)


def missed(losses: jax.Array) -> dict[str, jax.Array]:
    """Violations of the constraints by mean losses."""
    return violations(CONSTRAINTS, column_means(column_sums(CONSTRAINTS, losses, None)))


def largest_violation(losses: jax.Array) -> float:
    """The largest violation of a constraint."""
    return float(jnp.max(jnp.stack(list(missed(losses).values()))))


def bayes_loss(noisy: jax.Array, clean: jax.Array, noise: float = NOISE) -> jax.Array:
    """Loss of the posterior mean, the functional minimiser f*.

    It is the mean of the atoms, weighted by their likelihood.
    """
    squares = jnp.sum((noisy[..., None, :] - ATOM) ** 2, axis=-1)
    best = jax.nn.softmax(-squares / (2.0 * noise**2)) @ ATOM
    return jnp.mean((best - clean) ** 2) / NOISE**2


def train(
    key: jax.Array,
    sets: Any,
    steps: int,
    *,
    multipliers: Any = None,
    start: Any = None,
    rate: float = 0.01,
) -> Trained:
    """Adam on the Lagrangian of the paper's constraints.

    Args:
      key: of the weights and of the order of the sets.
      sets: noisy and clean ones to train on.
      steps: of batches of 128 sets.
      multipliers: constants to train under; None trains them too, from 0.
      start: weights to start from; None draws them.
      rate: of the dual updates.
    """
    adam = optax.adam(optax.cosine_decay_schedule(3e-3, steps))
    like = dict.fromkeys(CONSTRAINTS, 0.0)
    optimizer = primal_dual(adam, dual_ascent(optax.sgd(rate)), violations=like)
    params = MODEL.init(key, sets[0][:1]) if start is None else start

    def step(carry: Any, key: jax.Array) -> Any:
        params, state = carry
        prices = multipliers_of(state) if multipliers is None else multipliers
        batch = [array[jax.random.choice(key, len(array), (128,))] for array in sets]

        def objective(params: Any) -> Any:
            losses = layer_losses(params, *batch)
            smooth, strict = batch_violations(CONSTRAINTS, losses, None)
            return lagrangian(losses[-1], smooth, prices), strict

        gradient, strict = jax.grad(objective, has_aux=True)(params)
        updates, state = optimizer.update(gradient, state, params, violations=strict)
        return (optax.apply_updates(params, updates), state), prices

    run = jax.jit(lambda carry, keys: jax.lax.scan(step, carry, keys))
    carry = (params, optimizer.init(params))
    (params, _), history = run(carry, jax.random.split(key, steps))
    tail = jax.tree.map(lambda prices: jnp.mean(prices[-(steps // 10) :]), history)
    return Trained(params, tail)


def estimate_gap(trained: Trained, sets: Any, steps: int) -> tuple[float, float]:
    """The primal value f_L of a network, and the least Lagrangian at its multipliers.

    The minimum of the Lagrangian is a lower bound of problem (2) on these sets, by weak
    duality. Training from the trained and from new weights finds an upper estimate of
    it. The difference is an estimate of the gap, from below.
    """
    multipliers = trained.multipliers
    networks = [trained.params]
    for seed, start in ((20, trained.params), (21, None), (22, None)):
        key = jax.random.key(seed)
        again = train(key, sets, steps, multipliers=multipliers, start=start)
        networks.append(again.params)

    def value(params: Any) -> float:
        losses = layer_losses(params, *sets)
        return float(lagrangian(losses[-1], missed(losses), multipliers))

    primal = float(layer_losses(trained.params, *sets)[-1])
    return primal, min(map(value, networks))


def shift(params: Any, noise: float) -> dict[str, float]:
    """Quantities of Corollary 3 between the noise of training and another.

    Returns:
      ``tau``: an upper bound of the Wasserstein distance of the sets, from sets that
      differ only in the size of the noise. ``slope``: the steepest slope of a layer's
      loss in its set, over 2048 sets of each distribution. It is less than the constant
      C of Assumption 7. ``moved``: the largest change of a layer's mean loss, which is
      the least C tau for which the assumption holds here. ``violation``: the largest
      violation of a constraint after the shift. ``first``, ``last``: losses after the
      shift of the noisy tokens and of the last layer.
    """
    sets = [draw_sets(jax.random.key(31), HELD_OUT, size) for size in (NOISE, noise)]
    before, after = (layer_losses(params, *pair) for pair in sets)

    def losses_of_one(noisy, clean):
        return sample_losses(params, noisy[None], clean[None])[:, 0]

    slope = jax.jit(jax.vmap(jax.jacrev(losses_of_one)))
    slopes = [
        jnp.linalg.norm(slope(noisy[:2048], clean[:2048]), axis=(-2, -1))
        for noisy, clean in sets
    ]
    figures = {
        "tau": jnp.mean(jnp.linalg.norm(sets[1][0] - sets[0][0], axis=(-2, -1))),
        "slope": jnp.max(jnp.stack(slopes)),
        "moved": jnp.max(jnp.abs(after - before)),
        "violation": largest_violation(after),
        "first": after[0],
        "last": after[-1],
    }
    return {name: float(value) for name, value in figures.items()}


def sample_complexity(largest: float, parameters: int) -> float:
    """zeta for which all networks of a class have empirical losses within zeta.

    With 0 parameters it is that for one network. By Hoeffding's inequality for losses
    up to ``largest`` and ``SETS`` sets, which fails with probability ``DELTA``, over a
    cover of the class. Its logarithm is taken as 1 nat per parameter, less than for any
    cover of these weights.
    """
    return largest * float(np.sqrt((parameters + np.log(2.0 / DELTA)) / (2.0 * SETS)))


def measure(trained: Trained, sets: Any, held_out: Any) -> dict[str, float]:
    """Rows of the table for one network.

    Losses are of held-out sets unless the name has "train".
    """
    samples = sample_losses(trained.params, *held_out)
    here = layer_losses(trained.params, *sets)
    there = jnp.mean(samples, axis=-1)
    violation = largest_violation(there)
    zeta = max(violation, 0.0)
    largest = float(jnp.max(samples))
    zeta_of_all = sample_complexity(largest, ravel_pytree(trained.params)[0].size)
    gap = float(jnp.max(jnp.abs(there - here)))
    last_bound = (1 - ALPHA) ** DEPTH
    rows = {
        "largest violation, train": largest_violation(here),
        "largest violation": violation,
        "zeta of this network: largest gap of a layer, train to held-out": gap,
        "zeta for one network (Hoeffding)": sample_complexity(largest, 0),
        "zeta for all networks, at least": zeta_of_all,
        "f_L": float(there[-1]),
        "Theorem 2: (1 - alpha)^L f_0 + (largest violation) / alpha": (
            last_bound + zeta / ALPHA
        ),
        "the same with zeta for all networks": last_bound + zeta_of_all / ALPHA,
    }
    for noise in SHIFTS:
        moved = shift(trained.params, noise)
        measured = zeta + (2 - ALPHA) * moved["moved"]
        by_slope = zeta + (2 - ALPHA) * moved["slope"] * moved["tau"]
        of_noise = {
            "f_0": moved["first"],
            "f_L": moved["last"],
            "largest violation": moved["violation"],
            "Corollary 3 with the measured shift of losses": measured,
            "Corollary 3 with the steepest slope times tau": by_slope,
            "Theorem 4 with the measured shift of losses": measured / ALPHA,
        }
        rows |= {f"noise {noise}: {name}": value for name, value in of_noise.items()}
    return rows


def main() -> None:
    """Prints the quantities for plain and constrained training, in Markdown."""
    program = "python -m papers.theorems"
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("--steps", type=int, default=3000, help="steps of training")
    steps = parser.parse_args().steps
    sets = draw_sets(jax.random.key(1), SETS)
    held_out = draw_sets(jax.random.key(2), HELD_OUT)
    key = jax.random.key(3)
    plain = train(key, sets, steps, multipliers=dict.fromkeys(CONSTRAINTS, 0.0))
    constrained = train(key, sets, steps)
    columns = [measure(trained, sets, held_out) for trained in (plain, constrained)]
    print("| losses over those of the noisy tokens | plain | constrained |")
    print("|---|---|---|")
    for name in columns[0]:
        print(f"| {name} | {columns[0][name]:.3f} | {columns[1][name]:.3f} |")
    primal, least = estimate_gap(constrained, sets, steps)
    best = float(bayes_loss(*held_out))
    layer = np.log(best) / np.log(1 - ALPHA)
    at_end = [constrained.multipliers[name] for name in CONSTRAINTS]
    prices = ", ".join(f"{value:.3f}" for value in at_end)
    print(
        f"\nTheorem 1: f_L on the training sets {primal:.4f}, least Lagrangian"
        f" {least:.4f}, gap {primal - least:.4f};\n"
        f"multipliers {prices}.\n"
        f"f* = {best:.3f}: bounds of layers are below it from layer {layer:.1f} on."
    )


if __name__ == "__main__":
    main()
