"""Equilibria to differentiate: OptEq layers with a known spectrum, a plain tanh cell and a transformer block."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from unroll_jax import Descent
from unroll_jax.energies import OptEqParams, deep_opteq, opteq, opteq_conv

__all__ = [
    "INPUT_DIM",
    "BlockParams",
    "Cell",
    "TanhParams",
    "conv_cell",
    "deep_cell",
    "dense_cell",
    "tanh_cell",
    "transformer_cell",
]

INPUT_DIM = 32


class Cell(NamedTuple):
    """An equilibrium problem in float32; the loss is <target, z*>, its gradient that in the params.

    Attributes:
      name: what the tables call it.
      layer: the step with its energy.
      params: of the layer.
      start: z_0, (batch, ...).
      x: the input.
      target: the cotangent of the equilibrium.
      symmetric: whether the Jacobian is.
      hard: whether it is one of the cells with the higher bar.
    """

    name: str
    layer: Descent
    params: Any
    start: jax.Array
    x: jax.Array
    target: jax.Array
    symmetric: bool
    hard: bool


class TanhParams(NamedTuple):
    """Weights of tanh(z W + x U)."""

    W: jax.Array
    U: jax.Array


def tanh_cell(dim: int = 64, norm: float = 0.9, *, batch: int = 128) -> Cell:
    """tanh(z W + x U) as a user writes it, W orthogonal times ``norm``: it contracts well and has no energy."""
    draw = np.random.default_rng(0)
    W = norm * np.linalg.qr(draw.normal(size=(dim, dim)))[0]
    U, x = draw.normal(size=(dim, dim)) / np.sqrt(dim), draw.normal(size=(batch, dim))

    def step(params: TanhParams, z: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(z @ params.W + x @ params.U)

    layer = Descent(
        init=lambda key: None,
        energy=lambda params, z, x: 0.5 * jnp.sum((step(params, z, x) - z) ** 2, -1),
        step=step,
    )
    params = TanhParams(*(jnp.asarray(leaf, jnp.float32) for leaf in (W, U)))
    return _cell(f"tanh m={dim} {norm} batch {batch}", layer, params, x, (batch, dim), symmetric=False)


class BlockParams(NamedTuple):
    """Weights of a transformer block: queries, keys, values and outputs, and the two layers of the MLP."""

    Q: jax.Array
    K: jax.Array
    V: jax.Array
    O: jax.Array  # noqa: E741
    up: jax.Array
    down: jax.Array


def transformer_cell(dim: int = 64, tokens: int = 32, heads: int = 4, scale: float = 0.8, *, batch: int = 1) -> Cell:
    """A block of self-attention and MLP with the input injected: h = x + s A(N(z)), z' = h + s M(N(h)), N RMS norm."""
    draw = np.random.default_rng(4)

    def normed(a: jax.Array) -> jax.Array:
        return a / jnp.sqrt(1.0 + jnp.mean(a**2, -1, keepdims=True))

    def attend(params: BlockParams, z: jax.Array) -> jax.Array:
        split = (*z.shape[:-1], heads, dim // heads)
        queries, keys, values = ((z @ weight).reshape(split) for weight in params[:3])
        scores = jnp.einsum("...ihd,...jhd->...hij", queries, keys) / (dim // heads) ** 0.5
        mixed = jnp.einsum("...hij,...jhd->...ihd", jax.nn.softmax(scores), values)
        return mixed.reshape(z.shape) @ params.O

    def step(params: BlockParams, z: jax.Array, x: jax.Array) -> jax.Array:
        hidden = x + scale * attend(params, normed(z))
        return hidden + scale * jax.nn.gelu(normed(hidden) @ params.up) @ params.down

    layer = Descent(
        init=lambda key: None,
        energy=lambda params, z, x: 0.5 * jnp.sum((step(params, z, x) - z) ** 2, (-2, -1)),
        step=step,
    )
    sizes = [(dim, dim)] * 4 + [(dim, 4 * dim), (4 * dim, dim)]
    params = BlockParams(*(jnp.asarray(draw.normal(size=s) / np.sqrt(s[0]), jnp.float32) for s in sizes))
    shape = (batch, tokens, dim)
    x = draw.normal(size=shape)
    return _cell(f"transformer {tokens}x{dim} batch {batch}", layer, params, x, shape, symmetric=False)


def dense_cell(dim: int, square: float, kind: str, *, batch: int = 64, width: int | None = None) -> Cell:
    """A single dense layer with |W|^2 = square.

    ``kind`` "random": W, U Gaussian. "spread": the squares of W's singular values are evenly spaced over (0, square] in
    random bases, and U and b are such that every unit is active at the equilibrium, whose size stays of order 1; all
    examples then have the same Jacobian. "spread, own": that spectrum, with active units of its own for each example.
    """
    draw, width = np.random.default_rng(0), width or dim
    W = draw.normal(size=(width, dim))
    x = draw.uniform(-1.0, 1.0, (batch, INPUT_DIM))
    U, b = draw.normal(size=(width, INPUT_DIM)) / np.sqrt(INPUT_DIM), 0.1 * draw.normal(size=width)
    if kind.startswith("spread"):
        left, _, right = np.linalg.svd(W, full_matrices=False)
        W = left * np.sqrt(square * np.linspace(1.0, 0.0, len(right), endpoint=False)) @ right
    if kind == "spread":
        kept = np.eye(width) - W @ W.T
        U, b = kept @ U, kept @ np.full(width, 1.5 * np.max(np.abs(x @ U.T)))  # so that W z + U x + b is what U, b were
    if kind == "random":
        W *= np.sqrt(square) / np.linalg.norm(W, 2)
    shape = f"m={dim}" if width == dim else f"m={dim} h={width}"
    return _cell(
        f"dense {shape} {square} {kind}",
        opteq(dim, width, INPUT_DIM),
        _params(W, U, b),
        x,
        (batch, dim),
        hard=kind == "spread" and square >= 0.999,
    )


def deep_cell(depth: int = 3, dim: int = 256, square: float = 0.99, *, batch: int = 64) -> Cell:
    """Layers one after another, each Gaussian with |W|^2 = square: the Jacobian is not symmetric."""
    draw, params = np.random.default_rng(1), []
    for _ in range(depth):
        W = draw.normal(size=(dim, dim))
        U = draw.normal(size=(dim, INPUT_DIM)) / np.sqrt(INPUT_DIM)
        params.append(_params(W * np.sqrt(square) / np.linalg.norm(W, 2), U, 0.1 * draw.normal(size=dim)))
    layer = deep_opteq([opteq(dim, dim, INPUT_DIM)] * depth)
    x = draw.uniform(-1.0, 1.0, (batch, INPUT_DIM))
    return _cell(f"deep L={depth} m={dim} {square}", layer, tuple(params), x, (batch, dim), symmetric=depth == 1)


def conv_cell(channels: int = 32, side: int = 32, square: float = 0.99, *, batch: int = 4) -> Cell:
    """A convolutional layer, Gaussian 3 x 3 kernels, scaled by power iteration to |W|^2 = square on its image."""
    draw = np.random.default_rng(2)
    W, U = (draw.normal(size=(3, 3, inputs, channels)) / np.sqrt(9 * inputs) for inputs in (channels, 3))
    layer, x = opteq_conv(channels, channels, 3), draw.uniform(-1.0, 1.0, (batch, side, side, 3))
    params = _params(W, U, 0.1 * draw.normal(size=channels))
    linear = opteq_conv(channels, channels, activation="identity")
    z = jnp.asarray(draw.normal(size=(1, side, side, channels)), jnp.float32)
    power = jax.jit(lambda z: linear.step(params._replace(U=None, b=0.0 * params.b), z, None))
    for _ in range(100):
        z = power(z / jnp.linalg.norm(z))
    params = params._replace(W=params.W * np.sqrt(square / float(jnp.linalg.norm(z))))
    return _cell(f"conv {side}x{side}x{channels} {square}", layer, params, x, (batch, side, side, channels))


def _params(*weights: np.ndarray) -> OptEqParams:
    return OptEqParams(*(jnp.asarray(leaf, jnp.float32) for leaf in weights))


def _cell(
    name: str,
    layer: Descent,
    params: Any,
    x: np.ndarray,
    shape: tuple[int, ...],
    *,
    symmetric: bool = True,
    hard: bool = False,
) -> Cell:
    target = jnp.asarray(np.random.default_rng(3).normal(size=shape), jnp.float32)
    start = jnp.zeros(shape, jnp.float32)
    return Cell(name, layer, params, start, jnp.asarray(x, jnp.float32), target, symmetric, hard)
