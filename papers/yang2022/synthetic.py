"""The numbers of Figs. 1 to 4: regions of descent, and alternating descent."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax import unroll
from unroll_jax.alternation import alternating
from unroll_jax.certificates import (
    Ball,
    apollonian_ball,
    descent_constant,
    gradient_ratio,
    in_descent_region,
    in_proximal_region,
)

# Fig. 1: c_h C / L_f of its two panels. The minimisers of f and h are free.
RATIOS = (0.7, 1.5)
MINIMISER_F = (-0.9, 0.5)
MINIMISER_H = (0.7, -0.4)
KAPPAS = (0.2, 0.4, 0.6, 0.8)
# half the side of a panel, as in the paper
WINDOW_1 = 3.5
WINDOW_4 = 5.0
# S and W have entries of this standard deviation. Y starts in [0, 2], B_1 and B_2 lie
# in [0, 1].
WEIGHT_SCALE = 0.1


class AlternatingTrace(NamedTuple):
    """A run of Algorithm 1 on two quadratics.

    They are f(Y) = |S Y|^2 + |Y - B_1|^2 and g(Y) = |Y W|^2 + |Y - B_2|^2.

    Attributes:
      energy: (half_steps + 1,), h at Y(0), U(0), Y(1), U(1), ...
      states: (half_steps + 1, tokens, width), the same points.
      ratio: (half_steps / 2 + 1,), delta at every Y(t).
      minimum: h at its minimiser.
      minimiser: (tokens, width).
      constant: C of Theorem 4.1.
      smoothness: L_f, L_g and L_h.
    """

    energy: np.ndarray
    states: np.ndarray
    ratio: np.ndarray
    minimum: float
    minimiser: np.ndarray
    constant: float
    smoothness: dict[str, float]


class ProximalRegions(NamedTuple):
    """T(kappa) of h(y) = |W y|^2 + |y - b|^2 on a grid.

    Attributes:
      inside: (kappas, points, points) boolean.
      W: (2, 2).
      b: (2,).
      step_size: a2 = 1 / L_h, the longest that Theorem 5.1 allows.
      minimiser: (2,), of h.
    """

    inside: np.ndarray
    W: np.ndarray
    b: np.ndarray
    step_size: float
    minimiser: np.ndarray


def grid(half_side: float, points: int) -> np.ndarray:
    """Points (points, points, 2) of a square around 0. The first axis runs along the
    second coordinate."""
    ticks = np.linspace(-half_side, half_side, points)
    return np.stack(np.meshgrid(ticks, ticks), axis=-1)


def descent_regions(points: int) -> list[tuple[np.ndarray, Ball]]:
    """S(C) on the grid and the ball that bounds it, for `RATIOS` (Lemma 4.3)."""

    @jax.jit
    def regions(points: Array, f: Array, h: Array) -> list[Any]:
        curvature = {"smoothness_f": 1.0, "convexity_h": 1.0}
        return [
            (
                in_descent_region(points, f, h, constant=ratio, **curvature),
                apollonian_ball(f, h, ratio),
            )
            for ratio in RATIOS
        ]

    f, h = np.array([MINIMISER_F, MINIMISER_H], np.float32)
    return jax.device_get(regions(grid(WINDOW_1, points), f, h))


def proximal_regions(points: int, seed: int) -> ProximalRegions:
    """T(kappa) for each of `KAPPAS`, with normal W and b (Theorem 5.1)."""
    generator = np.random.default_rng(seed)
    W = generator.normal(size=(2, 2))
    b = generator.normal(size=2)
    hessian = 2.0 * (W.T @ W + np.eye(2))
    step_size = 1.0 / float(np.linalg.eigvalsh(hessian)[-1])

    def h(y: Float[Array, "*batch two"]) -> Float[Array, "*batch"]:
        mapped = y @ jnp.asarray(W.T, y.dtype)
        moved = y - jnp.asarray(b, y.dtype)
        return jnp.sum(mapped**2, -1) + jnp.sum(moved**2, -1)

    @jax.jit
    def regions(plane: Array) -> list[Array]:
        return [
            in_proximal_region(h, plane, step_size=step_size, kappa=kappa)
            for kappa in KAPPAS
        ]

    inside = regions(grid(WINDOW_4, points))
    minimiser = np.linalg.solve(hessian, 2.0 * b)
    return ProximalRegions(np.stack(inside), W, b, step_size, minimiser)


def alternating_trace(
    *,
    tokens: int,
    width: int,
    half_steps: int,
    seed: int,
    step_size: float | None = None,
) -> AlternatingTrace:
    """Runs Algorithm 1 with one step size for f and g, recording every half step.

    Args:
      tokens: n, rows of Y.
      width: d, columns of Y.
      half_steps: number of gradient steps, on f and g in turn. It is even.
      seed: of S, W, B_1, B_2 and Y(0).
      step_size: a1 = a2; None is 1 / L_h, the longest that Theorem 4.1 allows.
    """
    generator = np.random.default_rng(seed)
    S = WEIGHT_SCALE * generator.normal(size=(tokens, tokens))
    W = WEIGHT_SCALE * generator.normal(size=(width, width))
    B_1, B_2 = generator.random((2, tokens, width))
    start = 2.0 * generator.random((tokens, width))
    minimiser, smoothness = _minimiser(S, W, B_1 + B_2)
    length = 1.0 / smoothness["h"] if step_size is None else step_size
    left, right, of_f, of_g = map(jnp.float32, (S, W, B_1, B_2))

    def f(y: Array) -> Array:
        return jnp.sum((left @ y) ** 2) + jnp.sum((y - of_f) ** 2)

    def g(y: Array) -> Array:
        return jnp.sum((y @ right) ** 2) + jnp.sum((y - of_g) ** 2)

    system = alternating(
        lambda params, y, x: f(y),
        lambda params, y, x: g(y),
        f_step_size=length,
        g_step_size=length,
    )

    def record(params: None, y: Array, x: None) -> dict[str, Array]:
        states = jnp.stack([y, y - length * jax.grad(f)(y)])
        return {
            "states": states,
            "energy": jax.vmap(lambda y: system.energy(None, y, None))(states),
            "ratio": gradient_ratio(f, g, y),
        }

    options = {"num_layers": half_steps // 2, "record": record}
    run = jax.jit(lambda y: unroll(system, None, y, **options)[1])
    trace = jax.tree.map(np.asarray, run(jnp.float32(start)))
    lowest = jnp.float32(minimiser)
    return AlternatingTrace(
        # The record after the last layer has a half step too many.
        energy=trace["energy"].reshape(-1)[:-1],
        states=trace["states"].reshape(-1, tokens, width)[:-1],
        ratio=trace["ratio"],
        minimum=float(f(lowest)) + float(g(lowest)),
        minimiser=minimiser,
        constant=float(descent_constant(length, length, smoothness["g"])),
        smoothness=smoothness,
    )


def principal_plane(states: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """Coordinates in the plane of most variance of states (points, ...).

    Signs are such that the first state has no positive coordinate.

    Returns:
      (points, 2) for the states, and (2,) for each further point.
    """
    flat = states.reshape(len(states), -1).astype(np.float64)
    mean = flat.mean(0)
    centred = flat - mean
    # From the Gram matrix of the points, which are fewer than their entries.
    values, vectors = np.linalg.eigh(centred @ centred.T)
    axes = (centred.T @ vectors[:, :-3:-1]) / np.sqrt(values[:-3:-1])
    axes = axes * np.where(centred[0] @ axes > 0.0, -1.0, 1.0)
    return [centred @ axes, *((other.reshape(-1) - mean) @ axes for other in others)]


def _minimiser(
    S: np.ndarray, W: np.ndarray, anchors: np.ndarray
) -> tuple[np.ndarray, dict[str, float]]:
    """Solves S^T S Y + Y W W^T + 2 Y = B_1 + B_2 in the eigenvectors of both sides,
    and L_f, L_g, L_h."""
    left, U = np.linalg.eigh(S.T @ S)
    right, V = np.linalg.eigh(W @ W.T)
    minimiser = U @ ((U.T @ anchors @ V) / (left[:, None] + right + 2.0)) @ V.T
    most = {"f": left[-1] + 1.0, "g": right[-1] + 1.0, "h": left[-1] + right[-1] + 2.0}
    return minimiser, {name: float(2.0 * value) for name, value in most.items()}
