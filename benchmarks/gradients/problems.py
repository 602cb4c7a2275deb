"""Equilibria to differentiate: OptEq layers with a known spectrum, and steps as
users write them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from unroll_jax import Descent
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
    """An equilibrium problem in float32; the loss is <target, z*>, its gradient that
    in the params."""

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
    W, U = (
        norm * np.linalg.qr(draw.normal(size=(dim, dim)))[0],
        draw.normal(size=(dim, dim)) / np.sqrt(dim),
    )
    step = lambda params, z, x: jnp.tanh(z @ params[0] + x @ params[1])
    return _cell(
        f"tanh m={dim} {norm} batch {batch}",
        step,
        _floats(W, U),
        draw.normal(size=(batch, dim)),
    )


def transformer_cell(
    dim: int = 64,
    tokens: int = 32,
    heads: int = 4,
    scale: float = 0.8,
    *,
    batch: int = 1,
) -> Cell:
    """A block of self-attention and MLP with the input injected: h = x + s A(N(z)),
    z' = h + s M(N(h)), N RMS norm."""
    draw = np.random.default_rng(4)

    normed = lambda a: a / jnp.sqrt(1.0 + jnp.mean(a**2, -1, keepdims=True))

    def step(params: Any, z: jax.Array, x: jax.Array) -> jax.Array:
        split = (*z.shape[:-1], heads, dim // heads)
        queries, keys, values = (
            (normed(z) @ weight).reshape(split) for weight in params[:3]
        )
        scores = (
            jnp.einsum("...ihd,...jhd->...hij", queries, keys) / (dim // heads) ** 0.5
        )
        mixed = jnp.einsum("...hij,...jhd->...ihd", jax.nn.softmax(scores), values)
        hidden = x + scale * mixed.reshape(z.shape) @ params[3]
        return hidden + scale * jax.nn.gelu(normed(hidden) @ params[4]) @ params[5]

    sizes = [(dim, dim)] * 4 + [(dim, 4 * dim), (4 * dim, dim)]
    params = _floats(*(draw.normal(size=size) / np.sqrt(size[0]) for size in sizes))
    return _cell(
        f"transformer {tokens}x{dim} batch {batch}",
        step,
        params,
        draw.normal(size=(batch, tokens, dim)),
    )


def slow_cell(rate: float = 0.99, *, dim: int = 64, batch: int = 64) -> Cell:
    """tanh(z W) + x, W symmetric with eigenvalues from -.3 to 1 times ``rate``."""
    draw, W = _symmetric(5, rate * np.linspace(1.0, -0.3, dim))
    step = lambda params, z, x: jnp.tanh(z @ params[0]) + x
    return _cell(
        f"slow {rate}", step, _floats(W), 0.03 * draw.normal(size=(batch, dim))
    )


def hard_example_cell(
    hard: float = 0.995, easy: float = 0.3, *, dim: int = 64, batch: int = 64
) -> Cell:
    """One example contracts by ``hard`` and the others by ``easy``, a factor that is
    part of the input."""
    draw, W = _symmetric(9, np.linspace(1.0, -0.3, dim))
    rates = np.full((batch, 1), easy)
    rates[batch // 4] = hard
    step = lambda params, z, x: x[..., :1] * jnp.tanh(z @ params[0]) + x[..., 1:]
    x = np.concatenate([rates, 0.05 * draw.normal(size=(batch, dim))], axis=1)
    return _cell(f"one hard example in {batch}", step, _floats(W), x, dim)


def nonnormal_cell(*, dim: int = 48, batch: int = 64) -> Cell:
    """A bidiagonal map with eigenvalues .3 and norm .85, and a little sine:
    residuals fall late."""
    x = 0.1 * np.random.default_rng(7).normal(size=(batch, dim))
    W = 0.3 * np.eye(dim) + 0.552 * np.eye(dim, k=1)
    return _cell(
        "non-normal",
        lambda params, z, x: z @ params[0] + 0.1 * jnp.sin(z) + x,
        _floats(W),
        x,
    )


def rotation_cell(rate: float = 0.9, *, dim: int = 64, batch: int = 64) -> Cell:
    """4 sin(z Q / 4) + x, Q orthogonal times ``rate``: eigenvalues all round the
    circle."""
    draw = np.random.default_rng(6)
    Q = rate * np.linalg.qr(draw.normal(size=(dim, dim)))[0]
    step = lambda params, z, x: 4.0 * jnp.sin(z @ params[0] / 4.0) + x
    return _cell(
        f"rotation {rate}", step, _floats(Q), 0.3 * draw.normal(size=(batch, dim))
    )


def dense_cell(
    dim: int, square: float, kind: str, *, batch: int = 64, width: int | None = None
) -> Cell:
    """A single dense layer with |W|^2 = square.

    ``kind`` "random": W, U Gaussian. "spread": the squares of W's singular values are
    evenly spaced over (0, square] in random bases, and U and b are such that every unit
    is active at the equilibrium, whose size stays of order 1; all examples then have
    the same Jacobian. "spread, own": that spectrum, with different active units for
    each example.
    """
    draw, width = np.random.default_rng(0), width or dim
    W = draw.normal(size=(width, dim))
    x = draw.uniform(-1.0, 1.0, (batch, INPUT_DIM))
    U, b = (
        draw.normal(size=(width, INPUT_DIM)) / np.sqrt(INPUT_DIM),
        0.1 * draw.normal(size=width),
    )
    if kind.startswith("spread"):
        left, _, right = np.linalg.svd(W, full_matrices=False)
        W = (
            left
            * np.sqrt(square * np.linspace(1.0, 0.0, len(right), endpoint=False))
            @ right
        )
    if kind == "spread":
        kept = np.eye(width) - W @ W.T
        # keeps W z + U x + b as before
        U, b = kept @ U, kept @ np.full(width, 1.5 * np.max(np.abs(x @ U.T)))
    if kind == "random":
        W *= np.sqrt(square) / np.linalg.norm(W, 2)
    shape = f"m={dim}" if width == dim else f"m={dim} h={width}"
    layer, params = opteq(dim, width, INPUT_DIM), OptEqParams(*_floats(W, U, b))
    return _cell(f"dense {shape} {square} {kind}", layer, params, x, dim)


def deep_cell(
    depth: int = 3, dim: int = 256, square: float = 0.99, *, batch: int = 64
) -> Cell:
    """Layers one after another, each Gaussian with |W|^2 = square: the Jacobian is
    not symmetric."""
    draw, params = np.random.default_rng(1), []
    for _ in range(depth):
        W = draw.normal(size=(dim, dim))
        U = draw.normal(size=(dim, INPUT_DIM)) / np.sqrt(INPUT_DIM)
        params.append(
            OptEqParams(
                *_floats(
                    W * np.sqrt(square) / np.linalg.norm(W, 2),
                    U,
                    0.1 * draw.normal(size=dim),
                )
            )
        )
    layer = deep_opteq([opteq(dim, dim, INPUT_DIM)] * depth)
    x = draw.uniform(-1.0, 1.0, (batch, INPUT_DIM))
    return _cell(f"deep L={depth} m={dim} {square}", layer, tuple(params), x, dim)


def conv_cell(
    channels: int = 32, side: int = 32, square: float = 0.99, *, batch: int = 4
) -> Cell:
    """A convolutional layer, Gaussian 3 x 3 kernels, scaled by power iteration to
    |W|^2 = square on its image."""
    draw = np.random.default_rng(2)
    W, U = (
        draw.normal(size=(3, 3, inputs, channels)) / np.sqrt(9 * inputs)
        for inputs in (channels, 3)
    )
    layer, x = (
        opteq_conv(channels, channels, 3),
        draw.uniform(-1.0, 1.0, (batch, side, side, 3)),
    )
    params = OptEqParams(*_floats(W, U, 0.1 * draw.normal(size=channels)))
    linear = opteq_conv(channels, channels, activation="identity")
    z = jnp.asarray(draw.normal(size=(1, side, side, channels)), jnp.float32)
    power = jax.jit(
        lambda z: linear.step(params._replace(U=None, b=0.0 * params.b), z, None)
    )
    for _ in range(100):
        z = power(z / jnp.linalg.norm(z))
    params = params._replace(W=params.W * np.sqrt(square / float(jnp.linalg.norm(z))))
    return _cell(f"conv {side}x{side}x{channels} {square}", layer, params, x, channels)


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
    target = jnp.asarray(np.random.default_rng(3).normal(size=shape), jnp.float32)
    symmetric = isinstance(layer, Descent) and layer.symmetric
    return Cell(
        name,
        layer,
        params,
        jnp.zeros(shape, jnp.float32),
        jnp.asarray(x, jnp.float32),
        target,
        symmetric,
    )
