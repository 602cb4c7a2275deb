"""Pairwise energies of tokens, and attention as the step that lowers them."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from unroll_jax.descent import Descent, check_tokens, compute_dtype
from unroll_jax.energies.rho import Rho, resolve_rho

__all__ = ["FORMS", "AttentionParams", "attention"]

FORMS = ("jacobi", "softmax")


class AttentionParams(NamedTuple):
    """W_a (dim, rank), or None when the energy is taken on the tokens themselves."""

    W_a: Float[Array, "d k"] | None


def attention(
    *,
    rho: str | Rho = "softmax",
    form: str = "jacobi",
    ridge: float = 0.0,
    step_size: float = 1.0,
    mask: Any = None,
    dim: int | None = None,
    rank: int | None = None,
) -> Descent:
    r"""Attention as a descent step on a pairwise energy.

    With tokens as rows of Y, Z = Y W_a (W_a = I when ``dim`` is None) and the anchor B = x (0 when x is None),

    .. math:: E(Y) = \sum_{\{u,v\} \in G} \rho(\tfrac12 |z_u - z_v|^2) + \tfrac{r}{2} |(Y - B) W_a|_F^2 ,

    each unordered pair once. The step majorises rho by its tangent, with
    :math:`\gamma_{uv} = \rho'(\tfrac12 |z_u - z_v|^2)` zero off the graph, and takes a damped Jacobi step on the
    quadratic that results:

    .. math:: y_u' = (1 - a) y_u + a \frac{\sum_{v \ne u} \gamma_{uv} y_v + r b_u + s y_u}{D_u} , \qquad
              D_u = \sum_{v \ne u} \gamma_{uv} + r + s .

    ``form="jacobi"`` has s = 0. ``form="softmax"`` adds the proximal weight s = rho'(0) of a token to itself, so that
    with r = 0 and rho = softmax the step is softmax attention,
    :math:`softmax_v(z_u . z_v - \tfrac12 |z_v|^2) Y`. A token without neighbours, with r = s = 0, stays where it is.
    Where E is stationary the step leaves Z alone, and what a W_a of low rank does not see of Y it goes on averaging.

    Neither form ever raises E, for every rho concave and nondecreasing, every undirected graph, r >= 0, B and a in
    (0, 1]: E lies below its tangent quadratic, whose Hessian is D - s - A with A = (gamma_uv) and D - s >= A row by
    row, and 2 D - (D - s - A) = D + s + A is positive semidefinite.

    Args:
      rho: a name of `RHOS`, or a `Rho`.
      form: "jacobi" or "softmax", see above.
      ridge: r >= 0, weight of the pull to the anchor.
      step_size: a in (0, 1], unitless; 1 is the undamped step.
      mask: symmetric boolean (n, n), True where a pair is in the graph; None is the complete graph. The diagonal does
        not count.
      dim: width d of the tokens, to learn W_a of shape (dim, rank); None uses the tokens as they are.
      rank: columns k of W_a, at most ``dim``; None means ``dim``.

    Returns:
      A `Descent` with params `AttentionParams`; ``x`` is the anchor B, broadcastable to y, or None.

    Raises:
      ValueError: if an option is outside what is stated here; while tracing, if y, x and mask do not fit each other.
      TypeError: while tracing, if y or x is not floating.

    Source: Yang, Huang, Wipf (2022), eq. 9 and Theorem 3.1, mended. The paper sums over ordered pairs, though its step
    sizes hold for unordered ones, and claims that softmax attention descends E with r = 1 and B = 0. It does not: at a
    consensus away from 0 it does not move, and there are points where it raises that energy. It always lowers the pair
    energy, r = 0, which is what ``attention(form="softmax").energy`` reports; the paper's own value is
    ``attention(ridge=1.0).energy``, which ``attention(ridge=1.0).step`` always lowers.

    Example:
      >>> import jax
      >>> layer = attention(form="softmax")
      >>> params, y = layer.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (5, 3))
      >>> bool(layer.energy(params, layer.step(params, y, None), None) < layer.energy(params, y, None))
      True
    """
    chosen = resolve_rho(rho)
    _check_options(form, ridge, step_size, dim, rank)
    graph = _check_mask(mask)

    def init(key: jax.Array) -> AttentionParams:
        if dim is None:
            return AttentionParams(None)
        return AttentionParams(jax.nn.initializers.xavier_normal()(key, (dim, rank or dim)))

    def energy(params: AttentionParams, y: Array, x: Array | None = None) -> Float[Array, "*batch"]:
        check_tokens(y, x, dim=dim)
        z = _project(params, y)
        neighbours = _neighbours(graph, y)
        pairs = chosen.value(_half_square_distances(z, neighbours))
        total = 0.5 * jnp.sum(pairs, axis=(-2, -1), where=neighbours)
        if ridge == 0.0:
            return total
        pulled = z if x is None else _project(params, y.astype(z.dtype) - x.astype(z.dtype))
        return total + 0.5 * ridge * jnp.sum(pulled**2, axis=(-2, -1))

    def step(params: AttentionParams, y: Array, x: Array | None = None) -> Array:
        check_tokens(y, x, dim=dim)
        z = _project(params, y)
        pairs, anchor, itself = _weights(chosen, z, _neighbours(graph, y), ridge, form)
        tokens = y.astype(z.dtype)
        target = pairs @ tokens + itself * tokens
        if x is not None:
            target = target + anchor * x.astype(z.dtype)
        total = jnp.sum(pairs, axis=-1, keepdims=True) + anchor + itself
        alone = total == 0.0
        moved = jnp.where(alone, tokens, target / jnp.where(alone, 1.0, total))
        return (tokens + step_size * (moved - tokens)).astype(y.dtype)

    return Descent(init=init, energy=energy, step=step)


def _check_options(form: str, ridge: float, step_size: float, dim: int | None, rank: int | None) -> None:
    if form not in FORMS:
        raise ValueError(f"form must be one of {FORMS}, got {form!r}")
    if not (ridge >= 0.0 and math.isfinite(ridge)):
        raise ValueError(f"ridge must be finite and at least 0, got {ridge}")
    if not 0.0 < step_size <= 1.0:
        raise ValueError(f"step_size must be in (0, 1], got {step_size}")
    if dim is not None and dim < 1:
        raise ValueError(f"dim must be at least 1, got {dim}")
    if rank is not None and (dim is None or not 1 <= rank <= dim):
        raise ValueError(f"rank must be between 1 and dim={dim}, got {rank}; pass dim to learn W_a")


def _check_mask(mask: Any) -> np.ndarray | None:
    if mask is None:
        return None
    graph = np.asarray(mask)
    if graph.dtype != np.bool_ or graph.ndim != 2 or graph.shape[0] != graph.shape[1]:
        raise ValueError(f"mask must be a boolean (n, n) array, got {graph.dtype} of shape {graph.shape}")
    if not np.array_equal(graph, graph.T):
        u, v = np.argwhere(graph != graph.T)[0]
        raise ValueError(
            f"mask must be symmetric (an undirected graph), but mask[{u}, {v}] differs from mask[{v}, {u}]"
        )
    return graph


def _neighbours(graph: np.ndarray | None, y: Array) -> Bool[Array, "n n"]:
    n = y.shape[-2]
    if graph is not None and graph.shape[0] != n:
        raise ValueError(f"mask is {graph.shape}, but y has n={n} tokens (shape {y.shape})")
    others = ~np.eye(n, dtype=bool)
    return jnp.asarray(others if graph is None else graph & others)


def _project(params: AttentionParams, y: Array) -> Array:
    dtype = compute_dtype(y, params.W_a)
    return y.astype(dtype) if params.W_a is None else y.astype(dtype) @ params.W_a.astype(dtype)


def _half_square_distances(z: Float[Array, "*batch n k"], neighbours: Bool[Array, "n n"]) -> Float[Array, "*batch n n"]:
    """Half the squared distance of every pair of neighbours; 1 elsewhere, where rho and its slope may be singular at 0.

    The error is about the machine's epsilon times the squared spread of the tokens.
    """
    # Distances do not feel a shift; taken from the mean they lose no digits to a large common offset.
    z = z - jnp.mean(z, axis=-2, keepdims=True)
    half_squares = 0.5 * jnp.sum(z**2, axis=-1)
    # The difference cancels most digits of close tokens, so accelerators must not shorten the products.
    products = jnp.matmul(z, jnp.swapaxes(z, -1, -2), precision=jax.lax.Precision.HIGHEST)
    distances = half_squares[..., :, None] + half_squares[..., None, :] - products
    # Only round-off makes them negative; the derivatives, which are exact, must not feel its removal.
    distances = distances + jax.lax.stop_gradient(jnp.maximum(distances, 0.0) - distances)
    return jnp.where(neighbours, distances, 1.0)


def _weights(
    rho: Rho, z: Float[Array, "*batch n k"], neighbours: Bool[Array, "n n"], ridge: float, form: str
) -> tuple[Float[Array, "*batch n n"], Float[Array, "*batch n 1"], Float[Array, "*batch n 1"]]:
    """gamma, r and s of the step, each row divided by its largest entry: far tokens neither under- nor overflow."""
    assert rho.log_slope is not None
    pairs = jnp.where(neighbours, rho.log_slope(_half_square_distances(z, neighbours)), -jnp.inf)
    anchor = jnp.asarray(math.log(ridge) if ridge > 0.0 else -jnp.inf, z.dtype)
    itself = rho.log_slope(jnp.zeros((), z.dtype)) if form == "softmax" else jnp.asarray(-jnp.inf, z.dtype)
    largest = jnp.maximum(jnp.max(pairs, axis=-1, keepdims=True), jnp.maximum(anchor, itself))
    largest = jax.lax.stop_gradient(jnp.where(jnp.isneginf(largest), 0.0, largest))
    return jnp.exp(pairs - largest), jnp.exp(anchor - largest), jnp.exp(itself - largest)
