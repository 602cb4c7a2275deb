"""Steps of all layers in plain JAX, by the names of `unroll_jax.DESCENTS`.

They are those of the examples there, without arguments or checks. Energies are computed
only where the step needs them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

__all__ = ["PLAIN", "pair_weights"]

# Of several examples.
RIDGE = 0.5  # of attention
SKIP = 0.8  # of opteq
SPARSITY = 0.1  # of codes
RATE = 0.02  # step size of transformers


def _half_squares(rows: Array) -> Array:
    return 0.5 * jnp.sum(rows**2, -1)


def pair_weights(rows: Array, columns: Array) -> Array:
    """exp(-|u - v|^2 / 2) for all u of the rows and v of the columns."""
    logits = rows @ columns.mT - _half_squares(columns)[..., None, :]
    return jnp.exp(logits - _half_squares(rows)[..., None])


def _mean_of_others(z: Array, y: Array, x: Array) -> tuple[Array, Array]:
    """The weighted mean of other tokens and the anchor, and the sum of the weights."""
    weights = pair_weights(z, z) * (1.0 - jnp.eye(z.shape[-2]))
    degrees = jnp.sum(weights, -1, keepdims=True) + RIDGE
    return (weights @ y + RIDGE * x) / degrees, degrees


def _softmax_mean(z: Array, y: Array) -> Array:
    return jax.nn.softmax(z @ z.mT - _half_squares(z)[..., None, :]) @ y


def _softmax_attention(params: Any, y: Array, x: None) -> Array:
    return _softmax_mean(y, y)


def _attention(params: Any, y: Array, x: Array) -> Array:
    return _mean_of_others(y @ params.W_a, y, x)[0]


def _multihead_attention(params: Any, y: Array, x: Array) -> Array:
    W = params.W_a
    z, anchor = (jnp.einsum("...nd,hdk->...hnk", rows, W) for rows in (y, x))
    means, degrees = _mean_of_others(z, z, anchor)
    gradient = jnp.einsum("...hnk,hdk->...nd", degrees * (z - means), W)
    curvature = jnp.einsum("...hn,hdk,hek->...nde", degrees[..., 0], W, W)
    return y - jnp.linalg.solve(curvature, gradient[..., None])[..., 0]


def _causal_attention(params: Any, y: Array, x: Array) -> Array:
    weights = jnp.tril(pair_weights(y, x), -1)
    return (weights @ x + y) / (jnp.sum(weights, -1, keepdims=True) + 1.0)


def _quadratic_step(W_f: Array, y: Array, anchor: Array, rate: float) -> Array:
    return y - rate * (0.5 * y @ (W_f + W_f.T) + y - anchor)


def _feedforward(params: Any, y: Array, x: Array) -> Array:
    return _quadratic_step(params.W_f, y, x, 0.5)


def _layer_norm(params: None, y: Array, x: None) -> Array:
    centred = y - jnp.mean(y, -1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True))


def _transformer(params: Any, y: Array, x: Array) -> Array:
    attended = _softmax_mean(y @ params.W_a, y)
    return jax.nn.relu(_quadratic_step(params.W_f, attended, x, RATE))


def _residual_transformer(params: Any, y: Array, x: Array) -> Array:
    attended = 0.5 * (y + _mean_of_others(y @ params.W_a, y, x)[0])
    return jnp.tanh(_quadratic_step(params.W_f, attended, params.row, RATE))


def _hopfield(params: Any, y: Array, x: Array) -> Array:
    return jax.nn.softmax(2.0 * y @ params.S.T) @ params.S + x


def _cross_attention(params: Any, y: Array, x: Array) -> Array:
    return y + 0.7 * (jax.nn.softmax(y @ x.mT) @ x - y)


def _energy_transformer(params: Any, y: Array, x: None) -> Array:
    n, dim = y.shape[-2:]
    deviation = jnp.std(y, -1, keepdims=True)
    normed = params.scale * (y - jnp.mean(y, -1, keepdims=True)) / deviation
    W = jnp.stack([params.W_Q, params.W_K])
    beta = W.shape[2] ** -0.5

    def energy(g: Array) -> Array:
        queries, keys = jnp.einsum("...nd,shkd->s...hnk", g, W)
        scores = jnp.where(jnp.eye(n), -jnp.inf, beta * queries @ keys.mT)
        attention = jnp.sum(jax.nn.logsumexp(scores, -1)) / beta
        return -attention - jnp.sum(_half_squares(jax.nn.relu(g @ params.memories.T)))

    gradient = jax.grad(energy)(normed + params.shift)
    square_norms = jnp.linalg.norm(W @ W.mT, axis=(-2, -1))
    curvature = n * jnp.sum(jnp.sqrt(jnp.prod(square_norms, 0)))
    change = jnp.linalg.norm(gradient, axis=-1, keepdims=True) / dim**0.5
    rates = deviation / (params.scale * curvature + change)
    return y - jnp.min(rates, -2, keepdims=True) * gradient


def _crate(params: Any, y: Array, x: None) -> Array:
    U = params.U
    dim, width = U.shape[1:]
    unit = 4.0 / y.shape[-2]  # 1 / (n epsilon^2)

    def rate_gradient(z: Array, scale: float) -> Array:
        gram = jnp.eye(z.shape[-1]) + scale * z.mT @ z
        return scale * jnp.linalg.solve(gram, z.mT).mT

    heads = rate_gradient(jnp.einsum("...nd,hdp->...hnp", y, U), width * unit)
    gradient = jnp.einsum("...hnp,hdp->...nd", heads, U)
    gradient = gradient - rate_gradient(y, dim * unit)
    curvature = width * jnp.sum(jnp.linalg.norm(U.mT @ U, axis=(1, 2))) + 2.0 * dim
    return jax.nn.relu(y - (gradient + SPARSITY) / (unit * curvature))


def _hyper_set(params: Any, y: Array, x: None) -> Array:
    width = params.W.shape[1]

    def normalise(rows: Array) -> Array:
        return rows * jax.lax.rsqrt(jnp.mean(rows**2, -1, keepdims=True) + 0.01)

    def energy(y: Array) -> Array:
        z = normalise(jnp.einsum("...nd,hpd->...hnp", y, params.W))
        spread = jax.nn.logsumexp(z @ z.mT / width**0.5, -1) * width**0.5
        aligned = _half_squares(jax.nn.relu(normalise(y @ params.D.T)))
        return jnp.sum(spread, (-2, -1)) - jnp.sum(aligned, -1)

    gradient = jax.grad(lambda y: jnp.sum(energy(y)))(y)
    before = energy(y)

    def unless_rising(rate: Array, otherwise: Array) -> Array:
        rises = energy(y - rate * gradient) > before
        return jnp.where(rises[..., None, None], otherwise, rate)

    def halve(_: Any, rate: Array) -> Array:
        return unless_rising(rate, 0.5 * rate)

    rate = jax.lax.fori_loop(0, 30, halve, jnp.full_like(y[..., :1, :1], 0.1))
    rate = unless_rising(rate, jnp.zeros_like(rate))
    return y - jax.lax.stop_gradient(rate) * gradient


def _fast_weights(params: None, W: Array, x: Array) -> Array:
    keys, values = jnp.split(x, [W.shape[-1]], -1)
    gradient = (keys @ W.mT - values).mT @ keys
    curvature = jnp.linalg.norm(keys.mT @ keys, axis=(-2, -1), keepdims=True)
    return W - gradient / curvature


def _proximal_fast_weights(params: None, W: Array, x: Array) -> Array:
    keys, values = jnp.split(x, [W.shape[-1]], -1)
    system = 1.05 * jnp.eye(W.shape[-1]) + 0.5 * keys.mT @ keys
    return jnp.linalg.solve(system, W.mT + 0.5 * keys.mT @ values).mT


def _sparse_step(D: Array, codes: Array, x: Array, curvature: Any) -> Array:
    moved = codes + (x - codes @ D) @ D.T / curvature
    return jnp.sign(moved) * jax.nn.relu(jnp.abs(moved) - SPARSITY / curvature)


def _lista(params: Any, codes: Array, x: Array) -> Array:
    return _sparse_step(params.D, codes, x, jnp.linalg.norm(params.D, 2) ** 2)


def _dust(params: Any, codes: Array, x: Array) -> Array:
    return _sparse_step(params.D, _softmax_mean(codes @ params.V.T, codes), x, 8.0)


def _opteq(params: Any, z: Array, x: Array) -> Array:
    hidden = jax.nn.relu(z @ params.W.T + x @ params.U.T + params.b)
    return z + SKIP * (hidden @ params.W - z)


def _deep_opteq(params: Any, z: Array, x: Array) -> Array:
    first, second = params
    z = jax.nn.relu(z @ first.W.T + first.b) @ first.W
    return _opteq(second, z, x)


def _convolution(images: Array, kernel: Array, padding: Any = "SAME") -> Array:
    axes = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        images, kernel, (1, 1), padding, None, None, axes
    )


def _transposed_convolution(images: Array, kernel: Array) -> Array:
    return _convolution(images, jnp.swapaxes(kernel[::-1, ::-1], 2, 3))


def _opteq_conv(params: Any, z: Array, x: Array) -> Array:
    hidden = _convolution(z, params.W) + _convolution(x, params.U) + params.b
    return _transposed_convolution(jnp.tanh(hidden), params.W)


def _potential_gradient(params: Any, z: Array) -> Array:
    W, b, log_q = params
    q = jnp.exp(log_q)
    return jax.nn.relu(z @ W.T + b) * q / (jnp.abs(W @ W.T) @ q) @ W


def _convex_potential(params: Any, z: Array, x: None) -> Array:
    return z - 2.0 * _potential_gradient(params, z)


def _convex_potential_conv(params: Any, z: Array, x: None) -> Array:
    W, b, log_q = params
    q = jnp.exp(log_q)
    # Products of the kernel and itself at all shifts of a 3 x 3 window.
    overlaps = _convolution(jnp.moveaxis(W, 3, 0), W, [(2, 2), (2, 2)])
    scaling = jnp.sum(jnp.abs(overlaps), (1, 2)) @ q / q
    hidden = jnp.tanh(_convolution(z, W) + b)
    return z - 1.5 * _transposed_convolution(hidden / scaling, W)


def _convex_equilibrium(params: Any, z: Array, x: Array) -> Array:
    return 0.5 * _potential_gradient(params, z + x)


PLAIN: dict[str, Callable[..., Array]] = {
    "attention": _attention,
    "softmax_attention": _softmax_attention,
    "multihead_attention": _multihead_attention,
    "causal_attention": _causal_attention,
    "feedforward": _feedforward,
    "layer_norm": _layer_norm,
    "transformer": _transformer,
    "residual_transformer": _residual_transformer,
    "hopfield": _hopfield,
    "cross_attention": _cross_attention,
    "energy_transformer": _energy_transformer,
    "crate": _crate,
    "hyper_set": _hyper_set,
    "fast_weights": _fast_weights,
    "proximal_fast_weights": _proximal_fast_weights,
    "lista": _lista,
    "dust": _dust,
    "opteq": _opteq,
    "opteq_conv": _opteq_conv,
    "deep_opteq": _deep_opteq,
    "convex_potential": _convex_potential,
    "convex_potential_conv": _convex_potential_conv,
    "convex_equilibrium": _convex_equilibrium,
}
