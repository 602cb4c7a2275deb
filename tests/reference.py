"""The equations of the library in float64 NumPy, written from the papers: loops over
pairs, no tricks, no JAX. And arrays for tests."""

import itertools
from collections.abc import Callable

import jax
import numpy as np
from scipy.special import softmax

# The table at its default numbers: shift 1, scale 1, three degrees of freedom, exponent
# 1/2, threshold 1.
RHO_VALUES: dict[str, Callable] = {
    "softmax": lambda z: -np.exp(-z),
    "log": lambda z: np.log1p(z),
    "cauchy": lambda z: np.log1p(z),
    "student": lambda z: 2.0 * np.log1p(2.0 * z / 3.0),
    "geman_mcclure": lambda z: z / (1.0 + z),
    "power": lambda z: np.sqrt(z + 1.0),
    "truncated_quadratic": lambda z: np.minimum(z, 1.0),
}
RHO_SLOPES: dict[str, Callable] = {
    "softmax": lambda z: np.exp(-z),
    "log": lambda z: 1.0 / (z + 1.0),
    "cauchy": lambda z: 1.0 / (z + 1.0),
    "student": lambda z: 4.0 / (3.0 + 2.0 * z),
    "geman_mcclure": lambda z: 1.0 / (1.0 + z) ** 2,
    "power": lambda z: 0.5 / np.sqrt(z + 1.0),
    "truncated_quadratic": lambda z: np.where(z < 1.0, 1.0, 0.0),
}


def pair_energy(y, *, rho="softmax", graph=None, ridge=0.0, anchor=None, W_a=None):
    """E(Y) = sum over unordered pairs of rho(|z_u - z_v|^2 / 2) + r/2 |(Y - B)
    W_a|^2, with z = y W_a."""
    n, d = y.shape
    W_a = np.eye(d) if W_a is None else W_a
    z = y @ W_a
    total = 0.0
    for u, v in itertools.combinations(range(n), 2):
        if graph is None or graph[u, v]:
            total += RHO_VALUES[rho](0.5 * np.sum((z[u] - z[v]) ** 2))
    pulled = (y if anchor is None else y - anchor) @ W_a
    return total + 0.5 * ridge * np.sum(pulled**2)


def pair_step(
    y,
    *,
    rho="softmax",
    form="jacobi",
    graph=None,
    ridge=0.0,
    anchor=None,
    W_a=None,
    step_size=1.0,
):
    """The damped Jacobi step, and with form="softmax" its proximal variant, token by
    token."""
    n = len(y)
    z = y if W_a is None else y @ W_a
    anchor = np.zeros_like(y) if anchor is None else np.broadcast_to(anchor, y.shape)
    itself = RHO_SLOPES[rho](0.0) if form == "softmax" else 0.0
    stepped = np.empty_like(y)
    for u in range(n):
        numerator = ridge * anchor[u] + itself * y[u]
        denominator = ridge + itself
        for v in range(n):
            if v != u and (graph is None or graph[u, v]):
                gamma = RHO_SLOPES[rho](0.5 * np.sum((z[u] - z[v]) ** 2))
                numerator = numerator + gamma * y[v]
                denominator = denominator + gamma
        moved = numerator / denominator if denominator > 0.0 else y[u]
        stepped[u] = (1.0 - step_size) * y[u] + step_size * moved
    return stepped


def heads_energy(y, W_a, **options):
    """The sum of the energies of all heads, W_a (h, d, k)."""
    return sum(pair_energy(y, W_a=W, **options) for W in W_a)


def heads_step(
    y,
    W_a,
    *,
    rho="softmax",
    form="jacobi",
    graph=None,
    ridge=0.0,
    anchor=None,
    step_size=1.0,
):
    """y_u - a P_u^+ g_u, token by token, its matrices written out."""
    n, d = y.shape
    anchor = np.zeros_like(y) if anchor is None else np.broadcast_to(anchor, y.shape)
    stepped = np.empty_like(y)
    for u in range(n):
        block = np.zeros((d, d))
        gradient = np.zeros(d)
        for W in W_a:
            degree = ridge + (RHO_SLOPES[rho](0.0) if form == "softmax" else 0.0)
            gradient += ridge * W @ W.T @ (y[u] - anchor[u])
            for v in range(n):
                if v != u and (graph is None or graph[u, v]):
                    gamma = RHO_SLOPES[rho](0.5 * np.sum(((y[u] - y[v]) @ W) ** 2))
                    degree += gamma
                    gradient += gamma * W @ W.T @ (y[u] - y[v])
            block += degree * W @ W.T
        stepped[u] = y[u] - step_size * np.linalg.pinv(block, rcond=1e-10) @ gradient
    return stepped


def causal_energy(y, context, *, rho="softmax", W_a=None):
    """The energy of each token towards its predecessors in the context, (n,)."""
    z, c = (y, context) if W_a is None else (y @ W_a, context @ W_a)
    shares = np.zeros(len(y))
    for v, u in itertools.combinations(range(len(y)), 2):
        shares[u] += RHO_VALUES[rho](0.5 * np.sum((z[u] - c[v]) ** 2))
    return shares


def causal_step(y, context, *, rho="softmax", form="jacobi", W_a=None, step_size=1.0):
    """Each token towards the weighted mean of its predecessors in the context, and
    of itself if form="softmax"."""
    z, c = (y, context) if W_a is None else (y @ W_a, context @ W_a)
    stepped = y.copy()
    for u in range(len(y)):
        denominator = RHO_SLOPES[rho](0.0) if form == "softmax" else 0.0
        numerator = denominator * y[u]
        for v in range(u):
            gamma = RHO_SLOPES[rho](0.5 * np.sum((z[u] - c[v]) ** 2))
            numerator = numerator + gamma * context[v]
            denominator = denominator + gamma
        if denominator > 0.0:
            stepped[u] = (1.0 - step_size) * y[u] + step_size * numerator / denominator
    return stepped


def softmax_attention(y, W_a=None):
    """softmax_v(z_u . z_v - |z_v|^2 / 2) Y, with the logits written out."""
    z = y if W_a is None else y @ W_a
    logits = z @ z.T - 0.5 * np.sum(z**2, axis=1)[None, :]
    return softmax(logits, axis=1) @ y


def feedforward_energy(y, W_f, anchor=None):
    """E(Y) = Tr(Y W_f Y^T) / 2 + |Y - B|^2 / 2."""
    anchor = np.zeros_like(y) if anchor is None else anchor
    return 0.5 * np.trace(y @ W_f @ y.T) + 0.5 * np.sum((y - anchor) ** 2)


def feedforward_step(y, W_f, anchor=None, *, step_size, prox=lambda y, step_size: y):
    """prox of a gradient step of length a on E: U - a (U (W_f + W_f^T)/2 + U - B)."""
    anchor = np.zeros_like(y) if anchor is None else anchor
    return prox(y - step_size * (y @ (W_f + W_f.T) / 2 + y - anchor), step_size)


def unrolled_layer(y, V, W, U):
    """relu(softmax(Y V^T V Y^T) Y (W + W^T)/2 + Y U)."""
    logits = y @ V.T @ V @ y.T
    attended = softmax(logits, axis=1) @ y
    return np.maximum(attended @ (W + W.T) / 2 + y @ U, 0.0)


def violations(losses, alpha, reference=None):
    """c_l = f_l - (1 - alpha_l) f_{l-1}, and c_0 = f_0 - f_ref in front when there
    is a reference."""
    alphas = np.broadcast_to(alpha, len(losses) - 1)
    descent = [
        losses[i + 1] - (1.0 - alphas[i]) * losses[i] for i in range(len(losses) - 1)
    ]
    return np.array(descent if reference is None else [losses[0] - reference, *descent])


def layer_weights(multipliers, alpha):
    """w_l = [l = L] + lambda_l - (1 - alpha_{l+1}) lambda_{l+1}, for multipliers
    lambda_0..lambda_L."""
    last = len(multipliers) - 1
    alphas = np.broadcast_to(alpha, last)
    weights = np.array(multipliers, dtype=float)
    weights[:-1] -= (1.0 - alphas) * np.asarray(multipliers)[1:]
    weights[last] += 1.0
    return weights


def directional_derivative(function, point, direction, width=1e-3):
    """Sixth-order central difference of a function along a direction: exact to about
    1e-12 for smooth functions."""
    values = [
        weight
        * (
            function(point + k * width * direction)
            - function(point - k * width * direction)
        )
        for k, weight in ((1, 45.0), (2, -9.0), (3, 1.0))
    ]
    return sum(values) / (60.0 * width)


def random_graph(rng, n, share=0.5):
    """A symmetric boolean (n, n): an undirected graph, isolated tokens and several
    components included."""
    upper = np.triu(rng.random((n, n)) < share, 1)
    return upper | upper.T


def gaussian(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def gaussian_like(tree, *, scale=1.0, seed=0):
    """A tree of normal numbers with the shapes of another."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: scale * rng.normal(size=leaf.shape), tree)


def jax_array(values, dtype=None):
    """An array of JAX without a program; `jnp.asarray` compiles one for each shape."""
    return jax.device_put(np.asarray(values, dtype))


def compiled(function, **options):
    """`jax.jit` with results of NumPy: their slices and comparisons compile nothing."""
    run = jax.jit(function, **options)
    return lambda *args, **kwargs: jax.device_get(run(*args, **kwargs))
