"""Equilibria to differentiate: OptEq layers of known spectrum, and users' steps."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from unroll_jax import Descent
from unroll_jax.certificates import spectral_norm
from unroll_jax.energies import OptEqParams, deep_opteq, opteq, opteq_conv

__all__ = [
    "INPUT_DIM",
    "Cell",
    "conv_cell",
    "deep_cell",
    "dense_cell",
    "hard_example_cell",
    "nonnormal_cell",
    "rotation_cell",
    "slow_cell",
    "tanh_cell",
    "transformer_cell",
]

INPUT_DIM = 32


class Cell(NamedTuple):
    """An equilibrium problem in float32: the gradient of <target, z*> in the params."""

    name: str
    layer: Any  # a step, or a `Descent`
    params: Any
    start: jax.Array  # (batch, ...)
    x: jax.Array
    target: jax.Array
    symmetric: bool  # of the Jacobian

    @property
    def step(self) -> Callable[..., jax.Array]:
        """``(params, z, x) -> z'``."""
        return self.layer.step if isinstance(self.layer, Descent) else self.layer


def tanh_cell(dim: int = 64, norm: float = 0.9, *, batch: int = 128) -> Cell:
    """tanh(z W + x U) as a user writes it, W orthogonal times ``norm``."""
    draw = np.random.default_rng(0)
    W = norm * np.linalg.qr(draw.normal(size=(dim, dim)))[0]
    U = draw.normal(size=(dim, dim)) / np.sqrt(dim)
    x = draw.normal(size=(batch, dim))

    def step(params, z, x):
        W, U = params
        return jnp.tanh(z @ W + x @ U)

    return _cell(f"tanh m={dim} {norm} batch {batch}", step, _floats(W, U), x)


def transformer_cell(
    dim: int = 64,
    tokens: int = 32,
    heads: int = 4,
    scale: float = 0.8,
    *,
    batch: int = 1,
) -> Cell:
    """A block of self-attention A and MLP M with the input injected.

    With s the scale and N an RMS norm, h = x + s A(N(z)) and z' = h + s M(N(h)).
    """
    width = dim // heads

    def normalise(a):
        return a / jnp.sqrt(1.0 + jnp.mean(a**2, -1, keepdims=True))

    def step(params: Any, z: jax.Array, x: jax.Array) -> jax.Array:
        *projections, output, up, down = params
        seen = normalise(z)
        queries, keys, values = (
            (seen @ weight).reshape(*z.shape[:-1], heads, width)
            for weight in projections
        )
        scores = jnp.einsum("...ihd,...jhd->...hij", queries, keys) / width**0.5
        mixed = jnp.einsum("...hij,...jhd->...ihd", jax.nn.softmax(scores), values)
        hidden = x + scale * mixed.reshape(z.shape) @ output
        return hidden + scale * jax.nn.gelu(normalise(hidden) @ up) @ down

    draw = np.random.default_rng(4)
    sizes = [(dim, dim)] * 4 + [(dim, 4 * dim), (4 * dim, dim)]
    params = _floats(*(draw.normal(size=size) / np.sqrt(size[0]) for size in sizes))
    x = draw.normal(size=(batch, tokens, dim))
    return _cell(f"transformer {tokens}x{dim} batch {batch}", step, params, x)


def slow_cell(rate: float = 0.99, *, dim: int = 64, batch: int = 64) -> Cell:
    """tanh(z W) + x, W symmetric with eigenvalues from -.3 to 1 times ``rate``."""
    draw, W = _symmetric(5, rate * np.linspace(1.0, -0.3, dim))
    x = 0.03 * draw.normal(size=(batch, dim))
    return _cell(f"slow {rate}", lambda W, z, x: jnp.tanh(z @ W[0]) + x, _floats(W), x)


def hard_example_cell(
    hard: float = 0.995, easy: float = 0.3, *, dim: int = 64, batch: int = 64
) -> Cell:
    """One example contracts by ``hard`` and the others by ``easy``.

    The factor is part of the input.
    """
    draw, W = _symmetric(9, np.linspace(1.0, -0.3, dim))
    rates = np.full((batch, 1), easy)
    rates[batch // 4] = hard
    x = np.concatenate([rates, 0.05 * draw.normal(size=(batch, dim))], axis=1)

    def step(params, z, x):
        return x[..., :1] * jnp.tanh(z @ params[0]) + x[..., 1:]

    return _cell(f"one hard example in {batch}", step, _floats(W), x, dim)


def nonnormal_cell(*, dim: int = 48, batch: int = 64) -> Cell:
    """A bidiagonal map with eigenvalues .3 and norm .85, and a small sine.

    Its residuals fall late.
    """
    x = 0.1 * np.random.default_rng(7).normal(size=(batch, dim))
    W = 0.3 * np.eye(dim) + 0.552 * np.eye(dim, k=1)

    def step(params, z, x):
        return z @ params[0] + 0.1 * jnp.sin(z) + x

    return _cell("non-normal", step, _floats(W), x)


def rotation_cell(rate: float = 0.9, *, dim: int = 64, batch: int = 64) -> Cell:
    """4 sin(z Q / 4) + x, Q orthogonal times ``rate``.

    Its eigenvalues lie all around the circle.
    """
    draw = np.random.default_rng(6)
    Q = rate * np.linalg.qr(draw.normal(size=(dim, dim)))[0]
    x = 0.3 * draw.normal(size=(batch, dim))

    def step(params, z, x):
        return 4.0 * jnp.sin(z @ params[0] / 4.0) + x

    return _cell(f"rotation {rate}", step, _floats(Q), x)


def dense_cell(
    dim: int, square: float, kind: str, *, batch: int = 64, width: int | None = None
) -> Cell:
    """A single dense layer with |W|^2 = square.

    ``kind`` is "random" for Gaussian W and U. In "spread" the squares of W's singular
    values are evenly spaced over (0, square] in random bases, and U and b are such that
    every unit is active at the equilibrium, whose size is of order 1. All examples then
    have the same Jacobian. In "spread, own" W has that spectrum, and each example has
    different active units.
    """
    draw = np.random.default_rng(0)
    width = width or dim
    W = draw.normal(size=(width, dim))
    x = draw.uniform(-1.0, 1.0, (batch, INPUT_DIM))
    U = draw.normal(size=(width, INPUT_DIM)) / np.sqrt(INPUT_DIM)
    b = 0.1 * draw.normal(size=width)
    if kind == "random":
        W *= np.sqrt(square) / np.linalg.norm(W, 2)
    else:
        left, _, right = np.linalg.svd(W, full_matrices=False)
        squares = square * np.linspace(1.0, 0.0, len(right), endpoint=False)
        W = left * np.sqrt(squares) @ right
    if kind == "spread":
        # At the equilibrium z = W^T h with h = W z + kept v. Then h = v, and v is
        # positive in all units.
        kept = np.eye(width) - W @ W.T
        b = kept @ np.full(width, 1.5 * np.max(np.abs(x @ U.T)))
        U = kept @ U
    shape = f"m={dim}" if width == dim else f"m={dim} h={width}"
    layer = opteq(dim, width, INPUT_DIM)
    params = OptEqParams(*_floats(W, U, b))
    return _cell(f"dense {shape} {square} {kind}", layer, params, x, dim)


def deep_cell(
    depth: int = 3, dim: int = 256, square: float = 0.99, *, batch: int = 64
) -> Cell:
    """Layers one after another, each Gaussian with |W|^2 = square.

    The Jacobian of the composition is not symmetric.
    """
    draw = np.random.default_rng(1)
    params = []
    for _ in range(depth):
        W = draw.normal(size=(dim, dim))
        U = draw.normal(size=(dim, INPUT_DIM)) / np.sqrt(INPUT_DIM)
        b = 0.1 * draw.normal(size=dim)
        W *= np.sqrt(square) / np.linalg.norm(W, 2)
        params.append(OptEqParams(*_floats(W, U, b)))
    layer = deep_opteq([opteq(dim, dim, INPUT_DIM)] * depth)
    x = draw.uniform(-1.0, 1.0, (batch, INPUT_DIM))
    return _cell(f"deep L={depth} m={dim} {square}", layer, tuple(params), x, dim)


def conv_cell(
    channels: int = 32, side: int = 32, square: float = 0.99, *, batch: int = 4
) -> Cell:
    """A convolutional layer with Gaussian 3 x 3 kernels and |W|^2 = square.

    W is scaled by power iteration on an image.
    """
    draw = np.random.default_rng(2)
    W, U = (
        draw.normal(size=(3, 3, inputs, channels)) / np.sqrt(9 * inputs)
        for inputs in (channels, 3)
    )
    x = draw.uniform(-1.0, 1.0, (batch, side, side, 3))
    params = OptEqParams(*_floats(W, U, 0.1 * draw.normal(size=channels)))

    linear = opteq_conv(channels, channels, activation="identity")
    without_input = params._replace(U=None, b=0.0 * params.b)
    # of W^T W
    square_norm = spectral_norm(
        lambda z: linear.step(without_input, z, None),
        jax.ShapeDtypeStruct((side, side, channels), jnp.float32),
    )
    params = params._replace(W=params.W * jnp.sqrt(square / square_norm))
    name = f"conv {side}x{side}x{channels} {square}"
    return _cell(name, opteq_conv(channels, channels, 3), params, x, channels)


def _floats(*weights: np.ndarray) -> tuple[jax.Array, ...]:
    return tuple(jnp.asarray(leaf, jnp.float32) for leaf in weights)


def _symmetric(
    seed: int, eigenvalues: np.ndarray
) -> tuple[np.random.Generator, np.ndarray]:
    draw = np.random.default_rng(seed)
    basis = np.linalg.qr(draw.normal(size=(len(eigenvalues),) * 2))[0]
    return draw, (basis * eigenvalues) @ basis.T


def _cell(
    name: str, layer: Any, params: Any, x: np.ndarray, width: int | None = None
) -> Cell:
    shape = (*x.shape[:-1], width or x.shape[-1])
    target = np.random.default_rng(3).normal(size=shape)
    symmetric = isinstance(layer, Descent) and layer.symmetric
    start, x32, target32 = _floats(np.zeros(shape), x, target)
    return Cell(name, layer, params, start, x32, target32, symmetric)
