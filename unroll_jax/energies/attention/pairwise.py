"""Pairwise energies of tokens, and attention as the step that lowers them."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import SHARE, SIZE, at_least, checked, one_of, require
from unroll_jax.descent import Descent
from unroll_jax.energies.attention.fused import fused_softmax_step
from unroll_jax.energies.attention.graphs import check_mask
from unroll_jax.energies.attention.kernel_choice import (
    KERNELS,
    check_kernel,
    check_machine,
    energy_by,
    neighbourhood_by,
)
from unroll_jax.energies.attention.pairs import centre
from unroll_jax.energies.attention.rho import RhoLike, resolve_rho
from unroll_jax.energies.examples import DIM, Example, normal
from unroll_jax.energies.tokens import Tokens, on_tokens, project

__all__ = [
    "FORMS",
    "AttentionParams",
    "attention",
    "attention_example",
    "softmax_attention_example",
]

FORMS = ("jacobi", "softmax")


class AttentionParams(NamedTuple):
    """W_a (dim, rank), or None when the energy is taken on the tokens themselves.

    Example: see `attention`.
    """

    W_a: Float[Array, "d k"] | None


@checked(
    form=one_of(FORMS),
    ridge=at_least(0.0),
    step_size=SHARE,
    dim=SIZE,
    rank=SIZE,
    block=SIZE,
)
@checked(kernel=one_of(KERNELS))
def attention(
    *,
    rho: RhoLike = "softmax",
    form: str = "jacobi",
    ridge: float = 0.0,
    step_size: float = 1.0,
    mask: Any = None,
    dim: int | None = None,
    rank: int | None = None,
    block: int | None = None,
    kernel: str = "xla",
) -> Descent:
    r"""Attention as a descent step on a pairwise energy.

    With tokens as rows of Y, Z = Y W_a (W_a = I when ``dim`` is None) and the anchor B
    = x (0 when x is None),

    .. math:: E(Y) = \sum_{\{u,v\} \in G} \rho(\tfrac12 |z_u - z_v|^2)
                  + \tfrac{r}{2} |(Y - B) W_a|_F^2 ,

    each unordered pair once. The step majorises rho by its tangent, with
    :math:`\gamma_{uv} = \rho'(\tfrac12 |z_u - z_v|^2)` zero off the graph, and takes a
    damped Jacobi step on that quadratic:

    .. math:: y_u' = (1 - a) y_u
                  + a \frac{\sum_{v \ne u} \gamma_{uv} y_v + r b_u + s y_u}{D_u} ,
              \qquad
              D_u = \sum_{v \ne u} \gamma_{uv} + r + s .

    ``form="jacobi"`` has s = 0. ``form="softmax"`` adds the proximal weight s = rho'(0)
    of a token to itself. r = 0 and rho = softmax make it softmax attention,
    :math:`softmax_v(z_u . z_v - \tfrac12 |z_v|^2) Y`. A token without neighbours and r
    = s = 0 stays. Where E is stationary Z stays, but the part of Y unseen by W_a is
    averaged.

    Neither form ever raises E, for every rho concave and nondecreasing, every
    undirected graph, r >= 0, B and a in (0, 1]: E lies below its tangent quadratic,
    whose Hessian is D - s - A with A = (gamma_uv) and D - s >= A row by row, and 2 D -
    (D - s - A) = D + s + A is positive semidefinite.

    Distances come from one matrix product of the centred tokens and err by the dtype's
    epsilon times their squared spread: in float32, clusters far apart for their size (1
    at a distance of 1000) get wrong energies and weights.

    Args:
      rho: a name of `RHOS`, a `Rho`, or a function z -> rho(z), checked to be concave
        and nondecreasing.
      form: "jacobi" or "softmax", see above.
      ridge: r >= 0, weight of the pull to the anchor.
      step_size: a in (0, 1], unitless. 1 is the undamped step.
      mask: the graph. None is the complete one. A symmetric boolean (n, n) marks its
        pairs (the diagonal does not count). No (batch, n, n): the graph is checked when
        the layer is made. An `Anchor` masks tokens by example.
      dim: width d of the tokens, to learn W_a of shape (dim, rank). None uses the
        tokens as they are.
      rank: columns k of W_a, at most ``dim``. None means ``dim``.
      block: tokens whose pairs are held at a time. Memory is O(n block), in value and
        derivatives, and the backward pass computes them again. None takes all up to n =
        1448 in a small batch, else as many as fit a cache.
      kernel: "xla" computes on any device. Two are for GPUs and the complete graph, in
        memory O(n), with first derivatives in reverse mode only. In bfloat16 the
        tokens' projections are rounded to it: "pallas", one pass over pairs for the
        step, the energy and their gradients, for any rho whose functions hold no
        arrays, y of float32, bfloat16 or float16, and a ``block`` of 16, 32, 64 (None)
        or 128 tokens. "cudnn", cuDNN's attention for the step, with the energy as in
        "xla": for rho="softmax", form="softmax", no ridge, y of bfloat16, and widths of
        at most 126 (W_a's columns) and 128 (y's). The compiler gathers sharded tokens
        for both. `jax.shard_map` with ``check_vma=False`` keeps them in place.

    Returns:
      A `Descent` with params `AttentionParams`. ``x`` is the anchor B, broadcastable to
      y, or None, or an `Anchor`.

    Source: Yang, Huang, Wipf (2022), eq. 9 and Theorem 3.1, mended. The paper sums over
    ordered pairs, though its step sizes hold for unordered ones, and claims that
    softmax attention descends E with r = 1 and B = 0. There are points where it raises
    that energy. It always lowers the pair energy, r = 0, that
    ``attention(form="softmax")`` reports. The paper's value is
    ``attention(ridge=1.0).energy``, which ``attention(ridge=1.0).step`` always lowers.

    Example:
      >>> import jax
      >>> layer = attention(form="softmax")
      >>> params: AttentionParams = jax.jit(layer.init)(jax.random.key(0))
      >>> y = jax.random.normal(jax.random.key(1), (5, 3))
      >>> energy, step = jax.jit(layer.energy), jax.jit(layer.step)
      >>> bool(energy(params, step(params, y)) < energy(params, y))
      True
    """
    fits = rank is None or rank <= (dim or 0)
    wanted = f"be between 1 and dim={dim}"
    require(fits, "rank", wanted, rank, "pass dim to learn W_a")
    chosen = resolve_rho(rho)
    graph = check_mask(mask)
    check_kernel(kernel, chosen, mask, block)
    if kernel == "cudnn":
        fits = rho == "softmax" and form == "softmax" and ridge == 0.0
        wanted = 'be "xla" or "pallas" but for rho="softmax", form="softmax", ridge=0'
        got = f"rho={rho!r}, form={form!r}, ridge={ridge}"
        require(fits, "kernel", wanted, got)
    log_slope = chosen.log_slope
    assert log_slope is not None
    shape = None if dim is None else (dim, rank or dim)

    def init(key: jax.Array) -> AttentionParams:
        if shape is None:
            return AttentionParams(None)
        return AttentionParams(jax.nn.initializers.xavier_normal()(key, shape))

    def energy(params: AttentionParams, tokens: Tokens) -> Float[Array, "*batch"]:
        z = project(tokens.y, params.W_a)
        pairs = energy_by(
            kernel, chosen, z, graph, tokens.present, dtype=tokens.dtype, block=block
        )
        return pairs + _ridge_energy(ridge, params, z, tokens)

    def step(params: AttentionParams, tokens: Tokens) -> Array:
        if kernel != "cudnn":
            return step_and_energy(params, tokens, energy=False)[0]
        y = tokens.y.astype(tokens.dtype)
        z = project(tokens.y, params.W_a)
        check_machine(kernel, tokens.dtype, z.shape[-1] + 2, y.shape[-1])
        moved = fused_softmax_step(centre(z, tokens.present), y, tokens.present)
        return _damp(step_size, y, moved)

    def step_and_energy(
        params: AttentionParams, tokens: Tokens, *, energy: bool = True
    ) -> tuple[Array, Float[Array, "*batch"]]:
        z = project(tokens.y, params.W_a)
        bounded = form == "softmax"
        around = neighbourhood_by(
            kernel,
            chosen,
            z,
            tokens.y,
            graph,
            tokens.present,
            dtype=tokens.dtype,
            block=block,
            bounded=bounded,
            energy=energy,
        )
        itself = log_slope(jnp.zeros((), z.dtype)) if bounded else -jnp.inf
        moved = _move(tokens.y, around.mean, around.log_degree, tokens.x, ridge, itself)
        total = around.energy + _ridge_energy(ridge, params, z, tokens)
        return _damp(step_size, tokens.y, moved), total

    # cuDNN does not return its weights: with it there is nothing to share.
    both = None if kernel == "cudnn" else step_and_energy
    return on_tokens(init, energy, step, both, dim=dim)


def attention_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Attention with a low-rank W_a and a ridge."""
    y, x = normal(key, 2, batch)
    return attention(ridge=0.5, dim=DIM, rank=2), y, x


def softmax_attention_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Softmax attention of the tokens themselves."""
    return attention(form="softmax"), normal(key, 1, batch)[0], None


def _ridge_energy(
    ridge: float, params: AttentionParams, z: Array, tokens: Tokens
) -> Float[Array, "*batch"]:
    """Returns the energy of the ridge, with z the projected tokens."""
    if ridge == 0.0:
        return jnp.zeros(z.shape[:-2], z.dtype)
    pulled = z if tokens.x is None else project(tokens.y - tokens.x, params.W_a)
    return 0.5 * ridge * jnp.sum(pulled**2, axis=(-2, -1))


def _damp(step_size: float, tokens: Array, moved: Array) -> Array:
    return moved if step_size == 1.0 else tokens + step_size * (moved - tokens)


def _shares(log_degree: Array, ridge: float, log_itself: Any) -> tuple[Array, Array]:
    """Returns the shares of D_u of a token's neighbours and of its anchor.

    They neither under- nor overflow, and are 0 where D_u is 0.
    """
    others = ridge + jnp.exp(jnp.asarray(log_itself, log_degree.dtype))
    alone = jnp.isneginf(log_degree)
    margin = jnp.where(alone, 0.0, log_degree) - jnp.log(others)
    of_neighbours = jnp.where(alone, 0.0, jax.nn.sigmoid(margin))
    of_others = jnp.where(alone, 1.0, jax.nn.sigmoid(-margin))
    if ridge == 0.0:
        return of_neighbours, jnp.zeros_like(of_others)
    return of_neighbours, of_others * (ridge / others)


@functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=4)
def _move(
    tokens: Array,
    mean: Array,
    log_degree: Array,
    anchor: Array | None,
    ridge: float,
    itself: Any,
) -> Array:
    of_neighbours, of_anchor = _shares(log_degree, ridge, itself)
    moved = tokens + of_neighbours * (mean - tokens)
    if ridge > 0.0:
        target = 0.0 if anchor is None else anchor
        moved = moved + of_anchor * (target - tokens)
    return moved
